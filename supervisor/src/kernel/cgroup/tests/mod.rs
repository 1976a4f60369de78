//! Fixtures for three kinds of tests: plain files that stand in for the kernel, the real v1 trees, and the real v2 tree.
//!
//! A test of a real tree that cannot run here prints `skipped: why` and returns.

mod fake;
mod real_v1;
mod real_v2;

use std::fs;
use std::os::fd::AsRawFd;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::path::PathBuf;
use std::process::Child;
use std::process::Command;
use std::process::ExitStatus;
use std::process::Stdio;
use std::thread;
use std::time::Duration;
use std::time::Instant;

use tempfile::TempDir;

use super::KillState;
use super::Leaf;
use super::LeafLimits;
use super::Roots;
use super::Setup;
use crate::domain::clock;
use crate::kernel::KernelError;

const MIB: u64 = 1024 * 1024;

/// The budget of all jobs in these tests.
const JOBS_MEMORY: u64 = 128 * MIB;

/// A group tree and a proc folder as a literal: `(path below the temporary folder, content)`; a path with a slash at its end is
/// a folder. `{}` in a content is the temporary folder.
fn fixture(files: &[(&str, &str)]) -> (TempDir, Roots) {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().to_str().unwrap().to_owned();
    for (path, content) in files {
        let file = folder.path().join(path);
        if path.ends_with('/') {
            fs::create_dir_all(&file).unwrap();
            continue;
        }
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, content.replace("{}", &root)).unwrap();
    }
    let roots = Roots { cgroup: folder.path().join("cgroup"), proc: folder.path().join("proc") };
    (folder, roots)
}

fn setup(nonce: &str) -> Setup {
    Setup { own_pids: vec![own_pid()], nonce: nonce.to_owned(), jobs_memory: JOBS_MEMORY }
}

fn own_pid() -> i32 {
    i32::try_from(std::process::id()).unwrap()
}

fn limits(memory: u64) -> LeafLimits {
    LeafLimits { memory, pids: 64 }
}

/// A process that entered the leaf through its `cgroup.procs` files and then ran this shell script.
#[expect(
    clippy::disallowed_methods,
    reason = "the kernel's part is tested here without the product's own way to spawn"
)]
fn run_in(leaf: &dyn Leaf, script: &str) -> Child {
    let files = leaf.procs_files();
    let files = files.iter().map(|file| fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd())).unwrap());
    let script = format!("for file; do echo 0 > \"$file\" || exit 99; done; {script}");
    let mut command = Command::new("sh");
    command.args(["-c", &script, "sh"]).args(files).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.spawn().unwrap()
}

/// A process outside every leaf, for a minute at most.
#[expect(
    clippy::disallowed_methods,
    reason = "the kernel's part is tested here without the product's own way to spawn"
)]
fn bystander() -> Child {
    Command::new("sleep").arg("60").stdin(Stdio::null()).spawn().unwrap()
}

/// Runs until its memory limit: `tail` keeps the one endless line of `/dev/zero`.
const HOG: &str = "exec tail -n 1 /dev/zero";

/// The probe that a warden would run, made of a shell.
fn no_op(leaf: &dyn Leaf) -> Result<(), KernelError> {
    let status = run_in(leaf, "exit 7").wait().unwrap();
    assert_eq!(status.code(), Some(7), "the probe did not run in its leaf");
    Ok(())
}

fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let start: Instant = clock::monotonic();
    while !condition() {
        assert!(start.elapsed() < Duration::from_secs(20), "not within 20 s: {what}");
        thread::sleep(Duration::from_millis(2));
    }
}

/// Freezes a leaf with a counter in it, lets another process enter, thaws, freezes again and kills: a frozen leaf keeps
/// everybody from running, and nobody from dying.
fn freeze_and_kill(leaf: &dyn Leaf) {
    let folder = tempfile::tempdir().unwrap();
    let (dots, late) = (folder.path().join("dots"), folder.path().join("late"));
    let length = || fs::metadata(&dots).map_or(0, |metadata| metadata.len());
    let still = || {
        let before = length();
        thread::sleep(Duration::from_millis(150));
        assert_eq!(length(), before);
    };
    // Ends by itself should the test fail.
    let count = "n=0; while [ $n -lt 3000 ]; do echo >> $1; sleep 0.01; n=$((n + 1)); done";
    let script = count.replace("$1", dots.to_str().unwrap());
    let mut main = run_in(leaf, &format!("({script}) & {script}"));
    wait_until("it counts", || length() > 4);
    wait_until("it is frozen", || leaf.freeze().unwrap());
    still();
    let mut second = run_in(leaf, &format!("echo > {}; exec sleep 0.01", late.display()));
    let pid = i32::try_from(second.id()).unwrap();
    wait_until("another enters", || leaf.procs().unwrap().contains(&pid));
    still();
    assert!(!late.exists(), "it ran in a frozen leaf");
    wait_until("all stand still again", || leaf.freeze().unwrap());
    wait_until("it is thawed", || leaf.thaw().unwrap());
    assert!(second.wait().unwrap().success() && late.exists());
    let before = length();
    wait_until("it counts again", || length() > before + 4);
    wait_until("it is frozen again", || leaf.freeze().unwrap());
    let before = length();
    let status = end(leaf, &mut main);
    assert_eq!((status.signal(), length()), (Some(libc::SIGKILL), before), "it ran once more");
}

/// Kills everything in a leaf, reaps its main process and removes it.
fn end(leaf: &dyn Leaf, main: &mut Child) -> ExitStatus {
    wait_until("the leaf is empty", || leaf.kill().unwrap() == KillState::Empty);
    let status = main.wait().unwrap();
    wait_until("the leaf is removed", || leaf.remove().is_ok());
    status
}

/// Whether a process is gone or a zombie.
fn is_dead(pid: i32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"));
    stat.map_or(true, |stat| super::parse::state_and_start(&stat).is_none_or(|(state, _)| state == 'Z'))
}

/// The nonce of a process that lived once: ours, begun at another time.
fn dead_nonce() -> String {
    format!("{}-1", own_pid())
}

/// What is in a folder, as names.
fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> = super::files::children(folder).into_iter().map(name).collect();
    names.sort();
    names
}

fn name(path: PathBuf) -> String {
    path.file_name().unwrap().to_str().unwrap().to_owned()
}
