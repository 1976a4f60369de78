//! The real v2 tree, where it has the memory controller. Each test runs in a process of its own, because detection moves the
//! process: as root it goes into a fresh group below the mount point, otherwise it stays in its own, which must be delegated.

use std::env;
use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::os::unix::process::parent_id;
use std::path::Path;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::thread;
use std::time::Duration;

use nix::sys::signal::Signal;
use nix::unistd::geteuid;

use super::HOG;
use super::JOBS_MEMORY;
use super::MIB;
use super::bystander;
use super::dead_nonce;
use super::end;
use super::freeze_and_kill;
use super::is_dead;
use super::limits;
use super::names;
use super::no_op;
use super::own_pid;
use super::run_in;
use super::wait_until;
use crate::domain::evidence::Enforcement;
use crate::domain::units::Bytes;
use crate::kernel::KernelError;
use crate::kernel::cgroup::Detected;
use crate::kernel::cgroup::Entry;
use crate::kernel::cgroup::Roots;
use crate::kernel::cgroup::Setup;
use crate::kernel::cgroup::Tree;
use crate::kernel::cgroup::detect;
use crate::kernel::cgroup::files;
use crate::kernel::cgroup::memory_limit_of_own_group;
use crate::kernel::cgroup::nonce;
use crate::kernel::cgroup::own;
use crate::kernel::cgroup::v2_leaf;

/// Set in the process that runs one test alone.
const ALONE: &str = "JOBVISOR_TEST_ALONE";

/// The group in which one test runs.
struct Ground {
    base: PathBuf,
    before: PathBuf,
}

impl Ground {
    /// Runs `body` in a process and (as root) a group of its own; prints why where that is impossible.
    fn run(test: &str, body: fn(&Ground)) {
        if env::var_os(ALONE).is_some() {
            return Self::alone(body);
        }
        static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
        let _turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(why) = why_not() {
            println!("skipped: {why}");
            return;
        }
        let name = format!("{}::{test}", module_path!().split_once("::").unwrap().1);
        let mut command = Command::new(env::current_exe().unwrap());
        command.args(["--exact", &name, "--nocapture", "--test-threads=1"]).env(ALONE, "1");
        let output = command.output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && text.contains("1 passed"), "{text}");
        println!("{text}");
    }

    fn alone(body: fn(&Ground)) {
        let home = own::v2(&Roots::default()).unwrap();
        let base = if geteuid().is_root() {
            let base = home.mount.join(format!("jvtest.{}", own_pid()));
            files::make_group(&base).unwrap();
            enter(&base);
            base
        } else if home.group.ends_with("supervisor") {
            home.group.parent().unwrap().to_owned()
        } else {
            home.group.clone()
        };
        let ground = Self { base, before: home.group };
        body(&ground);
    }

    /// Processes that detection may move: as root this one, else also the test process that started it.
    fn setup(&self, nonce: &str) -> Setup {
        let mut own_pids = vec![own_pid()];
        if !geteuid().is_root() {
            own_pids.push(i32::try_from(parent_id()).unwrap());
        }
        Setup { own_pids, nonce: nonce.to_owned(), jobs_memory: JOBS_MEMORY }
    }

    fn own_nonce(&self) -> String {
        nonce(&Roots::default(), own_pid()).unwrap()
    }

    fn detect(&self) -> Detected {
        detect(&Roots::default(), &self.setup(&self.own_nonce()), &mut no_op)
    }

    fn tree(&self) -> Box<dyn Tree> {
        let detected = self.detect();
        detected.tree.unwrap_or_else(|| panic!("{:?}", detected.notes))
    }

    fn leaf(&self, name: &str) -> PathBuf {
        self.base.join(format!("jobs.{}", self.own_nonce())).join(name)
    }
}

