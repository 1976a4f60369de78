//! The real v1 trees: a group of the test's own below ours in each, real limits, real deaths.

use std::fs;
use std::os::unix::fs::symlink;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use nix::sys::signal::Signal;
use tempfile::TempDir;

use super::HOG;
use super::JOBS_MEMORY;
use super::MIB;
use super::dead_nonce;
use super::end;
use super::freeze_and_kill;
use super::is_dead;
use super::limits;
use super::names;
use super::no_op;
use super::own_pid;
use super::run_in;
use super::setup;
use super::wait_until;
use crate::domain::evidence::Enforcement;
use crate::domain::units::Bytes;
use crate::kernel::KernelError;
use crate::kernel::cgroup::Detected;
use crate::kernel::cgroup::Entry;
use crate::kernel::cgroup::Roots;
use crate::kernel::cgroup::Tree;
use crate::kernel::cgroup::detect;
use crate::kernel::cgroup::files;
use crate::kernel::cgroup::nonce;
use crate::kernel::cgroup::own;
use crate::kernel::cgroup::v1_leaf::Folders;

/// A proc folder that names a fresh group as our own, so that tests do not see each other; the groups are the kernel's.
struct Ground {
    roots: Roots,
    own: Folders,
    _proc: TempDir,
}

impl Ground {
    /// `None`, with the reason printed, where there is no writable v1 memory and freezer.
    fn new() -> Option<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("jvtest.{}.{}", own_pid(), COUNT.fetch_add(1, Ordering::Relaxed));
        let real = Roots::default();
        let homes = ["memory", "freezer", "pids"].map(|controller| own::v1(&real, controller));
        let [Ok(memory), Ok(freezer), pids] = homes else {
            println!("skipped: no v1 memory and freezer trees");
            return None;
        };
        let pids = pids.ok();
        let all = Folders {
            memory: memory.group.clone(),
            freezer: freezer.group.clone(),
            pids: pids.as_ref().map(|home| home.group.clone()),
        };
        let own = all.child(&name);
        if let Err(error) = own.make() {
            println!("skipped: {error}");
            return None;
        }
        let line = |controller: &str, path: &Path, mount: &Path| {
            format!("1:{controller}:/{}\n", path.strip_prefix(mount).unwrap().display())
        };
        let mut text = line("memory", &own.memory, &memory.mount) + &line("freezer", &own.freezer, &freezer.mount);
        if let (Some(home), Some(path)) = (&pids, &own.pids) {
            text.push_str(&line("pids", path, &home.mount));
        }
        let proc = tempfile::tempdir().unwrap();
        fs::create_dir_all(proc.path().join("self")).unwrap();
        fs::write(proc.path().join("self/cgroup"), text).unwrap();
        symlink(format!("/proc/{}", own_pid()), proc.path().join(own_pid().to_string())).unwrap();
        Some(Self { roots: Roots { cgroup: real.cgroup, proc: proc.path().to_owned() }, own, _proc: proc })
    }

    fn detect(&self) -> Detected {
        detect(&self.roots, &setup(&nonce(&self.roots, own_pid()).unwrap()), &mut no_op)
    }

    fn tree(&self) -> Box<dyn Tree> {
        let detected = self.detect();
        detected.tree.unwrap_or_else(|| panic!("{:?}", detected.notes))
    }

    /// The leaf's folders, by its name.
    fn folders(&self, leaf: &str) -> Folders {
        self.own.child(&format!("jobvisor.{}", nonce(&self.roots, own_pid()).unwrap())).child(leaf)
    }

    fn assert_nothing_left(&self) {
        for folder in self.own.distinct() {
            assert_eq!(names(folder), [""; 0], "left in {}", folder.display());
        }
    }
}

impl Drop for Ground {
    fn drop(&mut self) {
        // A failed test leaves processes behind: they are given a while to die, so that the groups can go.
        for _ in 0..100 {
            if self.own.kill().is_ok() && self.own.remove().is_ok() {
                return;
            }
            thread::sleep(Duration::from_millis(10));
        }
    }
}

