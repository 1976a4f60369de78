//! Plain files that stand in for the kernel: formats, decisions, and what a missing file means.

use std::fs;
use std::path::Path;
use std::path::PathBuf;

use nix::mount::MsFlags;
use nix::mount::mount;
use nix::sched::CloneFlags;
use nix::sched::unshare;
use nix::unistd::geteuid;

use super::fixture;
use super::names;
use super::own_pid;
use super::setup;
use crate::domain::evidence::Counters;
use crate::domain::units::Bytes;
use crate::kernel::KernelError;
use crate::kernel::cgroup::Detected;
use crate::kernel::cgroup::KillState;
use crate::kernel::cgroup::Leaf;
use crate::kernel::cgroup::Roots;
use crate::kernel::cgroup::detect;
use crate::kernel::cgroup::memory_limit_of_own_group;
use crate::kernel::cgroup::nonce;
use crate::kernel::cgroup::own;
use crate::kernel::cgroup::own::Home;
use crate::kernel::cgroup::parse;
use crate::kernel::cgroup::v1_leaf::Folders;
use crate::kernel::cgroup::v1_leaf::V1Leaf;
use crate::kernel::cgroup::v2_leaf;
use crate::kernel::cgroup::v2_leaf::V2Leaf;

const HYBRID_MOUNTS: &str = "\
31 23 0:28 / {}/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
35 31 0:32 / {}/cgroup/memory rw,relatime - cgroup cgroup rw,memory
37 31 0:34 / {}/cgroup/freezer rw,relatime - cgroup cgroup rw,freezer
39 31 0:36 / {}/cgroup/pids rw,relatime - cgroup cgroup rw,pids
41 31 0:38 / {}/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
";
const HYBRID_OWN: &str = "8:pids:/\n6:freezer:/\n4:memory:/app\n1:name=systemd:/\n0::/\n";

fn detect_without_probe(roots: &Roots) -> Detected {
    detect(roots, &setup("1-1"), &mut |_| panic!("no leaf can be made here"))
}

/// The notes with the temporary folder cut out.
fn notes(detected: &Detected, folder: &Path) -> Vec<String> {
    detected.notes.iter().map(|note| note.replace(folder.to_str().unwrap(), "")).collect()
}

fn hybrid() -> (tempfile::TempDir, Roots) {
    fixture(&[
        ("proc/self/mountinfo", HYBRID_MOUNTS),
        ("proc/self/cgroup", HYBRID_OWN),
        ("cgroup/unified/cgroup.controllers", "hugetlb\n"),
        ("cgroup/unified/cgroup.procs", "1\n2\n"),
        ("cgroup/memory/app/cgroup.procs", "1\n"),
        ("cgroup/freezer/cgroup.procs", "1\n"),
        ("cgroup/pids/cgroup.procs", "1\n"),
    ])
}

#[test]
fn a_v2_tree_without_the_memory_controller_is_not_taken_for_v2() {
    let (folder, roots) = hybrid();
    let detected = detect_without_probe(&roots);
    assert_eq!(notes(&detected, folder.path())[0], "cgroup v2: no memory controller at /cgroup/unified");
}

#[test]
fn a_v1_group_whose_limit_cannot_be_written_is_refused_and_nothing_is_left_behind() {
    let (folder, roots) = hybrid();
    let detected = detect_without_probe(&roots);
    assert!(detected.tree.is_none());
    let expected = "cgroup v1: cannot write `/cgroup/memory/app/jobvisor.1-1/memory.limit_in_bytes` (134217728): \
                    No such file or directory (os error 2)";
    assert_eq!(notes(&detected, folder.path())[1], expected);
    for group in ["memory/app", "freezer", "pids"] {
        assert_eq!(names(&roots.cgroup.join(group)), [""; 0], "left in {group}");
    }
}

#[test]
fn without_any_group_tree_the_notes_say_so() {
    let (folder, roots) = fixture(&[("proc/self/cgroup", ""), ("proc/self/mountinfo", ""), ("cgroup/", "")]);
    let detected = detect_without_probe(&roots);
    assert!(detected.tree.is_none());
    let expected = ["cgroup v2: not mounted below /cgroup", "cgroup v1: no memory controller at /cgroup"];
    assert_eq!(notes(&detected, folder.path()), expected);
}

