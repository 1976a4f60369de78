use super::*;

use std::time::Duration;

use crate::domain::evidence::ExitMeaning;
use crate::domain::retry::{Backoff, OnOom};
use crate::domain::units::Bytes;

fn env(name: &str) -> Option<String> {
    match name {
        "DATA" => Some("/srv/data".to_owned()),
        "TOKEN" => Some("{payload.x}".to_owned()),
        "NUL" => Some("a\0b".to_owned()),
        _ => None,
    }
}

fn read(text: &str) -> Result<Config, ConfigErrors> {
    parse(text, Path::new("/app/jobs.toml"), &env)
}

fn errors(text: &str) -> String {
    match read(text) {
        Ok(config) => panic!("no error in\n{text}\n{config:?}"),
        Err(mut errors) => {
            errors.path = "jobs.toml".into();
            errors.to_string()
        }
    }
}

fn kind(text: &str) -> KindConfig {
    let text = format!("[kind.k]\ncommand = [\"true\"]\n{text}");
    read(&text).unwrap_or_else(|errors| panic!("{text}\n{errors}")).kinds.remove("k").unwrap()
}

#[test]
fn what_is_left_out_has_the_defaults_of_the_reference() {
    let config = read("").unwrap();
    assert_eq!(config.database, Database::Sqlite("/app/jobvisor.db".into()));
    assert!(config.migrate);
    let supervisor = config.supervisor;
    let host = nix::unistd::gethostname().unwrap().into_string().unwrap();
    assert_eq!(supervisor.name, host);
    assert!(supervisor.state_dir.starts_with("/app/.jobvisor") && supervisor.state_dir != Path::new("/app/.jobvisor"));
    assert_eq!(supervisor.memory_budget, MemoryBudget::Share(0.8));
    assert_eq!(supervisor.drain, Duration::from_secs(30));
    assert_eq!(supervisor.lease, Duration::from_secs(30));
    assert_eq!(supervisor.poll, Duration::from_secs(1));
    assert_eq!((supervisor.max_payload, supervisor.max_result), (Bytes::mib(1), Bytes::mib(1)));
    let day = Duration::from_secs(24 * 3600);
    assert_eq!(supervisor.retain, (7 * day, 7 * day, 30 * day));

    let kind = kind("");
    assert_eq!((kind.slots, kind.memory, kind.pids), (2, Bytes::mib(256), 512));
    assert_eq!((kind.enforce, kind.on_oom, kind.output), (Enforce::Auto, OnOom::Retry, Output::Tail));
    assert_eq!(kind.timeout, Duration::from_secs(600));
    assert_eq!(kind.grace, Duration::from_secs(10));
    assert_eq!(kind.start_timeout, Duration::from_secs(30));
    assert_eq!((kind.max_attempts, kind.max_interruptions), (3, 5));
    let first = Duration::from_secs(5);
    assert_eq!(kind.backoff, Backoff { first, factor: 2.0, max: Duration::from_secs(3600), jitter: 0.2 });
    assert_eq!((kind.user, kind.group, kind.nice, kind.tolerate_oom), (None, None, None, false));
    assert_eq!(kind.cwd, Path::new("/app"));
    assert!(kind.env.is_empty());
    let codes = [(0, ExitMeaning::Success), (65, ExitMeaning::Permanent), (75, ExitMeaning::Retry)];
    assert_eq!(kind.exit_codes, codes.into());
}