#[test]
fn a_leaf_is_limited_as_asked_and_read_back() {
    let Some(ground) = Ground::new() else { return };
    let detected = ground.detect();
    assert_eq!(detected.notes.len(), 1, "{:?}", detected.notes);
    let tree = detected.tree.unwrap();
    assert_eq!(tree.enforcement(), Enforcement::CgroupV1);
    let leaf = tree.make_leaf("a", limits(20 * MIB + 5)).unwrap();
    let folders = ground.folders("a");
    assert!(format!("{}", folders.memory.display()).contains(&tree.jobs_group()), "{}", tree.jobs_group());
    assert_eq!(own::v1_limit(&folders.memory), Some(20 * MIB));
    let both = folders.memory.join("memory.memsw.limit_in_bytes");
    if both.exists() {
        assert_eq!(files::number(&both), Some(20 * MIB + files::page_size()));
    }
    assert_eq!(folders.pids.as_ref().and_then(|pids| files::number(&pids.join("pids.max"))), Some(64));
    assert!(matches!(leaf.entry(), Entry::Write));
    let counters = leaf.counters();
    assert_eq!((counters.oom, counters.oom_kill, counters.limit_hits), (None, Some(0), Some(0)));
    assert!(counters.anon.is_some() && counters.file.is_some() && counters.peak.is_some(), "{counters:?}");
    assert_eq!(tree.make_leaf("a", limits(MIB)).unwrap_err().errno(), Some(libc::EEXIST));
    assert!(tree.remove().is_err(), "a leaf is left");
    leaf.remove().unwrap();
    leaf.remove().unwrap();
    tree.remove().unwrap();
    ground.assert_nothing_left();
}

#[test]
fn i3_a_hog_killed_by_its_own_limit_moves_the_leafs_counter_by_the_time_it_is_reaped() {
    let Some(ground) = Ground::new() else { return };
    let tree = ground.tree();
    let leaf = tree.make_leaf("hog", limits(24 * MIB)).unwrap();
    let mut main = run_in(&*leaf, HOG);
    let status = main.wait().unwrap();
    let counters = leaf.counters();
    assert_eq!(status.signal(), Some(Signal::SIGKILL as i32), "{status}");
    assert_eq!(counters.oom_kill, Some(1), "{counters:?}");
    assert_eq!(counters.peak, Some(24 * MIB));
    assert!(counters.limit_hits > Some(0), "{counters:?}");
    wait_until("the leaf is removed", || leaf.remove().is_ok());
    tree.remove().unwrap();
}

#[test]
fn i3_a_kill_from_outside_leaves_the_counter_alone() {
    let Some(ground) = Ground::new() else { return };
    let tree = ground.tree();
    let leaf = tree.make_leaf("victim", limits(24 * MIB)).unwrap();
    let mut main = run_in(&*leaf, "exec sleep 60");
    wait_until("it has entered", || leaf.procs().unwrap().len() == 1);
    leaf.kill().unwrap();
    assert_eq!(main.wait().unwrap().signal(), Some(Signal::SIGKILL as i32));
    assert_eq!(leaf.counters().oom_kill, Some(0));
    end(&*leaf, &mut main);
}

#[test]
fn an_ancestors_limit_moves_the_ancestors_failcnt_and_the_victims_oom_kill() {
    let Some(ground) = Ground::new() else { return };
    let tree = ground.tree();
    let leaf = tree.make_leaf("greedy", limits(4 * JOBS_MEMORY)).unwrap();
    let mut ancestors = leaf.ancestors();
    assert_eq!(ancestors[0].path, tree.jobs_group());
    assert_eq!((ancestors[0].limit, ancestors[0].oom_before), (Some(Bytes(JOBS_MEMORY)), Some(0)));
    assert_eq!(ancestors.last().unwrap().path, "/");
    let mut main = run_in(&*leaf, HOG);
    assert_eq!(main.wait().unwrap().signal(), Some(Signal::SIGKILL as i32));
    leaf.read_ancestors_again(&mut ancestors);
    assert_eq!((leaf.counters().oom_kill, leaf.counters().limit_hits), (Some(1), Some(0)));
    assert!(ancestors[0].oom_after > Some(0), "{ancestors:?}");
    wait_until("the leaf is removed", || leaf.remove().is_ok());
}