#[test]
fn v1_memory_without_a_freezer_is_refused() {
    let (folder, roots) = fixture(&[("proc/self/cgroup", "4:memory:/\n"), ("cgroup/memory/cgroup.procs", "")]);
    let detected = detect_without_probe(&roots);
    assert_eq!(notes(&detected, folder.path())[1], "cgroup v1: no freezer controller at /cgroup");
}

fn v2_with_a_stranger() -> (tempfile::TempDir, Roots) {
    fixture(&[
        ("proc/self/cgroup", "0::/box\n"),
        ("proc/77/comm", "sshd\n"),
        ("cgroup/cgroup.controllers", "cpu memory pids\n"),
        ("cgroup/box/cgroup.controllers", "memory pids\n"),
        ("cgroup/box/cgroup.procs", &format!("{}\n77\n", own_pid())),
    ])
}

#[test]
fn as_root_a_group_with_strangers_is_refused_before_anything_is_touched() {
    if !geteuid().is_root() {
        println!("skipped: only root has the right to do harm here");
        return;
    }
    let (folder, roots) = v2_with_a_stranger();
    let detected = detect_without_probe(&roots);
    let expected = "cgroup v2: /cgroup/box is not marked as delegated and holds 1 other process: pid 77 `sshd`; \
                    give jobvisor a group of its own (`Delegate=yes`, and no shell around it)";
    assert_eq!(notes(&detected, folder.path())[0], expected);
    assert_eq!(names(&roots.cgroup.join("box")), [""; 0]);
}

#[test]
fn a_v2_folder_without_kernel_files_is_refused_and_nothing_is_left_behind() {
    let (folder, roots) = v2_with_a_stranger();
    fs::write(roots.cgroup.join("box/cgroup.procs"), "").unwrap();
    let detected = detect_without_probe(&roots);
    assert!(detected.tree.is_none());
    let expected =
        "cgroup v2: cannot read `/cgroup/box/cgroup.subtree_control`: No such file or directory (os error 2)";
    assert_eq!(notes(&detected, folder.path())[0], expected);
    assert_eq!(names(&roots.cgroup.join("box")), [""; 0]);
}

#[test]
fn a_read_only_tree_is_refused_with_the_kernels_reason() {
    // A thread of its own: it gets a mount namespace of its own, which no other test must share.
    std::thread::spawn(refuse_read_only_tree).join().unwrap();
}

fn refuse_read_only_tree() {
    if unshare(CloneFlags::CLONE_NEWNS).is_err() {
        println!("skipped: no right to a mount namespace of its own");
        return;
    }
    let none: Option<&str> = None;
    mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none).unwrap();
    let (folder, roots) = v2_with_a_stranger();
    fs::write(roots.cgroup.join("box/cgroup.procs"), "").unwrap();
    fs::write(roots.cgroup.join("box/cgroup.subtree_control"), "memory pids").unwrap();
    mount(Some(&roots.cgroup), &roots.cgroup, none, MsFlags::MS_BIND, none).unwrap();
    let read_only = MsFlags::MS_BIND | MsFlags::MS_REMOUNT | MsFlags::MS_RDONLY;
    mount(none, &roots.cgroup, none, read_only, none).unwrap();
    let detected = detect_without_probe(&roots);
    let expected = "cgroup v2: cannot create `/cgroup/box/jobs.1-1`: Read-only file system (os error 30)";
    assert_eq!(notes(&detected, folder.path())[0], expected);
    nix::mount::umount(&roots.cgroup).unwrap();
}

#[test]
fn a_container_without_a_cgroup_namespace_finds_its_group_below_the_mount() {
    let (_folder, roots) = fixture(&[
        ("proc/self/mountinfo", "41 31 0:38 /docker/ab {}/cgroup ro - cgroup2 cgroup rw,nsdelegate\n"),
        ("proc/self/cgroup", "0::/docker/ab/inner\n"),
        ("cgroup/inner/cgroup.procs", ""),
    ]);
    let home = own::v2(&roots).unwrap();
    assert_eq!((home.group.clone(), home.visible(&home.group)), (roots.cgroup.join("inner"), "/inner".to_owned()));
}

#[test]
fn a_group_outside_of_its_mount_is_never_guessed() {
    for own in ["0::/elsewhere\n", "0::/docker/ab/../../x\n", "0::/docker/ab/gone (deleted)\n"] {
        let (folder, roots) = fixture(&[
            ("proc/self/mountinfo", "41 31 0:38 /docker/ab {}/cgroup ro - cgroup2 cgroup rw\n"),
            ("proc/self/cgroup", own),
            ("cgroup/x/cgroup.procs", ""),
        ]);
        let note = notes(&detect_without_probe(&roots), folder.path())[0].clone();
        assert!(note.ends_with("is not visible below /cgroup"), "{own:?}: {note}");
    }
}

