//! A child with one mode for each way to die or to misbehave. Whatever loops or forks ends by itself after a minute.
#![expect(unsafe_code, reason = "faults are made with the calls that make them")]
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "what it prints is what the tests read")]

#[path = "step_child.rs"]
mod step_child;

use std::fs;
use std::fs::OpenOptions;
use std::io::Read;
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::process::ExitCode;
use std::time::Duration;

/// Nothing here lives longer.
const DEADLINE: Duration = Duration::from_secs(60);
const MIB: usize = 1 << 20;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let Some((mode, rest)) = words.split_first() else {
        eprintln!("usage: fault-child MODE [ARGUMENT…]");
        return ExitCode::from(2);
    };
    if !mode.starts_with("helper-") {
        log_start();
    }
    // SAFETY: alarm only sets a timer; its SIGALRM ends this process, which is what it is for.
    unsafe { libc::alarm(u32::try_from(DEADLINE.as_secs()).expect("small")) };
    act(mode, rest)
}

fn act(mode: &str, rest: &[&str]) -> ExitCode {
    match mode {
        "exit" => return ExitCode::from(u8::try_from(number(rest, 0)).expect("an exit code")),
        "flaky" => return ExitCode::from(u8::from(attempt() == 1)),
        "segv" => raise(libc::SIGSEGV),
        "abort" => std::process::abort(),
        "raise" => raise(i32::try_from(number(rest, 0)).expect("a signal")),
        "hang" | "helper-hang" => hang(),
        "exit-after" => std::thread::sleep(Duration::from_millis(number(rest, 0) as u64)),
        "hog" | "helper-hog" => hog(rest.first().map_or(1, |_| number(rest, 0))),
        "touch" => drop(touch(number(rest, 0))),
        "spike" => spike(number(rest, 0), number(rest, 1), number(rest, 2)),
        "stream" => stream(rest[0]),
        "hog-in-child" => drop(helper(&["helper-hog"]).wait()),
        "fill" => fill(number(rest, 0)),
        "fill-in-child" => fill_in_child(number(rest, 0)),
        "killed-by-helper" => killed_by_helper(),
        "helper-kill" => signal(number(rest, 0), libc::SIGKILL),
        "kill-pid-in" => {
            signal(fs::read_to_string(rest[0]).expect("a pid file").trim().parse().expect("a pid"), libc::SIGKILL);
            hang();
        }
        "append" => append(rest[0], number(rest, 1)),
        "work" => return work(rest[0], number(rest, 1), number(rest, 2)),
        "stamp" => return stamp(rest),
        "step" => return step_child::step(rest),
        "helper-append" => append(rest[0], 0),
        "ignore-term" if rest.is_empty() => {
            ignore_term();
            println!("ready");
            hang();
        }
        "ignore-term" => {
            ignore_term();
            append(rest[0], number(rest, 1));
        }
        "helper-ignore-term" => {
            ignore_term();
            append(rest[0], number(rest, 1));
        }
        "daemon" => drop(daemon()),
        "leave" => leave(false),
        "leave-session" => leave(true),
        "chain" => chain(rest[0]),
        "chains" => chains(rest[0], number(rest, 1)),
        "rest" => rest_itself(rest[0]),
        "count" => count(rest[0], number(rest, 1)),
        "flood-stderr" => flood(&mut std::io::stderr(), rest),
        "flood-stdout" => flood(&mut std::io::stdout(), rest),
        "write" => write_bytes(rest),
        "print-fds" => print_fds(),
        "print-file" => print!("{}", fs::read_to_string(rest[0]).expect("a file")),
        "limits" => print!("{}", fs::read_to_string("/proc/self/limits").expect("limits")),
        "echo-stdin" => echo_stdin(),
        "env" => println!("{}", std::env::var(rest[0]).unwrap_or_default()),
        other => {
            eprintln!("no mode `{other}`");
            return ExitCode::from(2);
        }
    }
    ExitCode::SUCCESS
}

/// `start JOB ATTEMPT PID` in the log that the test names: the oracle for how often a job was started.
fn log_start() {
    let Ok(path) = std::env::var("JOBVISOR_TEST_LOG") else { return };
    let variable = |name| std::env::var(name).unwrap_or_default();
    let line =
        format!("start {} {} {}\n", variable("JOBVISOR_JOB_ID"), variable("JOBVISOR_ATTEMPT"), std::process::id());
    let mut file = appender(&path);
    file.write_all(line.as_bytes()).expect("a line");
}

fn attempt() -> u32 {
    std::env::var("JOBVISOR_ATTEMPT").ok().and_then(|text| text.parse().ok()).unwrap_or(1)
}

fn number(words: &[&str], at: usize) -> usize {
    words.get(at).map_or(0, |word| word.parse().expect("a number"))
}

