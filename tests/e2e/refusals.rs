//! What is refused, with which exit status and which words.

use std::process::Command;

use serde_json::json;
use support::world::Lane;
use support::world::World;
use support::world::program;

const GOOD: &str = "[database]\nurl = \"sqlite://jobs.db\"\n\n[kind.fault]\ncommand = [\"{fault}\", \"exit\", \"0\"]\n";

/// Exit status, stdout and stderr.
fn told(world: &World, arguments: &[&str]) -> (Option<i32>, String, String) {
    told_by(&mut world.command(arguments))
}

fn told_by(command: &mut Command) -> (Option<i32>, String, String) {
    let output = command.output().expect("the program runs");
    let words = |bytes| String::from_utf8(bytes).expect("text");
    (output.status.code(), words(output.stdout), words(output.stderr))
}

#[test]
fn a_wrong_configuration_is_exit_status_2_with_every_error_its_line_and_a_hint() {
    let world = World::new(Lane::Auto, GOOD);
    let wrong = "[kind.a]\ncommand = [\"true\"]\nmemroy = \"64MiB\"\ntimeout = \"soon\"\n\n[schedule.s]\nkind = \"b\"\ncron = \"@startup\"\n";
    std::fs::write(world.path("jobs.toml"), wrong).expect("a file");
    for arguments in [&["check"][..], &["run"], &["enqueue", "a"], &["list"]] {
        let (code, stdout, stderr) = told(&world, arguments);
        assert_eq!((code, stdout.as_str()), (Some(2), ""), "{arguments:?}: {stderr}");
        for (line, word) in [(3, "memroy"), (4, "soon"), (7, "`b`")] {
            let error = stderr.lines().find(|text| text.contains(&format!("jobs.toml:{line}: ")));
            assert!(error.is_some_and(|error| error.contains(word)), "line {line} of {arguments:?}: {stderr}");
        }
        assert!(stderr.matches("hint: ").count() >= 3, "{stderr}");
    }
    assert!(!world.path("jobs.db").exists(), "nothing was begun");
}

#[test]
fn what_is_planned_is_refused_as_not_yet_and_never_ignored() {
    let world = World::new(Lane::Auto, GOOD);
    let planned = [
        ("sqlite://jobs.db", "mode = \"prefork\"", "", 5),
        ("sqlite://jobs.db", "mode = \"forkserver\"", "", 5),
        ("sqlite://jobs.db", "on_oom = { grow = 2.0, max = \"4GiB\" }", "", 5),
        ("sqlite://jobs.db", "cpu_weight = 50", "", 5),
        ("sqlite://jobs.db", "", "[schedule.s]\nkind = \"k\"\ncron = \"0 3 * * *\"", 8),
        ("sqlite://jobs.db", "", "[schedule.s]\nkind = \"k\"\ncron = \"@every 5m\"", 8),
        ("sqlite://jobs.db", "", "[kind.l]\nhttp = { url = \"https://example.com\" }", 7),
    ];
    for (url, key, rest, line) in planned {
        let file = format!("[database]\nurl = \"{url}\"\n[kind.k]\ncommand = [\"true\"]\n{key}\n{rest}\n");
        std::fs::write(world.path("jobs.toml"), &file).expect("a file");
        for command in ["check", "run"] {
            let (code, _, stderr) = told(&world, &[command]);
            assert_eq!(code, Some(2), "{file}{stderr}");
            assert!(stderr.contains(&format!("jobs.toml:{line}: ")) && stderr.contains("not yet"), "{file}{stderr}");
        }
    }
}

#[test]
fn commands_that_only_read_are_exit_status_3_without_a_database_and_make_none() {
    let world = World::new(Lane::Auto, GOOD);
    for arguments in [
        &["inspect", "1"][..],
        &["list"],
        &["wait", "1"],
        &["cancel", "1"],
        &["retry", "1"],
        &["stats"],
        &["kinds"],
        &["supervisors"],
        &["pause", "fault"],
        &["resume", "fault"],
    ] {
        let (code, stdout, stderr) = told(&world, arguments);
        assert_eq!((code, stdout.as_str()), (Some(3), ""), "{arguments:?}: {stderr}");
        assert!(stderr.contains("jobs.db"), "{stderr}");
        assert!(!world.path("jobs.db").exists(), "{arguments:?} made a database");
    }
}

