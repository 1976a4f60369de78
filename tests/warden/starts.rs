//! How children begin: what they get, and what is said when they cannot.

use super::*;

#[tokio::test]
async fn an_exit_code_comes_back_with_what_was_used() {
    let mut world = World::watchdog();
    let (key, _pipes) = world.run(&["exit", "7"]);
    let end = world.end(key).await;
    assert_eq!(end.exit, Some(ExitStatus::Exited(7)));
    assert_eq!((end.stage, end.enforcement), (Stage::AfterExec, Enforcement::Watchdog));
    assert_eq!((end.intent, end.start_failure, end.counters_readable), (None, None, false));
    assert!(end.leftovers.is_empty() && end.unkillable.is_empty());
    assert!(end.wall_s.is_some_and(|wall| wall < 10.0) && end.cpu_s.is_some() && end.major_faults.is_some());
    assert!(end.started_at <= end.ended_at && end.pid.is_some());
}

#[tokio::test]
async fn a_program_that_is_not_there_is_told_with_its_step_and_number() {
    let mut world = World::watchdog();
    let spec = StartSpec { argv: vec!["no-such-program".to_owned()], ..world.spec(&[]) };
    let (key, _pipes) = world.start(&spec);
    let end = world.end(key).await;
    let failure = end.start_failure.expect("a failure");
    assert_eq!((failure.step.as_str(), failure.errno), ("exec", libc::ENOENT));
    assert!(failure.message.contains("`no-such-program`"), "{}", failure.message);
    assert_eq!(end.stage, Stage::BeforeExec);
    assert!(!world.started.contains_key(&key));
}

#[tokio::test]
async fn every_step_that_fails_before_exec_has_its_name() {
    let mut world = World::watchdog();
    let base = world.spec(&["exit", "0"]);
    let cases = [
        (StartSpec { cwd: "/no/such/folder".into(), ..base.clone() }, "cwd", libc::ENOENT, Stage::BeforeExec),
        (StartSpec { argv: vec!["/etc/passwd".to_owned()], ..base.clone() }, "exec", libc::EACCES, Stage::BeforeExec),
        (StartSpec { user: Some("no-such-user".to_owned()), ..base.clone() }, "user", libc::ENOENT, Stage::NotForked),
        (StartSpec { require_cgroup: true, ..base.clone() }, "limit", libc::EOPNOTSUPP, Stage::NotForked),
        (StartSpec { argv: Vec::new(), ..base.clone() }, "exec", libc::ENOENT, Stage::NotForked),
        (StartSpec { argv: vec!["a\0b".to_owned()], ..base }, "exec", libc::EINVAL, Stage::NotForked),
    ];
    for (spec, step, errno, stage) in cases {
        let (key, _pipes) = world.start(&spec);
        let end = world.end(key).await;
        let failure = end.start_failure.expect(step);
        assert_eq!((failure.step.as_str(), failure.errno, end.stage), (step, errno, stage), "{}", failure.message);
    }
}

#[tokio::test]
async fn a_child_gets_three_descriptors_a_clean_environment_and_its_own_folder() {
    let mut world = World::watchdog();
    let (key, mut pipes) = world.run(&["print-fds"]);
    assert_eq!(read_all(&mut pipes.stdout).await, "[0, 1, 2]\n");
    world.end(key).await;
    let (key, mut pipes) = world.run(&["env", "TMPDIR"]);
    let folder = PathBuf::from(read_all(&mut pipes.stdout).await.trim());
    assert!(folder.starts_with(world.dir.path().join("tmp")), "{}", folder.display());
    world.end(key).await;
    assert!(!folder.exists());
    let (key, mut pipes) = world.run(&["env", "JOBVISOR_JOB_ID"]);
    assert_eq!(read_all(&mut pipes.stdout).await, "3\n");
    world.end(key).await;
    let (key, mut pipes) = world.run(&["env", "HOME"]);
    assert_eq!(read_all(&mut pipes.stdout).await, "\n");
    world.end(key).await;
}

#[tokio::test]
async fn a_child_has_no_new_privileges_no_ignored_and_no_blocked_signals() {
    let mut world = World::watchdog();
    let (key, mut pipes) = world.run(&["print-file", "/proc/self/status"]);
    let status = read_all(&mut pipes.stdout).await;
    world.end(key).await;
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or("");
        line.trim_start_matches(':').trim().to_owned()
    };
    assert_eq!(field("NoNewPrivs"), "1");
    assert_eq!(field("SigBlk"), "0000000000000000");
    // Rust's own start ignores SIGPIPE (13); nothing else is inherited.
    assert_eq!(field("SigIgn"), "0000000000001000");
}