impl Drop for Ground {
    fn drop(&mut self) {
        if geteuid().is_root() {
            enter(&self.before);
            // A failed test leaves processes behind: they are given a while to die, so that the groups can go.
            for _ in 0..100 {
                if v2_leaf::kill_group(&self.base).is_ok() && files::remove_group_tree(&self.base).is_ok() {
                    return;
                }
                thread::sleep(Duration::from_millis(10));
            }
        }
    }
}

fn enter(group: &Path) {
    files::write(&group.join("cgroup.procs"), "0").unwrap();
}

/// Why the tests cannot run here.
fn why_not() -> Option<String> {
    let home = match own::v2(&Roots::default()) {
        Ok(home) => home,
        Err(error) => return Some(error.to_string()),
    };
    let offers = |file: PathBuf| {
        files::read_optional(&file).is_some_and(|text| text.split_whitespace().any(|name| name == "memory"))
    };
    if geteuid().is_root() {
        let probe = home.mount.join(format!("jvtest.{}", own_pid()));
        if !offers(home.mount.join("cgroup.subtree_control")) {
            return Some("the v2 tree hands out no memory controller".to_owned());
        }
        return files::make_group(&probe)
            .and_then(|()| files::remove_group(&probe))
            .err()
            .map(|error| error.to_string());
    }
    let base = if home.group.ends_with("supervisor") { home.group.parent()?.to_owned() } else { home.group };
    if !offers(base.join("cgroup.controllers")) {
        return Some("our own v2 group has no memory controller".to_owned());
    }
    files::open_to_write(&base.join("cgroup.subtree_control")).err().map(|error| error.to_string())
}

#[test]
fn a_leaf_is_limited_as_asked_and_read_back() {
    Ground::run("a_leaf_is_limited_as_asked_and_read_back", |ground| {
        let detected = ground.detect();
        assert_eq!(detected.notes, [""; 0]);
        let tree = detected.tree.unwrap();
        assert_eq!(tree.enforcement(), Enforcement::CgroupV2);
        assert_eq!(own::v2(&Roots::default()).unwrap().group, ground.base.join("supervisor"));
        let leaf = tree.make_leaf("a", limits(20 * MIB + 5)).unwrap();
        let path = ground.leaf("a");
        assert!(path.to_str().unwrap().contains(&tree.jobs_group()), "{}", tree.jobs_group());
        let read = |file: &str| files::read_optional(&path.join(file)).map(|text| text.trim().to_owned());
        assert_eq!(read("memory.max"), Some((20 * MIB).to_string()));
        assert_eq!(read("memory.oom.group").as_deref(), Some("1"));
        assert_eq!(read("pids.max").as_deref(), Some("64"));
        assert_eq!(read("memory.swap.max").unwrap_or_else(|| "0".to_owned()), "0");
        assert_eq!(own::v2_limit(path.parent().unwrap()), Some(JOBS_MEMORY));
        assert!(matches!(leaf.entry(), Entry::CloneInto(_)));
        let counters = leaf.counters();
        assert_eq!((counters.oom, counters.oom_kill, counters.oom_group_kill), (Some(0), Some(0), Some(0)));
        assert_eq!((counters.limit_hits, counters.high, counters.pids_max_hits), (Some(0), Some(0), Some(0)));
        assert!(counters.anon.is_some() && counters.file.is_some() && counters.shmem.is_some(), "{counters:?}");
        assert!(leaf.cpu_seconds().is_some());
        assert_eq!(tree.make_leaf("a", limits(MIB)).unwrap_err().errno(), Some(libc::EEXIST));
        assert!(tree.remove().is_err(), "a leaf is left");
        leaf.remove().unwrap();
        leaf.remove().unwrap();
        tree.remove().unwrap();
        assert_eq!(names(&ground.base), ["supervisor"]);
    });
}

#[test]
fn i4_nobody_runs_in_a_frozen_leaf_and_it_can_be_killed() {
    Ground::run("i4_nobody_runs_in_a_frozen_leaf_and_it_can_be_killed", |ground| {
        let tree = ground.tree();
        let empty = tree.make_leaf("empty", limits(MIB)).unwrap();
        wait_until("an empty leaf is frozen", || empty.freeze().unwrap());
        empty.remove().unwrap();
        freeze_and_kill(&*tree.make_leaf("still", limits(64 * MIB)).unwrap());
        tree.remove().unwrap();
        assert_eq!(names(&ground.base), ["supervisor"]);
    });
}

