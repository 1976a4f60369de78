//! A child with one mode a way to die. Everything that forks or loops carries its own deadline of at most 60 s.
#![expect(unsafe_code, reason = "it has to fork, leave its session and abort, which no safe library offers")]
#![expect(clippy::exit, reason = "how it ends is what it is for")]
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "its output is what the tests read")]

use std::fs::OpenOptions;
use std::io::Write;
use std::process::exit;
use std::time::Duration;
use std::time::Instant;

const DEADLINE: Duration = Duration::from_secs(60);

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    let born = Instant::now();
    match words.as_slice() {
        ["exit", code] => exit(number(code)),
        ["exit-after", seconds] => sleep_until(born, Duration::from_secs_f64(seconds.parse().expect("seconds"))),
        ["abort"] => std::process::abort(),
        ["segv"] => raise(libc::SIGSEGV),
        ["raise", signal] => raise(number(signal)),
        ["hang"] => sleep_until(born, DEADLINE),
        ["ignore-term"] => {
            // SAFETY: ignoring a signal runs no code.
            unsafe { libc::signal(libc::SIGTERM, libc::SIG_IGN) };
            println!("ready");
            sleep_until(born, DEADLINE);
        }
        ["hog", total] => hog(number(total), born),
        ["hog-in-child", total] => {
            let child = fork();
            if child == 0 {
                hog(number(total), born);
                exit(0);
            }
            // SAFETY: waits for our own child; a null status is allowed.
            unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) };
        }
        // A grandchild in a session of its own that keeps our descriptors.
        ["daemon"] => leave(true, born),
        // A child that outlives us in our own group.
        ["fork-leave"] => leave(false, born),
        ["chain", file] => chain(file, born),
        ["append", file] => append(file, born),
        ["append-nested", file, depth] => nested(file, number(depth), born),
        ["flood-stdout", mib] => flood(std::io::stdout(), number(mib)),
        ["flood-stderr", mib] => flood(std::io::stderr(), number(mib)),
        ["print-fds"] => print_fds(),
        ["env", name] => println!("{}", std::env::var(name).unwrap_or_default()),
        ["limits"] => print!("{}", std::fs::read_to_string("/proc/self/limits").expect("limits")),
        ["status"] => print!("{}", std::fs::read_to_string("/proc/self/status").expect("status")),
        _ => {
            eprintln!("fault-child: unknown mode {words:?}");
            exit(64);
        }
    }
}

fn number(text: &str) -> i32 {
    text.parse().expect("a number")
}

fn sleep_until(born: Instant, limit: Duration) {
    while born.elapsed() < limit {
        std::thread::sleep(Duration::from_millis(10).min(limit.saturating_sub(born.elapsed())));
    }
}

fn raise(signal: i32) {
    // Rust's own handler for stack overflows would swallow the first SIGSEGV.
    // SAFETY: the default disposition runs no code.
    unsafe { libc::signal(signal, libc::SIG_DFL) };
    // SAFETY: raises a signal in this process.
    unsafe { libc::raise(signal) };
}

fn fork() -> i32 {
    // SAFETY: this process has one thread.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0, "fork failed");
    pid
}

/// Touches so many MiB, 4 at a time, says so, and then sleeps.
fn hog(mib: i32, born: Instant) {
    let mut held = Vec::new();
    for _ in 0..mib / 4 {
        held.push(vec![1_u8; 4 << 20]);
        std::thread::sleep(Duration::from_millis(2));
    }
    std::hint::black_box(&held);
    println!("full");
    sleep_until(born, DEADLINE);
}

fn leave(own_session: bool, born: Instant) {
    if fork() == 0 {
        if own_session {
            // SAFETY: no arguments.
            unsafe { libc::setsid() };
            if fork() != 0 {
                exit(0);
            }
        }
        sleep_until(born, DEADLINE);
        exit(0);
    }
    std::thread::sleep(Duration::from_millis(50));
}

/// A chain of double forks: every generation makes the next one in a session of its own, counts, and ends.
fn chain(file: &str, born: Instant) {
    if fork() != 0 {
        std::thread::sleep(Duration::from_millis(100));
        return;
    }
    let mut out = OpenOptions::new().create(true).append(true).open(file).expect("a file");
    while born.elapsed() < Duration::from_secs(20) {
        // SAFETY: no arguments.
        unsafe { libc::setsid() };
        out.write_all(b".").expect("room");
        if fork() != 0 {
            // SAFETY: ends this generation without running anything of the first one's.
            unsafe { libc::_exit(0) };
        }
    }
    // SAFETY: as above.
    unsafe { libc::_exit(0) };
}

fn append(file: &str, born: Instant) {
    let mut out = OpenOptions::new().create(true).append(true).open(file).expect("a file");
    while born.elapsed() < DEADLINE {
        out.write_all(b".").expect("room");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn nested(file: &str, depth: i32, born: Instant) {
    if depth > 0 && fork() == 0 {
        nested(file, depth - 1, born);
        exit(0);
    }
    append(file, born);
}

fn flood(mut out: impl Write, mib: i32) {
    for _ in 0..mib {
        out.write_all(&vec![b'x'; 1 << 20]).expect("a reader");
    }
}

fn print_fds() {
    let mut fds: Vec<i32> = std::fs::read_dir("/proc/self/fd")
        .expect("descriptors")
        .map(|entry| number(&entry.expect("entry").file_name().to_string_lossy()))
        .collect();
    fds.sort_unstable();
    // The last one is the folder being read.
    fds.pop();
    println!("{fds:?}");
}