#[test]
fn every_option_is_read() {
    let config = read(include_str!("tests/every_option.toml")).unwrap_or_else(|errors| panic!("{errors}"));
    assert_eq!(config.database, Database::Sqlite("/srv/data/jobs.db".into()));
    assert!(!config.migrate);
    let supervisor = &config.supervisor;
    assert_eq!(supervisor.name, "worker 1/a");
    assert_eq!(supervisor.state_dir, Path::new("/app/state/worker_1_a"));
    assert_eq!(supervisor.memory_budget, MemoryBudget::Fixed(Bytes(2 << 30)));
    assert_eq!(supervisor.retain.2, Duration::from_secs(3600));
    let ingest = &config.kinds["ingest"];
    assert_eq!(ingest.command.argv, ["sh", "-c", "prog \"$1\"", "sh", "{payload.file}", "{{payload.x}}", "$5"]);
    assert_eq!(ingest.env["ROOT"], "/srv/data/root");
    assert_eq!(ingest.cwd, Path::new("/app/sub"));
    assert_eq!(ingest.max_interruptions, 9);
    assert_eq!((ingest.nice, ingest.pids, ingest.slots), (Some(-5), 64, 16));
    assert_eq!(ingest.user.as_deref(), Some("nobody"));
    assert_eq!((ingest.enforce, ingest.on_oom, ingest.output), (Enforce::Cgroup, OnOom::Fail, Output::Strict));
    assert_eq!(ingest.backoff.factor, 3.0);
    let codes = [
        (0, ExitMeaning::Success),
        (3, ExitMeaning::Success),
        (65, ExitMeaning::Retry),
        (75, ExitMeaning::Retry),
        (76, ExitMeaning::Snooze),
    ];
    assert_eq!(ingest.exit_codes, codes.into());
    let first = &config.schedules["first"];
    let payload: serde_json::Value = serde_json::from_str(&first.payload).unwrap();
    let expected =
        serde_json::json!({ "file": "a.txt", "n": [1, 2.5, true], "day": "2026-01-02", "deep": { "x": 255 } });
    assert_eq!((first.kind.as_str(), payload), ("ingest", expected));
    assert_eq!(config.schedules["second"].payload, "{}");
}

#[test]
fn one_attempt_has_no_interruptions_unless_they_are_set() {
    assert_eq!(kind("max_attempts = 1").max_interruptions, 0);
    assert_eq!(kind("max_attempts = 1\nmax_interruptions = 2").max_interruptions, 2);
    assert_eq!(kind("max_attempts = 2").max_interruptions, 5);
}

#[test]
fn all_errors_of_a_file_are_told_at_once_in_the_order_of_its_lines() {
    insta::assert_snapshot!(errors(include_str!("tests/many_errors.toml")));
}

#[test]
fn what_a_later_version_will_do_is_refused_and_never_ignored() {
    insta::assert_snapshot!(errors(include_str!("tests/not_yet.toml")));
}

#[test]
fn command_lines_that_the_payload_could_take_over_are_refused() {
    insta::assert_snapshot!(errors(include_str!("tests/commands.toml")));
}

#[test]
fn broken_lines_are_told_at_once() {
    insta::assert_snapshot!(errors(
        "[database\nurl = \"x\"\n\n[supervisor]\nname = \n[supervisor]\nname = \"a\"\nname = \"b\"\n"
    ));
}

#[test]
fn wrong_database_urls_are_told_without_repeating_them() {
    for (url, part) in [
        ("jobs.db", "no scheme"),
        ("postgres://u:sec#ret@h/db", "cannot be read"),
        ("postgresql://u:secret@h/db?sslmode=on", "`sslmode`"),
        ("mysql://u:secret@h/db", "no database speaks `mysql:`"),
        ("sqlite::memory:", "must be a file"),
        ("sqlite://:memory:", "must be a file"),
        ("sqlite:", "names no file"),
        ("sqlite://a.db?mode=ro", "options after `?`"),
    ] {
        let text = errors(&format!("[database]\nurl = \"{url}\""));
        assert!(text.starts_with("jobs.toml:2: ") && text.contains(part), "{url}: {text}");
        assert!(!text.contains("secret") && text.lines().count() == 2, "{text}");
    }
}

#[test]
fn sqlite_urls_are_relative_to_the_file() {
    for (url, path) in [
        ("sqlite:a.db", "/app/a.db"),
        ("sqlite://b/a.db", "/app/b/a.db"),
        ("sqlite:///a.db", "/a.db"),
        ("sqlite:/a.db", "/a.db"),
    ] {
        let config = read(&format!("[database]\nurl = \"{url}\"")).unwrap();
        assert_eq!(config.database, Database::Sqlite(path.into()), "{url}");
    }
}