#[test]
fn i3_a_hog_killed_by_its_own_limit_moves_the_leafs_counters_and_no_ancestors() {
    Ground::run("i3_a_hog_killed_by_its_own_limit_moves_the_leafs_counters_and_no_ancestors", |ground| {
        let tree = ground.tree();
        let leaf = tree.make_leaf("hog", limits(16 * MIB)).unwrap();
        let mut ancestors = leaf.ancestors();
        // The shell waits for its hog; the whole group dies with it.
        let mut main = run_in(&*leaf, "tail -n 1 /dev/zero; exit 0");
        assert_eq!(main.wait().unwrap().signal(), Some(Signal::SIGKILL as i32));
        let counters = leaf.counters();
        leaf.read_ancestors_again(&mut ancestors);
        assert!(counters.oom > Some(0) && counters.oom_kill > Some(0), "{counters:?}");
        assert_eq!(counters.oom_group_kill, Some(1));
        assert!(counters.peak.is_none_or(|peak| peak >= 15 * MIB), "{counters:?}");
        assert!(leaf.cpu_seconds() > Some(0.0));
        assert!(ancestors.iter().all(|ancestor| ancestor.oom_before == ancestor.oom_after), "{ancestors:?}");
        assert_eq!((ancestors[0].path.clone(), ancestors[0].limit), (tree.jobs_group(), Some(Bytes(JOBS_MEMORY))));
        wait_until("the leaf is removed", || leaf.remove().is_ok());
        tree.remove().unwrap();
    });
}

#[test]
fn i3_an_ancestors_limit_moves_the_ancestors_oom_and_not_the_leafs() {
    Ground::run("i3_an_ancestors_limit_moves_the_ancestors_oom_and_not_the_leafs", |ground| {
        let mut setup = ground.setup(&ground.own_nonce());
        setup.jobs_memory = 16 * MIB;
        let detected = detect(&Roots::default(), &setup, &mut no_op);
        let tree = detected.tree.unwrap_or_else(|| panic!("{:?}", detected.notes));
        let leaf = tree.make_leaf("greedy", limits(64 * MIB)).unwrap();
        let mut ancestors = leaf.ancestors();
        let mut main = run_in(&*leaf, HOG);
        assert_eq!(main.wait().unwrap().signal(), Some(Signal::SIGKILL as i32));
        leaf.read_ancestors_again(&mut ancestors);
        let counters = leaf.counters();
        assert_eq!(counters.oom, Some(0), "{counters:?}");
        assert!(counters.oom_kill > Some(0), "{counters:?}");
        assert_eq!(ancestors[0].oom_before, Some(0));
        assert!(ancestors[0].oom_after > Some(0), "{ancestors:?}");
        end(&*leaf, &mut main);
        tree.remove().unwrap();
    });
}

#[test]
fn i8_a_tree_with_a_daemon_and_groups_of_its_own_is_killed_and_its_leaf_removed() {
    Ground::run("i8_a_tree_with_a_daemon_and_groups_of_its_own_is_killed_and_its_leaf_removed", |ground| {
        let tree = ground.tree();
        let leaf = tree.make_leaf("tree", limits(24 * MIB)).unwrap();
        let inner = ground.leaf("tree").join("x/y");
        let enter = format!("mkdir -p {inner} && echo 0 > {inner}/cgroup.procs", inner = inner.display());
        let script = format!("setsid sh -c 'sleep 61 & sleep 62' & (sleep 63 &); {enter} && sleep 64");
        let mut main = run_in(&*leaf, &script);
        wait_until("all six run, two of them below", || {
            leaf.procs().unwrap().len() == 6 && files::members(&inner).unwrap().len() == 2
        });
        let pids = leaf.procs().unwrap();
        assert_eq!(leaf.remove().unwrap_err().errno(), Some(libc::EBUSY));
        let status = end(&*leaf, &mut main);
        assert_eq!(status.signal(), Some(Signal::SIGKILL as i32));
        assert!(pids.iter().all(|pid| is_dead(*pid)), "{pids:?}");
        tree.remove().unwrap();
        assert_eq!(names(&ground.base), ["supervisor"]);
    });
}

