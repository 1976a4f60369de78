//! What the campaign found, line by line: said at once and kept in a file.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;
use std::time::Instant;

#[derive(Debug)]
pub(crate) struct Report {
    path: PathBuf,
    part: String,
    since: Instant,
    failed: usize,
}

impl Report {
    #[expect(clippy::disallowed_methods, reason = "a measuring program reads the clock")]
    pub(crate) fn new(path: PathBuf) -> Self {
        Self { path, part: String::new(), since: Instant::now(), failed: 0 }
    }

    pub(crate) fn begin(&mut self, part: &str) {
        part.clone_into(&mut self.part);
        let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
        let load: Vec<&str> = load.split(' ').take(3).collect();
        let at = self.since.elapsed().as_secs();
        self.say(&format!("begins at {at} s; load of the host {}", load.join(" ")));
    }

    /// A figure.
    pub(crate) fn say(&mut self, text: &str) {
        let line = format!("{:8}{text}\n", self.part);
        print!("{line}");
        let file = OpenOptions::new().append(true).create(true).open(&self.path);
        file.and_then(|mut file| file.write_all(line.as_bytes())).expect("the report can be written");
    }

    /// Something that has to be so.
    pub(crate) fn check(&mut self, what: &str, holds: bool, detail: &str) {
        let detail = if detail.is_empty() { String::new() } else { format!(": {detail}") };
        let word = if holds { "ok     " } else { "FAILED " };
        self.failed += usize::from(!holds);
        self.say(&format!("{word}{what}{detail}"));
    }

    pub(crate) const fn all_held(&self) -> bool {
        self.failed == 0
    }
}

/// `p50 … p95 … max …` of times.
pub(crate) fn quantiles(times: &mut [Duration]) -> String {
    times.sort_unstable();
    let at = |percent: usize| times.get((times.len() * percent / 100).min(times.len().saturating_sub(1)));
    let show =
        |time: Option<&Duration>| time.map_or_else(|| "-".to_owned(), |t| format!("{:.1} ms", t.as_secs_f64() * 1e3));
    format!("n {} p50 {} p95 {} max {}", times.len(), show(at(50)), show(at(95)), show(times.last()))
}