#[test]
fn i8_a_tree_with_a_daemon_in_a_session_of_its_own_is_killed_and_its_leaf_removed() {
    let Some(ground) = Ground::new() else { return };
    let tree = ground.tree();
    let leaf = tree.make_leaf("tree", limits(24 * MIB)).unwrap();
    let mut main = run_in(&*leaf, "setsid sh -c 'sleep 61 & sleep 62' & (sleep 63 &); sleep 64");
    wait_until("all six run", || leaf.procs().unwrap().len() == 6);
    let pids = leaf.procs().unwrap();
    let busy = leaf.remove().unwrap_err();
    assert_eq!(busy.errno(), Some(libc::EBUSY));
    end(&*leaf, &mut main);
    assert!(pids.iter().all(|pid| is_dead(*pid)), "{pids:?}");
    tree.remove().unwrap();
    ground.assert_nothing_left();
}

#[test]
fn i4_nobody_runs_in_a_frozen_leaf_and_it_can_be_killed() {
    let Some(ground) = Ground::new() else { return };
    let tree = ground.tree();
    freeze_and_kill(&*tree.make_leaf("still", limits(64 * MIB)).unwrap());
    tree.remove().unwrap();
    ground.assert_nothing_left();
}

#[test]
fn i8_a_frozen_tree_dies_too() {
    let Some(ground) = Ground::new() else { return };
    let tree = ground.tree();
    let leaf = tree.make_leaf("frozen", limits(24 * MIB)).unwrap();
    let mut main = run_in(&*leaf, "sleep 61 & sleep 62");
    wait_until("all three run", || leaf.procs().unwrap().len() == 3);
    let state = ground.folders("frozen").freezer.join("freezer.state");
    wait_until("it is frozen", || {
        files::write(&state, "FROZEN").unwrap();
        files::read(&state).unwrap().trim() == "FROZEN"
    });
    let status = end(&*leaf, &mut main);
    assert_eq!(status.signal(), Some(Signal::SIGKILL as i32));
}

#[test]
fn i8_a_tree_that_forks_at_full_speed_is_killed() {
    let Some(ground) = Ground::new() else { return };
    let tree = ground.tree();
    let leaf = tree.make_leaf("storm", limits(64 * MIB)).unwrap();
    // Four chains of processes that replace themselves; each ends by itself after 20 s at the latest.
    let chain = "end=$(($(date +%s) + 20)); while [ $(date +%s) -lt $end ]; do (setsid true &); done";
    let script = format!("for n in 1 2 3 4; do setsid sh -c '{chain}' & done; wait");
    let mut main = run_in(&*leaf, &script);
    wait_until("the storm is on", || leaf.procs().unwrap().len() > 5);
    end(&*leaf, &mut main);
    tree.remove().unwrap();
    ground.assert_nothing_left();
}

#[test]
fn groups_that_the_job_made_below_its_leaf_are_seen_counted_killed_and_removed() {
    let Some(ground) = Ground::new() else { return };
    let tree = ground.tree();
    let leaf = tree.make_leaf("nest", limits(24 * MIB)).unwrap();
    let memory = ground.folders("nest").memory;
    let inner = memory.join("x/y");
    let enter = format!("mkdir -p {inner} && echo 0 > {inner}/cgroup.procs", inner = inner.display());
    let mut main = run_in(&*leaf, &format!("sleep 61 & {enter} && (tail -n 1 /dev/zero; sleep 62)"));
    wait_until("the kernel has killed the hog", || leaf.counters().oom_kill == Some(1));
    assert_eq!(files::keyed(&memory.join("memory.oom_control"), "oom_kill"), Some(0), "it died in the group below");
    assert!(leaf.procs().unwrap().len() >= 3, "{:?}", leaf.procs());
    end(&*leaf, &mut main);
    tree.remove().unwrap();
    ground.assert_nothing_left();
}