#[test]
fn mountinfo_is_read_with_its_escapes_and_optional_fields() {
    let line = r"36 35 98:0 /mnt\0401 /a\040b\134c rw,noatime master:1 propagate_from:2 - cgroup cgroup rw,cpu,cpuacct";
    let mount = parse::mounts(line).remove(0);
    assert_eq!((mount.root.as_str(), mount.point), ("/mnt 1", PathBuf::from(r"/a b\c")));
    assert_eq!((mount.kind.as_str(), mount.options), ("cgroup", ["rw", "cpu", "cpuacct"].map(str::to_owned).to_vec()));
}

#[test]
fn keyed_files_are_read_by_whole_keys() {
    let text = "oom 3\noom_kill 4\nbroken\nbad x\n";
    assert_eq!(
        ["oom", "oom_kill", "oom_group_kill", "bad"].map(|key| parse::keyed(text, key)),
        [Some(3), Some(4), None, None]
    );
}

#[test]
fn a_pid_of_another_namespace_is_never_signalled() {
    assert_eq!(parse::pids("0\n12\n-1\n\n13\n"), [12, 13]);
}

#[test]
fn stat_is_read_past_a_name_with_brackets() {
    let text = "42 (a) Z 1 (b) S 1 42 42 0 -1 4194304 1 2 3 4 5 6 7 8 20 0 1 0 987654 1 2";
    assert_eq!(parse::state_and_start(text), Some(('S', 987_654)));
    assert_eq!(parse::state_and_start("42 (short) S 1"), None);
}

/// A leaf of plain files: only what was given exists.
fn v2_leaf(files: &[(&str, &str)]) -> (tempfile::TempDir, V2Leaf) {
    let (folder, roots) = fixture(files);
    for needed in ["cgroup.procs", "memory.current"] {
        let file = roots.cgroup.join("base/jobs/leaf").join(needed);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, "").unwrap();
    }
    let home = Home { mount: roots.cgroup.clone(), group: roots.cgroup.join("base") };
    let leaf = V2Leaf::open(&home, roots.cgroup.join("base/jobs/leaf")).unwrap();
    (folder, leaf)
}

#[test]
fn i3_a_counter_that_is_missing_is_none_and_never_zero_on_v2() {
    let (_folder, leaf) = v2_leaf(&[]);
    // Whether attributes are offered depends on the file system that the fixture is on.
    let counters = Counters { oomd_ooms: None, ..leaf.counters() };
    assert_eq!(counters, Counters::default());
    assert_eq!((leaf.usage(), leaf.cpu_seconds()), (None, None));
    for ancestor in leaf.ancestors() {
        assert_eq!((ancestor.limit, ancestor.oom_before, ancestor.oom_after), (None, None, None));
    }
}

#[test]
fn without_local_events_a_kill_is_known_but_not_whose_limit_it_was() {
    let (_folder, leaf) =
        v2_leaf(&[("cgroup/base/jobs/leaf/memory.events", "low 0\nhigh 1\nmax 9\noom 2\noom_kill 3\n")]);
    let counters = leaf.counters();
    assert_eq!((counters.oom, counters.oom_kill), (None, Some(3)));
    assert_eq!((counters.oom_group_kill, counters.limit_hits, counters.high), (None, Some(9), Some(1)));
}

#[test]
fn a_kill_in_a_group_that_the_job_made_below_its_leaf_is_counted() {
    let (_folder, leaf) = v2_leaf(&[
        ("cgroup/base/jobs/leaf/memory.events", "oom 1\noom_kill 2\noom_group_kill 1\n"),
        ("cgroup/base/jobs/leaf/memory.events.local", "oom 0\noom_kill 0\noom_group_kill 0\n"),
    ]);
    let counters = leaf.counters();
    assert_eq!((counters.oom, counters.oom_kill, counters.oom_group_kill), (Some(1), Some(2), Some(1)));
}