fn raise(signal: i32) {
    // The language's own handler for stack overflows would swallow the first SIGSEGV.
    // SAFETY: the default disposition runs no code.
    unsafe { libc::signal(signal, libc::SIG_DFL) };
    // SAFETY: raising a signal in the own process is the fault that is asked for.
    unsafe { libc::raise(signal) };
}

fn signal(pid: usize, signal: i32) {
    // SAFETY: the pid is the one that the test names.
    unsafe { libc::kill(i32::try_from(pid).expect("a pid"), signal) };
}

fn ignore_term() {
    // SAFETY: SIG_IGN is a valid disposition for SIGTERM.
    unsafe { libc::signal(libc::SIGTERM, libc::SIG_IGN) };
}

fn hang() {
    std::thread::sleep(DEADLINE);
}

/// Takes `mib` at once and writes to every page of it.
fn touch(mib: usize) -> Vec<u8> {
    let mut memory = Vec::<u8>::with_capacity(mib * MIB);
    memory.resize(mib * MIB, 1);
    std::hint::black_box(memory)
}

/// Takes `step` MiB again and again until somebody stops it.
fn hog(step: usize) {
    let end = milliseconds() + DEADLINE.as_millis();
    let mut all = Vec::new();
    while milliseconds() < end && all.len() * step < 4096 {
        all.push(touch(step));
    }
}

/// Takes memory for a moment, frees it, and works on.
fn spike(mib: usize, for_ms: usize, then_ms: usize) {
    let memory = touch(mib);
    std::thread::sleep(Duration::from_millis(for_ms as u64));
    drop(memory);
    std::thread::sleep(Duration::from_millis(then_ms as u64));
}

fn stream(path: &str) {
    let mut file = fs::File::open(path).expect("a file");
    let mut buffer = vec![0; MIB];
    while file.read(&mut buffer).expect("readable") > 0 {}
}

#[expect(clippy::disallowed_methods, reason = "children of a fault are part of the fault")]
fn helper(arguments: &[&str]) -> std::process::Child {
    Command::new(std::env::current_exe().expect("own path")).args(arguments).spawn().expect("a helper")
}

fn killed_by_helper() {
    drop(helper(&["helper-kill", &std::process::id().to_string()]).wait());
    hang();
}