#[test]
fn a_probe_that_fails_leaves_nothing_behind() {
    let Some(ground) = Ground::new() else { return };
    let mut child = None;
    let detected = detect(&ground.roots, &setup("1-1"), &mut |leaf| {
        child = Some(run_in(leaf, "sleep 61 & sleep 62"));
        wait_until("it runs", || leaf.procs().unwrap().len() == 3);
        Err(KernelError::Call { call: "clone3", source: std::io::Error::from_raw_os_error(libc::EPERM) })
    });
    assert!(detected.tree.is_none());
    assert_eq!(detected.notes[1], "cgroup v1: clone3 failed: Operation not permitted (os error 1)");
    assert_eq!(child.unwrap().wait().unwrap().signal(), Some(Signal::SIGKILL as i32));
    ground.assert_nothing_left();
}

#[test]
fn only_groups_of_a_dead_warden_are_swept() {
    let Some(ground) = Ground::new() else { return };
    let dead = detect(&ground.roots, &setup(&dead_nonce()), &mut no_op).tree.unwrap();
    let orphan = dead.make_leaf("orphan", limits(24 * MIB)).unwrap();
    let second = dead.make_leaf("empty", limits(24 * MIB)).unwrap();
    let mut main = run_in(&*orphan, "setsid sleep 61 & sleep 62");
    wait_until("all three run", || orphan.procs().unwrap().len() == 3);
    let other = format!("{}-1-1", own_pid());
    ground.own.child(&format!("jobvisor.{other}")).make().unwrap();

    let tree = ground.tree();
    let mine = tree.make_leaf("mine", limits(24 * MIB)).unwrap();
    assert!(tree.sweep(1).unwrap() <= 1, "never more than asked");
    wait_until("the dead warden's groups are gone", || {
        tree.sweep(10).unwrap();
        !Path::new(&ground.own.memory.join(format!("jobvisor.{}", dead_nonce()))).exists()
    });
    assert_eq!(main.wait().unwrap().signal(), Some(Signal::SIGKILL as i32));
    assert!(second.procs().unwrap().is_empty());
    let other = format!("jobvisor.{other}");
    assert!(names(&ground.own.memory).contains(&other), "a warden of another pid namespace is not ours to judge");
    mine.remove().unwrap();
    tree.remove().unwrap();
    assert_eq!(names(&ground.own.memory), [other]);
}

#[test]
fn memory_use_is_read_through_the_open_file() {
    let Some(ground) = Ground::new() else { return };
    let tree = ground.tree();
    let leaf = tree.make_leaf("use", limits(24 * MIB)).unwrap();
    let before = leaf.usage().unwrap();
    let mut main = run_in(&*leaf, "exec sleep 60");
    wait_until("the use is charged", || leaf.usage().unwrap() > before);
    end(&*leaf, &mut main);
    assert_eq!(leaf.usage(), None, "the group is gone: not 0");
}

#[test]
fn on_this_host_the_own_group_is_found_and_limited_leaves_work() {
    let Some(_ground) = Ground::new() else { return };
    let roots = Roots::default();
    let own = nonce(&roots, own_pid()).unwrap();
    let detected = detect(&roots, &setup(&own), &mut no_op);
    let tree = detected.tree.unwrap_or_else(|| panic!("{:?}", detected.notes));
    assert_eq!(tree.enforcement(), Enforcement::CgroupV1);
    assert!(tree.jobs_group().ends_with(&format!("/jobvisor.{own}")), "{}", tree.jobs_group());
    tree.remove().unwrap();
}