#[test]
fn ancestors_are_named_nearest_first_and_read_by_their_local_events() {
    let (folder, leaf) = v2_leaf(&[
        ("cgroup/base/jobs/memory.max", "1048576\n"),
        ("cgroup/base/jobs/memory.events", "oom 7\n"),
        ("cgroup/base/jobs/memory.events.local", "oom 1\n"),
        ("cgroup/base/memory.max", "max\n"),
    ]);
    let mut ancestors = leaf.ancestors();
    assert_eq!(
        ancestors.iter().map(|ancestor| ancestor.path.as_str()).collect::<Vec<_>>(),
        ["/base/jobs", "/base", "/"]
    );
    assert_eq!(ancestors.iter().map(|ancestor| ancestor.limit).collect::<Vec<_>>(), [Some(Bytes::mib(1)), None, None]);
    fs::write(folder.path().join("cgroup/base/jobs/memory.events.local"), "oom 2\n").unwrap();
    leaf.read_ancestors_again(&mut ancestors);
    let ooms: Vec<_> = ancestors.iter().map(|ancestor| (ancestor.oom_before, ancestor.oom_after)).collect();
    assert_eq!(ooms, [(Some(1), Some(2)), (None, None), (None, None)]);
}

#[test]
fn i3_a_counter_that_is_missing_is_none_and_never_zero_on_v1() {
    let (_folder, roots) = fixture(&[
        ("cgroup/memory/leaf/cgroup.procs", ""),
        ("cgroup/memory/leaf/memory.usage_in_bytes", ""),
        ("cgroup/freezer/leaf/cgroup.procs", ""),
    ]);
    let home = Home { mount: roots.cgroup.join("memory"), group: roots.cgroup.join("memory") };
    let folders =
        Folders { memory: roots.cgroup.join("memory/leaf"), freezer: roots.cgroup.join("freezer/leaf"), pids: None };
    let leaf = V1Leaf::open(&home, folders).unwrap();
    assert_eq!(leaf.counters(), Counters::default());
    assert_eq!((leaf.usage(), leaf.cpu_seconds()), (None, None));
}

#[test]
fn v1_counters_are_summed_over_sub_groups() {
    let (_folder, roots) = fixture(&[
        ("cgroup/leaf/cgroup.procs", "11\n12\n"),
        ("cgroup/leaf/memory.usage_in_bytes", "4096\n"),
        ("cgroup/leaf/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 1\n"),
        ("cgroup/leaf/a/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n"),
        ("cgroup/leaf/a/b/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 4\n"),
        ("cgroup/leaf/a/b/cgroup.procs", "12\n13\n"),
        ("cgroup/leaf/memory.stat", "cache 1\nrss 2\nshmem 3\ntotal_cache 10\ntotal_rss 20\n"),
    ]);
    let home = Home { mount: roots.cgroup.clone(), group: roots.cgroup.clone() };
    let leaf = roots.cgroup.join("leaf");
    let leaf = V1Leaf::open(&home, Folders { memory: leaf.clone(), freezer: leaf, pids: None }).unwrap();
    let counters = leaf.counters();
    assert_eq!(
        (counters.oom_kill, counters.anon, counters.file, counters.shmem),
        (Some(7), Some(20), Some(10), Some(3))
    );
    assert_eq!((leaf.procs().unwrap(), leaf.usage(), leaf.procs_files().len()), (vec![11, 12, 13], Some(4096), 1));
}

#[test]
fn a_group_that_is_gone_is_empty_and_removed() {
    let gone = tempfile::tempdir().unwrap().path().join("leaf");
    assert_eq!(v2_leaf::kill_group(&gone).unwrap(), KillState::Empty);
    let folders = Folders { memory: gone.join("m"), freezer: gone.join("f"), pids: None };
    assert_eq!(folders.kill().unwrap(), KillState::Empty);
    folders.remove().unwrap();
}

#[test]
fn i4_a_freeze_is_asked_for_again_and_believed_only_when_the_kernel_says_so() {
    let (folder, _leaf) = v2_leaf(&[
        ("cgroup/base/jobs/leaf/cgroup.freeze", "0\n"),
        ("cgroup/base/jobs/leaf/cgroup.events", "populated 1\nfrozen 0\n"),
    ]);
    let group = folder.path().join("cgroup/base/jobs/leaf");
    assert!(!v2_leaf::set_frozen(&group, true).unwrap());
    fs::write(group.join("cgroup.events"), "populated 1\nfrozen 1\n").unwrap();
    assert!(v2_leaf::set_frozen(&group, true).unwrap());
    assert_eq!(
        fs::read_to_string(group.join("cgroup.freeze")).unwrap(),
        "1\n",
        "the file is a plain one: only written over"
    );
    assert!(!v2_leaf::set_frozen(&group, false).unwrap());
    fs::write(group.join("cgroup.events"), "populated 1\n").unwrap();
    assert!(matches!(v2_leaf::set_frozen(&group, true), Err(KernelError::Content { .. })));
    fs::remove_file(group.join("cgroup.freeze")).unwrap();
    let error = v2_leaf::set_frozen(&group, true).unwrap_err();
    assert_eq!(error.errno(), Some(libc::ENOENT), "a kernel without a freezer is no success");
    // A v1 group that is gone has nobody left to freeze.
    let gone = Folders { memory: group.join("m"), freezer: group.join("f"), pids: None };
    assert!(gone.freeze().unwrap() && gone.thaw().unwrap());
}

