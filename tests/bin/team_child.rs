//! The job of the tests with several supervisors: it says when it starts, and then every 20 ms that it lives.
//!
//! `team-child MODE FOLDER FIRST_MS LATER_MS`. Nothing here lives longer than a minute.
#![expect(unsafe_code, reason = "the alarm that bounds its life, and the parent that it kills")]
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "what it prints is its result")]

use std::fs::File;
use std::fs::OpenOptions;
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [mode, folder, first, later] = arguments.as_slice() else {
        eprintln!("usage: team-child MODE FOLDER FIRST_MS LATER_MS");
        return ExitCode::from(2);
    };
    // SAFETY: alarm only sets a timer; its SIGALRM ends this process, which is what it is for.
    unsafe { libc::alarm(60) };
    let (job, attempt) = (variable("JOBVISOR_JOB_ID"), variable("JOBVISOR_ATTEMPT"));
    let line = format!("start {job} {attempt} {}\n", std::process::id());
    append(Path::new(&variable("JOBVISOR_TEST_LOG"))).write_all(line.as_bytes()).expect("a line");
    let for_ms = if attempt == "1" { first } else { later }.parse().expect("a number");
    match mode.as_str() {
        "work" => count(&Path::new(folder).join(&job), &attempt, for_ms),
        "kill-supervisor" => {
            kill_supervisor();
            count(&Path::new(folder).join(&job), &attempt, 50_000);
        }
        other => {
            eprintln!("no mode `{other}`");
            return ExitCode::from(2);
        }
    }
    println!("{attempt}");
    ExitCode::SUCCESS
}

fn variable(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| panic!("{name} is not set"))
}

fn append(path: &Path) -> File {
    OpenOptions::new().append(true).create(true).open(path).expect("the file can be written")
}

/// Appends `ATTEMPT PID MILLISECONDS` (CLOCK_BOOTTIME) every 20 ms, and at its end.
fn count(path: &Path, attempt: &str, for_ms: u128) {
    let mut file = append(path);
    let until = milliseconds() + for_ms;
    loop {
        let now = milliseconds();
        file.write_all(format!("{attempt} {} {now}\n", std::process::id()).as_bytes()).expect("a line");
        if now >= until {
            return;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn milliseconds() -> u128 {
    let time = nix::time::clock_gettime(nix::time::ClockId::CLOCK_BOOTTIME).expect("a clock");
    Duration::from(time).as_millis()
}

/// Our parent is the warden, and the warden's is the supervisor.
fn kill_supervisor() {
    let warden = std::os::unix::process::parent_id();
    let stat = std::fs::read_to_string(format!("/proc/{warden}/stat")).expect("the warden");
    let parent = stat.rsplit_once(") ").and_then(|(_, rest)| rest.split(' ').nth(1)).expect("its parent");
    let supervisor: i32 = parent.parse().expect("a pid");
    assert!(supervisor > 1, "the warden has lost its supervisor already");
    // SAFETY: the pid is our warden's parent, which is the supervisor under test.
    unsafe { libc::kill(supervisor, libc::SIGKILL) };
}