#[test]
fn i8_a_frozen_tree_dies_too() {
    Ground::run("i8_a_frozen_tree_dies_too", |ground| {
        let tree = ground.tree();
        let leaf = tree.make_leaf("frozen", limits(24 * MIB)).unwrap();
        let mut main = run_in(&*leaf, "sleep 61 & sleep 62");
        wait_until("all three run", || leaf.procs().unwrap().len() == 3);
        files::write(&ground.leaf("frozen").join("cgroup.freeze"), "1").unwrap();
        wait_until("it is frozen", || files::keyed(&ground.leaf("frozen").join("cgroup.events"), "frozen") == Some(1));
        assert_eq!(end(&*leaf, &mut main).signal(), Some(Signal::SIGKILL as i32));
        assert_eq!(files::keyed(&ground.leaf("frozen").join("cgroup.events"), "frozen"), None);
        tree.remove().unwrap();
    });
}

#[test]
fn a_fork_that_the_pids_limit_refuses_is_counted() {
    Ground::run("a_fork_that_the_pids_limit_refuses_is_counted", |ground| {
        let tree = ground.tree();
        let mut few = limits(24 * MIB);
        few.pids = 2;
        let leaf = tree.make_leaf("few", few).unwrap();
        let mut main = run_in(&*leaf, "sleep 61 & sleep 62 & sleep 63 & wait");
        wait_until("a fork was refused", || leaf.counters().pids_max_hits > Some(0));
        end(&*leaf, &mut main);
        tree.remove().unwrap();
    });
}

/// The tree as it was: our own group holds us again, hands out nothing and has nothing below.
fn assert_untouched(ground: &Ground) {
    assert_eq!(names(&ground.base), [""; 0]);
    assert_eq!(files::read(&ground.base.join("cgroup.subtree_control")).unwrap().trim(), "");
    assert_eq!(own::v2(&Roots::default()).unwrap().group, ground.base);
}

#[test]
fn a_probe_that_fails_leaves_everything_as_it_was() {
    Ground::run("a_probe_that_fails_leaves_everything_as_it_was", |ground| {
        if ground.before.ends_with("supervisor") || !geteuid().is_root() {
            println!("skipped: an earlier test has made this group ready");
            return;
        }
        let mut child = None;
        let detected = detect(&Roots::default(), &ground.setup("1-1"), &mut |leaf| {
            child = Some(run_in(leaf, "sleep 61 & sleep 62"));
            wait_until("it runs", || leaf.procs().unwrap().len() == 3);
            Err(KernelError::Call { call: "clone3", source: std::io::Error::from_raw_os_error(libc::EPERM) })
        });
        assert!(detected.tree.is_none());
        assert_eq!(detected.notes[0], "cgroup v2: clone3 failed: Operation not permitted (os error 1)");
        assert!(!detected.notes.iter().any(|note| note.contains("left behind")), "{:?}", detected.notes);
        assert_eq!(child.unwrap().wait().unwrap().signal(), Some(Signal::SIGKILL as i32));
        assert_untouched(ground);
    });
}