#[tokio::test]
async fn a_child_makes_no_core_files_and_has_the_descriptor_limit_of_the_supervisor() {
    let mut world = World::watchdog();
    let (key, mut pipes) = world.run(&["limits"]);
    let theirs = read_all(&mut pipes.stdout).await;
    world.end(key).await;
    let line = |limits: &str, name: &str| limits.lines().find(|line| line.starts_with(name)).map(str::to_owned);
    let ours = std::fs::read_to_string("/proc/self/limits").unwrap();
    assert_eq!(line(&theirs, "Max open files"), line(&ours, "Max open files"));
    let core = line(&theirs, "Max core file size").expect("a line");
    assert!(core.split_whitespace().any(|word| word == "0"), "{core}");
}

#[tokio::test]
async fn another_user_is_taken_on_with_its_groups_and_dies_with_the_warden_all_the_same() {
    if !nix::unistd::geteuid().is_root() {
        eprintln!("skipped: only root can start as another user");
        return;
    }
    let mut world = World::watchdog();
    let spec = StartSpec {
        user: Some("nobody".to_owned()),
        cwd: "/".into(),
        ..world.spec(&["print-file", "/proc/self/status"])
    };
    std::fs::set_permissions(world.dir.path(), std::os::unix::fs::PermissionsExt::from_mode(0o711)).unwrap();
    let reachable = reachable_copy(world.dir.path());
    let program = reachable.to_string_lossy().into_owned();
    let spec =
        StartSpec { argv: vec![program.clone(), "print-file".to_owned(), "/proc/self/status".to_owned()], ..spec };
    let (key, mut pipes) = world.start(&spec);
    let status = read_all(&mut pipes.stdout).await;
    let end = world.end(key).await;
    assert_eq!(end.start_failure, None);
    let nobody = nix::unistd::User::from_name("nobody").unwrap().unwrap().uid;
    assert!(status.contains(&format!("Uid:\t{nobody}\t{nobody}\t{nobody}\t{nobody}")), "{status}");
    let spec = StartSpec { argv: vec![program, "hang".to_owned()], ..spec };
    let (key, _pipes) = world.start(&spec);
    let pid = world.running(key).await;
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(world.pid), nix::sys::signal::Signal::SIGKILL).unwrap();
    wait_until("the parent-death signal", || !alive(pid)).await;
}

/// The child program where every user may run it.
fn reachable_copy(dir: &Path) -> PathBuf {
    let copy = dir.join("fault-child");
    std::fs::copy(child_program(), &copy).unwrap();
    std::fs::set_permissions(&copy, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    copy
}

#[tokio::test]
async fn five_hundred_short_starts_leave_no_descriptors_zombies_or_folders() {
    let mut world = World::watchdog();
    let (key, _pipes) = world.run(&["exit", "0"]);
    world.end(key).await;
    let open = |pid: i32| std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count();
    let before = open(world.pid);
    for _ in 0..50 {
        let batch: Vec<_> = (0..10).map(|_| world.run(&["exit", "0"])).collect();
        for (key, pipes) in batch {
            drop(pipes);
            assert_eq!(world.end(key).await.exit, Some(ExitStatus::Exited(0)));
        }
    }
    wait_until("as many descriptors as before", || open(world.pid) == before).await;
    let children = format!("/proc/{0}/task/{0}/children", world.pid);
    assert_eq!(std::fs::read_to_string(children).unwrap().trim(), "");
    assert_eq!(std::fs::read_dir(world.dir.path().join("tmp")).unwrap().count(), 0);
}

#[tokio::test]
async fn a_program_that_is_no_warden_is_refused_with_what_it_did() {
    let dir = tempfile::tempdir().unwrap();
    let setup = WardenSetup { state_dir: dir.path().to_owned(), memory_budget: 1, watchdog_only: true };
    let missing = launch_program(&Program::At("/no/such/jobvisor".into()), &setup, &[]);
    assert!(
        matches!(&missing, Err(WardenError::Exec { step: "exec", source, .. })
        if source.kind() == io::ErrorKind::NotFound),
        "{missing:?}"
    );
    let other = launch_program(&Program::At("/bin/true".into()), &setup, &[]);
    assert!(matches!(other, Err(WardenError::NoHello { .. })), "{other:?}");
}

#[tokio::test]
async fn an_inherited_lock_is_held_as_long_as_the_warden_lives() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("lock");
    let take = || {
        let file = std::fs::File::create(&path).unwrap();
        let taken = file.try_lock().is_ok();
        (file, taken)
    };
    let (file, taken) = take();
    assert!(taken);
    let setup = WardenSetup { state_dir: dir.path().to_owned(), memory_budget: 1, watchdog_only: true };
    let launched = launch_program(&warden_program(), &setup, &[file.as_fd()]).unwrap();
    drop(OwnedFd::from(file));
    assert!(!take().1, "the warden does not hold the lock");
    let (handle, mut events) = launched.attach().unwrap();
    drop(handle);
    assert!(matches!(events.next().await, Some(WardenEvent::Lost { exit: Some(ExitStatus::Exited(0)), .. })));
    assert!(take().1, "the lock outlived the warden");
}
