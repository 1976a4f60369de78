//! The job of the tests that strike at every step: it may kill its supervisor or its warden at its own start or about its
//! result, and it writes down what the tests judge by.
//!
//! In `steps.log` beside the start log: `begin JOB ATTEMPT PID STARTED`, `end JOB ATTEMPT`, and `overlap JOB ATTEMPT OTHER`
//! when, as an attempt begins, the process of another attempt of its job still lives.

use std::fs;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use support::kin;

/// `step WHEN WHOM MILLISECONDS CODE`: works so long, writes a result, and ends with `CODE` at its first attempt; kills WHOM
/// (`supervisor`, `warden`) at WHEN (`start`, `before-result`, `after-result`; anything else: never), once in its world.
pub(crate) fn step(rest: &[&str]) -> ExitCode {
    let [when, whom, milliseconds, code] = *rest else { return ExitCode::from(2) };
    begin();
    if when == "start" {
        strike(whom);
    }
    std::thread::sleep(Duration::from_millis(milliseconds.parse().expect("a time")));
    if when == "before-result" {
        strike(whom);
    }
    println!("42");
    std::io::stdout().flush().expect("a reader");
    if when == "after-result" {
        strike(whom);
    }
    let (job, attempt) = own();
    note(&format!("end {job} {attempt}"));
    if attempt == "1" { ExitCode::from(code.parse::<u8>().expect("an exit code")) } else { ExitCode::SUCCESS }
}

fn own() -> (String, String) {
    let variable = |name| std::env::var(name).expect("a job's environment");
    (variable("JOBVISOR_JOB_ID"), variable("JOBVISOR_ATTEMPT"))
}

fn beside_the_log(name: &str) -> PathBuf {
    PathBuf::from(std::env::var("JOBVISOR_TEST_LOG").expect("a start log")).with_file_name(name)
}

fn note(line: &str) {
    let file = beside_the_log("steps.log");
    super::appender(&file.display().to_string()).write_all(format!("{line}\n").as_bytes()).expect("a line");
}

/// First the own line, then the look at the others: of two that begin at the same time at least one sees the other.
fn begin() {
    let (job, attempt) = own();
    let pid = std::process::id();
    let started = kin::started(i32::try_from(pid).expect("a pid")).expect("own start time");
    note(&format!("begin {job} {attempt} {pid} {started}"));
    let log = fs::read_to_string(beside_the_log("steps.log")).expect("the log");
    for line in log.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        let ["begin", of, other, pid, started] = words[..] else { continue };
        let lives = || kin::started(pid.parse().expect("a pid")) == started.parse().ok();
        if of == job && other != attempt && lives() {
            note(&format!("overlap {job} {attempt} {other}"));
        }
    }
}

/// Kills, and then waits to be killed.
fn strike(whom: &str) {
    let warden = nix::unistd::getppid();
    let supervisor = kin::parent_of(warden.as_raw()).expect("the warden's parent");
    if !kin::first_to_strike(&beside_the_log("struck"), supervisor, warden.as_raw()) {
        return;
    }
    let victim = if whom == "warden" { warden.as_raw() } else { supervisor };
    super::signal(usize::try_from(victim).expect("a pid"), libc::SIGKILL);
    super::hang();
}