#[test]
fn strangers_are_never_moved_marked_as_delegated_or_not() {
    Ground::run("strangers_are_never_moved_marked_as_delegated_or_not", |ground| {
        if !geteuid().is_root() {
            println!("skipped: only root could move strangers");
            return;
        }
        let mut stranger = bystander();
        let pid = i32::try_from(stranger.id()).unwrap();
        wait_until("the stranger is a sleep", || {
            fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name == "sleep\n")
        });
        let is_refused = |says: &str| {
            let refused = ground.detect();
            let expected = format!("cgroup v2: {} {says} 1 other process: pid {pid} `sleep`", ground.base.display());
            assert!(refused.tree.is_none() && refused.notes[0].starts_with(&expected), "{:?}", refused.notes);
            assert_eq!(files::members(&ground.base).unwrap().len(), 2, "both are where they were");
            assert_untouched(ground);
        };
        is_refused("is not marked as delegated and holds");
        assert!(set_attribute(&ground.base, "trusted.delegate", "1"), "the kernel keeps trusted attributes on groups");
        is_refused("holds");
        stranger.kill().unwrap();
        stranger.wait().unwrap();
    });
}

fn set_attribute(path: &Path, name: &str, value: &str) -> bool {
    let code = "import os, sys; os.setxattr(sys.argv[1], sys.argv[2], sys.argv[3].encode())";
    Command::new("python3")
        .args(["-c", code])
        .arg(path)
        .args([name, value])
        .status()
        .is_ok_and(|status| status.success())
}

#[test]
fn the_mark_of_systemd_oomd_is_read_from_leaf_and_ancestors() {
    Ground::run("the_mark_of_systemd_oomd_is_read_from_leaf_and_ancestors", |ground| {
        let tree = ground.tree();
        let leaf = tree.make_leaf("marked", limits(24 * MIB)).unwrap();
        let mut ancestors = leaf.ancestors();
        assert_eq!(leaf.counters().oomd_ooms, Some(0), "no mark is a true 0 where marks can be kept");
        for group in [ground.leaf("marked"), ground.leaf("marked").parent().unwrap().to_owned()] {
            assert!(set_attribute(&group, "user.oomd_ooms", "1"), "the kernel keeps user attributes on groups");
        }
        leaf.read_ancestors_again(&mut ancestors);
        assert_eq!(leaf.counters().oomd_ooms, Some(1));
        assert_eq!((ancestors[0].oomd, ancestors[1].oomd.0), ((Some(0), Some(1)), Some(0)));
        leaf.remove().unwrap();
        tree.remove().unwrap();
    });
}

#[test]
fn a_restart_in_place_builds_beside_the_supervisor_and_sweeps_what_a_dead_warden_left() {
    Ground::run("a_restart_in_place_builds_beside_the_supervisor_and_sweeps_what_a_dead_warden_left", |ground| {
        let dead = detect(&Roots::default(), &ground.setup(&dead_nonce()), &mut no_op).tree.unwrap();
        let orphan = dead.make_leaf("orphan", limits(24 * MIB)).unwrap();
        let mut main = run_in(&*orphan, "setsid sleep 61 & sleep 62");
        wait_until("all three run", || orphan.procs().unwrap().len() == 3);

        let tree = ground.tree();
        let mine = tree.make_leaf("mine", limits(24 * MIB)).unwrap();
        wait_until("the dead warden's groups are gone", || {
            tree.sweep(10).unwrap();
            !ground.base.join(format!("jobs.{}", dead_nonce())).exists()
        });
        assert_eq!(main.wait().unwrap().signal(), Some(Signal::SIGKILL as i32));
        assert_eq!(names(&ground.base), [format!("jobs.{}", ground.own_nonce()), "supervisor".to_owned()]);
        mine.remove().unwrap();
        tree.remove().unwrap();
    });
}

#[test]
fn the_limit_of_our_own_group_is_found() {
    Ground::run("the_limit_of_our_own_group_is_found", |ground| {
        if !geteuid().is_root() {
            println!("skipped: the limit of a delegated group is its owner's");
            return;
        }
        files::write(&ground.base.join("memory.max"), &(512 * MIB).to_string()).unwrap();
        let tree = ground.tree();
        assert_eq!(memory_limit_of_own_group(&Roots::default()), Some(512 * MIB));
        tree.remove().unwrap();
    });
}