/// Appends `ATTEMPT PID MILLISECONDS` every 50 ms; so do nested helpers.
fn append(path: &str, helpers: usize) {
    if helpers > 0 {
        let mode = if std::env::args().any(|word| word.ends_with("ignore-term")) {
            "helper-ignore-term"
        } else {
            "helper-append"
        };
        drop(helper(&[mode, path, &(helpers - 1).to_string()]));
    }
    let end = milliseconds() + DEADLINE.as_millis();
    let mut file = appender(path);
    while milliseconds() < end {
        let line = format!("{} {} {}\n", attempt(), std::process::id(), milliseconds());
        file.write_all(line.as_bytes()).expect("a line");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Appends `ATTEMPT PID MILLISECONDS` to the job's own file in `folder` every 20 ms, for `for_ms`; then exits with `code`.
fn work(folder: &str, for_ms: usize, code: usize) -> ExitCode {
    let job = std::env::var("JOBVISOR_JOB_ID").expect("a job");
    let path = std::path::Path::new(folder).join(job);
    let mut file = OpenOptions::new().append(true).create(true).open(path).expect("the file");
    let until = milliseconds() + for_ms as u128;
    loop {
        let line = format!("{} {} {}\n", attempt(), std::process::id(), milliseconds());
        file.write_all(line.as_bytes()).expect("a line");
        if milliseconds() >= until {
            return ExitCode::from(u8::try_from(code).expect("an exit code"));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// `stamp FILE AFTER_MS kill|exit`: writes `JOB MICROSECONDS` (CLOCK_REALTIME) as its last act, and dies at once.
fn stamp(rest: &[&str]) -> ExitCode {
    std::thread::sleep(Duration::from_millis(number(rest, 1) as u64));
    let mut file = OpenOptions::new().append(true).create(true).open(rest[0]).expect("the file");
    let job = std::env::var("JOBVISOR_JOB_ID").expect("a job");
    let time = nix::time::clock_gettime(nix::time::ClockId::CLOCK_REALTIME).expect("a clock");
    file.write_all(format!("{job} {}\n", Duration::from(time).as_micros()).as_bytes()).expect("a line");
    if rest.get(2) == Some(&"kill") {
        raise(libc::SIGKILL);
    }
    ExitCode::SUCCESS
}

/// CLOCK_MONOTONIC in milliseconds: one clock for all processes of the host.
fn milliseconds() -> u128 {
    let time = nix::time::clock_gettime(nix::time::ClockId::CLOCK_MONOTONIC).expect("a clock");
    Duration::from(time).as_millis()
}

/// Leaves a process in a session of its own that holds our pipes.
#[expect(clippy::disallowed_methods, reason = "children of a fault are part of the fault")]
fn daemon() -> std::process::Child {
    let mut command = Command::new(std::env::current_exe().expect("own path"));
    command.arg("helper-hang");
    let session = || {
        own_session();
        Ok(())
    };
    // SAFETY: setsid is async-signal-safe and allocates nothing.
    unsafe { command.pre_exec(session) };
    println!("done");
    command.spawn().expect("a daemon")
}

fn fork() -> i32 {
    // SAFETY: this process has one thread.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0, "fork failed");
    pid
}

/// Ends a forked process without running anything of the first one's.
fn end_fork() -> ! {
    // SAFETY: takes no memory and returns to nobody.
    unsafe { libc::_exit(0) }
}

fn own_session() {
    // SAFETY: no arguments, no memory.
    unsafe { libc::setsid() };
}

/// Takes so many MiB, 4 at a time, says so, and then sleeps.
fn fill(mib: usize) {
    let mut all = Vec::new();
    for _ in 0..mib / 4 {
        all.push(touch(4));
        std::thread::sleep(Duration::from_millis(2));
    }
    println!("full");
    hang();
}

fn fill_in_child(mib: usize) {
    let child = fork();
    if child == 0 {
        fill(mib);
        end_fork();
    }
    // SAFETY: waits for our own child; a null status is allowed.
    unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) };
}

/// Leaves a forked child behind that keeps our descriptors, in our session or as a grandchild in one of its own.
fn leave(session: bool) {
    if fork() == 0 {
        if session {
            own_session();
            if fork() != 0 {
                end_fork();
            }
        }
        hang();
        end_fork();
    }
    std::thread::sleep(Duration::from_millis(50));
}

/// A chain of double forks: every generation makes the next one in a session of its own, writes a dot, and ends.
fn chain(path: &str) {
    let end = milliseconds() + 20_000;
    if fork() != 0 {
        // Not before the chain is well under way, however slow the machine.
        while milliseconds() < end && fs::metadata(path).map_or(0, |metadata| metadata.len()) <= 10 {
            std::thread::sleep(Duration::from_millis(5));
        }
        return;
    }
    link(path, end);
}

/// So many of these chains at once, and a main process that stays.
fn chains(path: &str, count: usize) {
    let end = milliseconds() + 30_000;
    for _ in 0..count {
        if fork() == 0 {
            link(path, end);
        }
    }
    hang();
}

/// A link of a chain, and all after it.
fn link(path: &str, end: u128) -> ! {
    let mut file = appender(path);
    while milliseconds() < end {
        own_session();
        file.write_all(b".").expect("room");
        if fork() != 0 {
            end_fork();
        }
    }
    end_fork();
}

/// A helper that leaves a mark, stops itself, and leaves another should it be woken.
fn rest_itself(path: &str) {
    if fork() == 0 {
        let mut file = appender(path);
        file.write_all(b".").expect("room");
        raise(libc::SIGSTOP);
        file.write_all(b"w").expect("room");
        end_fork();
    }
    hang();
}

/// Appends a dot every millisecond; so do nested children.
fn count(path: &str, children: usize) {
    if children > 0 && fork() == 0 {
        count(path, children - 1);
        end_fork();
    }
    let end = milliseconds() + DEADLINE.as_millis();
    let mut file = appender(path);
    while milliseconds() < end {
        file.write_all(b".").expect("room");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn appender(path: &str) -> fs::File {
    OpenOptions::new().append(true).create(true).open(path).expect("the file")
}

/// `flood BYTES [lines|raw]`: writes that much without stopping.
fn flood(stream: &mut dyn Write, rest: &[&str]) {
    let mut left = number(rest, 0);
    let mut block = vec![b'x'; 64 * 1024];
    if rest.get(1) == Some(&"lines") {
        block.iter_mut().skip(79).step_by(80).for_each(|byte| *byte = b'\n');
    }
    while left > 0 {
        let count = left.min(block.len());
        if stream.write_all(&block[..count]).is_err() {
            return;
        }
        left -= count;
    }
    println!("\"ok\"");
}

/// `write stdout|stderr HEX…`: any bytes.
fn write_bytes(rest: &[&str]) {
    for pair in rest.chunks_exact(2) {
        let bytes: Vec<u8> = (0..pair[1].len())
            .step_by(2)
            .map(|at| u8::from_str_radix(&pair[1][at..at + 2], 16).expect("hex"))
            .collect();
        let result = match pair[0] {
            "stdout" => std::io::stdout().write_all(&bytes),
            _ => std::io::stderr().write_all(&bytes),
        };
        result.expect("a pipe");
    }
}

fn print_fds() {
    let mut names: Vec<i32> = fs::read_dir("/proc/self/fd")
        .expect("own descriptors")
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .collect();
    names.sort_unstable();
    // The last one is the folder that is being read.
    names.pop();
    println!("{names:?}");
}

fn echo_stdin() {
    let mut text = Vec::new();
    std::io::stdin().read_to_end(&mut text).expect("stdin");
    std::io::stdout().write_all(&text).expect("stdout");
}