#[test]
fn each_wrong_value_is_told_once_on_its_line() {
    for (line, part) in [
        ("memory = \"15MiB\"", "cannot be 15.0 MiB"),
        ("memory = true", "must be a size, not a boolean"),
        ("memory = \"lots\"", "is not a size: `lots`"),
        ("slots = 0", "cannot be 0"),
        ("slots = \"2\"", "must be a whole number, not a string"),
        ("timeout = \"0s\"", "must be longer than 0"),
        ("timeout = 10", "must be a duration in quotes"),
        ("timeout = \"20y\"", "longer than ten years"),
        ("grace = \"2h\"", "from 1 ms to 1 h 0 min"),
        ("max_attempts = 0", "from 1 to 32767"),
        ("max_attempts = 32768", "from 1 to 32767"),
        ("backoff = { factor = 0.5 }", "cannot be 0.5"),
        ("backoff = { factor = inf }", "cannot be inf"),
        ("backoff = { factor = nan }", "cannot be NaN"),
        ("backoff = { jitter = 1.5 }", "cannot be 1.5"),
        ("backoff = { first = \"1m\", max = \"1s\" }", "cannot be 1.0 s"),
        ("backoff = \"5s\"", "must be a table, not a string"),
        ("exit_codes = { retry = [256] }", "cannot be 256"),
        ("exit_codes = { retry = [0] }", "0 is always success"),
        ("exit_codes = { retry = [4], snooze = [4] }", "gives 4 a second meaning"),
        ("env = { \"A=B\" = \"x\" }", "cannot name a variable"),
        ("env = { A = 1 }", "must be a string, not an integer"),
        ("env = { A = \"${NUL}\" }", "NUL"),
        ("env = { A = \"a\\u0000\" }", "NUL"),
        ("env = { JOBVISOR_ATTEMPT = \"7\" }", "is set for each attempt"),
        ("cwd = \"${NONE}/x\"", "`NONE` is not set"),
        ("nice = 20", "from -20 to 19"),
        ("user = \"\"", "is empty"),
        ("enforce = \"cgruop\"", "did you mean `cgroup`?"),
        ("retries = 3", "it is called `max_attempts` here"),
    ] {
        let text = errors(&format!("[kind.k]\ncommand = [\"true\"]\n{line}\n"));
        assert!(text.starts_with("jobs.toml:3: ") && text.contains(part), "{line}: {text}");
        assert_eq!(text.lines().count(), 2, "{line}: {text}");
    }
}

#[test]
fn wrong_values_of_the_supervisor_are_told() {
    for (line, part) in [
        ("lease = \"2s\"", "from 3.0 s"),
        ("memory_budget = \"0%\"", "from `\"1%\"`"),
        ("memory_budget = \"101%\"", "from `\"1%\"`"),
        ("memory_budget = \"x%\"", "cannot be `x%`"),
        ("memory_budget = \"1MiB\"", "cannot be 1.0 MiB"),
        ("name = \"\"", "printable"),
        ("max_payload = \"1GiB\"", "to 256.0 MiB"),
        ("retain = { dead = \"0s\" }", "longer than 0"),
        ("retain = { done = \"1d\" }", "unknown key `done` in [supervisor.retain]"),
    ] {
        let text = errors(&format!("[supervisor]\n{line}\n"));
        assert!(text.starts_with("jobs.toml:2: ") && text.contains(part), "{line}: {text}");
    }
}

#[test]
fn no_attempt_may_need_more_than_the_whole_budget() {
    let text = errors("[supervisor]\nmemory_budget = \"128MiB\"\n[kind.k]\ncommand = [\"true\"]\n");
    assert!(text.starts_with("jobs.toml:3: `memory` in [kind.k] is 256.0 MiB, more than the whole"), "{text}");
}

