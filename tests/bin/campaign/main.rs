//! The long campaign: many faults of one kind in a row, and figures. Started by `tests/campaign`, which see.
//!
//! `campaign PERCENT FOLDER PART…`: each part makes a world of its own, bounded in count and time, and reads what was
//! recorded. What it found goes to stdout and to `FOLDER/report.txt`; exit code 1 if a check did not hold.
#![expect(clippy::print_stdout, reason = "a report is what it is for")]

mod endings;
mod kills;
mod latency;
mod limits;
mod memory;
mod noop;
mod records;
mod report;
mod steps;
mod team;
mod wake;

use std::path::Path;
use std::process::ExitCode;

use crate::report::Report;

/// How much of everything is done.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Scale {
    percent: usize,
}

impl Scale {
    /// So much of `full`, but not less than `least`.
    pub(crate) const fn of(self, full: usize, least: usize) -> usize {
        let part = full * self.percent / 100;
        if part > least { part } else { least }
    }
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [percent, folder, parts @ ..] = arguments.as_slice() else {
        println!("usage: campaign PERCENT FOLDER PART…");
        return ExitCode::from(2);
    };
    let scale = Scale { percent: percent.parse().expect("a number") };
    let folder = std::path::absolute(folder).expect("a folder");
    let mut report = Report::new(folder.join("report.txt"));
    for part in parts {
        report.begin(part);
        let run = std::panic::AssertUnwindSafe(|| one(part, scale, &folder, &mut report));
        if std::panic::catch_unwind(run).is_err() {
            report.check("the part came to its end", false, "it did not; see above");
        }
    }
    if report.all_held() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn one(part: &str, scale: Scale, folder: &Path, report: &mut Report) {
    match part {
        "oom" => endings::oom(scale, report),
        "endings" => endings::others(scale, report),
        "latency" => latency::death_to_record(scale, report),
        "noop" => noop::beside_a_bare_loop(scale, &folder.join("noop"), report),
        "memory" => memory::resident(scale, &folder.join("noop"), report),
        "store" => limits::drain(scale, report),
        "enqueue" => limits::enqueue(scale, report),
        "wake" => wake::first_byte(scale, report),
        "idle" => wake::idle(scale, report),
        "rescue" => wake::rescue(scale, report),
        "kills" => kills::of_supervisor_and_warden(scale, report),
        "steps" => steps::each(scale, report),
        "team" => team::rolling(scale, report),
        other => report.check("the part is known", false, other),
    }
}