#[test]
fn an_existing_group_is_never_taken_over_and_others_made_with_it_are_removed() {
    let (_folder, roots) = fixture(&[("cgroup/memory/leaf/", ""), ("cgroup/freezer/", "")]);
    let folders = Folders { memory: roots.cgroup.join("memory"), freezer: roots.cgroup.join("freezer"), pids: None };
    let error = folders.child("leaf").make().unwrap_err();
    assert_eq!(error.errno(), Some(libc::EEXIST));
    assert_eq!((names(&folders.memory), names(&folders.freezer)), (vec!["leaf".to_owned()], vec![]));
}

#[test]
fn the_limit_of_our_own_group_is_the_smallest_on_the_way_up() {
    let (_folder, roots) = fixture(&[
        ("proc/self/cgroup", "4:memory:/a/b\n0::/a/b\n"),
        ("cgroup/cgroup.controllers", "memory\n"),
        ("cgroup/memory.max", "1000\n"),
        ("cgroup/a/memory.max", "300\n"),
        ("cgroup/a/b/memory.max", "max\n"),
        ("cgroup/memory/cgroup.procs", ""),
        ("cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"),
        ("cgroup/memory/a/memory.limit_in_bytes", "400\n"),
        ("cgroup/memory/a/b/memory.limit_in_bytes", "9223372036854771712\n"),
    ]);
    assert_eq!(memory_limit_of_own_group(&roots), Some(300));
    fs::write(roots.cgroup.join("a/memory.max"), "max\n").unwrap();
    assert_eq!(memory_limit_of_own_group(&roots), Some(400));
    fs::write(roots.cgroup.join("memory/a/memory.limit_in_bytes"), "9223372036854771712\n").unwrap();
    fs::write(roots.cgroup.join("memory.max"), "max\n").unwrap();
    assert_eq!(memory_limit_of_own_group(&roots), None);
}

#[test]
fn a_nonce_names_a_process_by_pid_start_and_pid_namespace() {
    let made = nonce(&Roots::default(), own_pid()).unwrap();
    let parts: Vec<&str> = made.split('-').collect();
    assert_eq!((parts[0], parts.len()), (own_pid().to_string().as_str(), 3), "{made}");
    assert!(!super::super::nonce::is_dead(&Roots::default(), &made));
}

#[test]
fn a_warden_is_dead_only_when_that_is_proven() {
    let stat = |state: &str| format!("5 (warden) {state} 1 5 5 0 -1 0 1 2 3 4 5 6 7 8 20 0 1 0 255 1 2");
    let (folder, roots) = fixture(&[
        ("proc/self/cgroup", ""),
        ("proc/5/stat", &stat("S")),
        ("proc/6/stat", &stat("Z")),
        ("proc/7/stat", "nonsense"),
    ]);
    let dead = |text: &str| super::super::nonce::is_dead(&roots, text);
    assert_eq!(["5-ff", "5-fe", "6-ff", "7-ff", "8-ff"].map(dead), [false, true, true, false, true]);
    // Not nonces at all, and one of a pid namespace that cannot be compared with ours.
    assert_eq!(["", "x-1", "5", "8-", "0-1", "8-ff-1-1", "8-ff-f00"].map(dead), [false; 7]);
    fs::remove_dir_all(folder.path().join("proc")).unwrap();
    assert!(!super::super::nonce::is_dead(&roots, "8-ff"), "without a proc file system nothing is proven");
}

#[test]
fn an_error_names_the_verb_the_path_and_what_was_written() {
    let error = crate::kernel::cgroup::files::write(Path::new("/nonexistent/memory.max"), "17").unwrap_err();
    assert_eq!(error.to_string(), "cannot write `/nonexistent/memory.max` (17)");
    assert!(matches!(error, KernelError::File { .. }), "{error:?}");
}