#[test]
fn a_section_that_is_no_table_is_told_once() {
    let text = errors("database = 1\n[kind]\nk = 5\n[schedule]\ns = true\n");
    assert_eq!(text.matches("must be a table").count(), 3, "{text}");
    assert_eq!(text.lines().count(), 6, "{text}");
}

#[test]
fn places_count_characters_and_lines() {
    let errors = read("# ä\r\n[database]\r\n  \"ü\" = 1\r\n").unwrap_err();
    assert_eq!((errors.errors[0].line, errors.errors[0].column), (3, 3));
    let errors = read("[database]\nä = 1").unwrap_err();
    assert_eq!(errors.errors[0].line, 2);
}

#[test]
fn doubtful_settings_are_warned_about() {
    let config = read(concat!(
        "[supervisor]\nmemory_budget = \"300MiB\"\ndrain = \"5s\"\n",
        "[kind.k]\ncommand = [\"/no/such/program\"]\ntimeout = \"2d\"\nuser = \"no-such-user-here\"\n",
        "group = \"no-such-group-here\"\ncwd = \"/no/such/folder\"\nenv = { PATH = \"/usr/bin\" }\n",
    ))
    .unwrap();
    insta::assert_snapshot!(config.warnings.join("\n"));
}

#[test]
fn a_file_that_is_not_there_is_told_with_the_way_out() {
    let errors = load(Path::new("/no/such/jobs.toml")).unwrap_err().to_string();
    assert!(errors.starts_with("/no/such/jobs.toml: cannot read the configuration: "), "{errors}");
    assert!(errors.ends_with("`--config PATH` names another"), "{errors}");
}

#[test]
fn the_files_we_hand_out_are_good() {
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples");
    for path in [examples.join("jobs.toml"), examples.join("quickstart/jobs.toml")] {
        load(&path).unwrap_or_else(|errors| panic!("{errors}"));
    }
    let folder = tempfile::tempdir().unwrap();
    let config = parse(example(), &folder.path().join("jobs.toml"), &|name| std::env::var(name).ok()).unwrap();
    let payload = serde_json::json!({ "name": "world" });
    assert_eq!(config.kinds["hello"].command.render(&payload).unwrap(), ["printf", "hello, %s\\n", "world"]);
    assert_eq!(config.warnings, Vec::<String>::new());
}

const EVERY_OPTION: &str = include_str!("tests/every_option.toml");

#[test]
fn a_wrong_value_is_told_on_its_own_line_whatever_the_line() {
    let values = [
        "0",
        "-1",
        "9223372036854775807",
        "0xffffffffffffffff",
        "nan",
        "\"\"",
        "\"\\u0000\"",
        "[]",
        "[[]]",
        "{}",
        "true",
        "1979-05-27",
        "\"${\"",
        "\"{\"",
        "\"1e400\"",
        "\"99999999999999999999y\"",
        "[\"\"]",
        "[\"}\"]",
        "{ x = 1 }",
    ];
    let mut told = 0;
    let lines: Vec<&str> = EVERY_OPTION.lines().collect();
    for line in 0..lines.len() {
        let Some((key, _)) = lines[line].split_once(" = ") else { continue };
        for value in values {
            let wrong = format!("{key} = {value}");
            let mut changed = lines.clone();
            changed[line] = &wrong;
            let Err(errors) = read(&changed.join("\n")) else { continue };
            told += 1;
            assert!(errors.errors.iter().all(|error| error.line == line + 1), "{wrong}: {errors}");
        }
    }
    assert!(told > 400, "{told}");
}

proptest::proptest! {
    #[test]
    fn any_text_is_read_or_refused(text in "\\PC{0,200}", cut in 0..EVERY_OPTION.len()) {
        let cut = EVERY_OPTION.floor_char_boundary(cut);
        let mixed = format!("{}{text}{}", &EVERY_OPTION[..cut], &EVERY_OPTION[cut..]);
        if let Err(errors) = read(&mixed) {
            assert!(!errors.errors.is_empty());
            assert!(errors.errors.iter().all(|error| error.line >= 1 && error.column >= 1));
        }
    }
}