#[test]
fn a_database_that_does_not_answer_is_exit_status_3_and_its_password_is_told_to_nobody() {
    let world = World::new(Lane::Auto, GOOD);
    let nobody = "postgres://app:s3cret@127.0.0.1:1/app";
    for arguments in [
        &["list"][..],
        &["inspect", "1"],
        &["enqueue", "fault"],
        &["stats"],
        &["supervisors"],
        &["pause", "fault"],
        &["migrate"],
        &["init"],
    ] {
        let (code, stdout, stderr) = told_by(world.command(arguments).env("JOBVISOR_DATABASE_URL", nobody));
        assert_eq!((code, stdout.as_str()), (Some(3), ""), "{arguments:?}: {stderr}");
        assert!(!stderr.contains("s3cret"), "{arguments:?}: {stderr}");
    }
    let (code, stdout, stderr) = told_by(world.command(&["doctor"]).env("JOBVISOR_DATABASE_URL", nobody));
    assert!(code == Some(1) && stdout.contains("database postgres://app@127.0.0.1:1/app: "), "{stdout}{stderr}");
    assert!(!stdout.contains("s3cret") && !stderr.contains("s3cret"), "{stdout}{stderr}");
}

#[test]
fn a_password_on_the_command_line_is_refused_wherever_it_stands() {
    let world = World::new(Lane::Auto, GOOD);
    for url in ["postgres://app:s3cret@127.0.0.1:1/app", "postgres://app@127.0.0.1:1/app?password=s3cret"] {
        for arguments in [&["--database", url, "list"][..], &["list", "--database", url], &["run", "--database", url]] {
            let (code, stdout, stderr) = told(&world, arguments);
            assert_eq!((code, stdout.as_str()), (Some(2), ""), "{stderr}");
            assert!(stderr.contains("JOBVISOR_DATABASE_URL") && stderr.contains("PGPASSFILE"), "{stderr}");
            assert!(!stderr.contains("s3cret"), "{stderr}");
        }
    }
    for (name, url, word) in [
        ("--database", "postgres://app:s3cret@a,b/app", "several hosts"),
        ("JOBVISOR_DATABASE_URL", "postgres://app:s3cret%@h/app", "hexadecimal"),
        ("JOBVISOR_DATABASE_URL", "jobs.db", "no scheme"),
    ] {
        let mut command = match name {
            "--database" => world.command(&["list", "--database", url]),
            variable => {
                let mut command = world.command(&["list"]);
                command.env(variable, url);
                command
            }
        };
        let (code, _, stderr) = told_by(&mut command);
        assert_eq!(code, Some(2), "{stderr}");
        assert!(stderr.contains(&format!("{name}: ")) && stderr.contains(word), "{stderr}");
        assert!(!stderr.contains("s3cret"), "{stderr}");
    }
}

#[test]
fn a_wait_that_runs_out_of_time_is_exit_status_4() {
    let world = World::new(Lane::Auto, GOOD);
    let id = world.enqueue("fault", &json!({})).to_string();
    assert_eq!(told(&world, &["wait", &id, "--timeout", "100ms"]).0, Some(4));
    world.until_idle();
    let (code, stdout, _) = told(&world, &["wait", &id, "--timeout", "100ms"]);
    assert_eq!((code, stdout), (Some(0), format!("{id} succeeded\n")));
}

#[test]
fn wrong_usage_is_exit_status_2() {
    let world = World::new(Lane::Auto, GOOD);
    world.enqueue("fault", &json!({}));
    for (arguments, word) in [
        (&["frobnicate"][..], "frobnicate"),
        (&["enqueue", "nosuch"], "`nosuch`"),
        (&["enqueue", "fault", "--payload", "{"], "JSON"),
        (&["retry", "--state", "running"], "running"),
        (&["list", "--state", "asleep"], "asleep"),
    ] {
        let (code, _, stderr) = told(&world, arguments);
        assert_eq!(code, Some(2), "{arguments:?}: {stderr}");
        assert!(stderr.contains(word), "{arguments:?}: {stderr}");
    }
    let mut elsewhere = Command::new(program("jobvisor-under-test"));
    elsewhere.args(["--config", "none.toml", "list"]).current_dir(world.path("")).env_remove("JOBVISOR_DATABASE_URL");
    let (code, _, stderr) = told_by(&mut elsewhere);
    assert!(code == Some(2) && stderr.contains("none.toml"), "{code:?} {stderr}");
}
