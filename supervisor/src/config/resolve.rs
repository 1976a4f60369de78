//! From the document to a [`Config`]: the top, `[database]` and `[supervisor]`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use toml::de::DeTable;

use super::error::{ConfigErrors, Problems};
use super::expand::{Target, expand};
use super::file::{Field, Section};
use super::kind;
use super::model::{Config, Database, MemoryBudget, SupervisorConfig};
use super::postgres;
use super::schedule;
use crate::domain::units::{Bytes, show_duration};

/// What every part of the walk needs to know.
pub(super) struct Scope<'s> {
    /// The folder of the file, absolute.
    pub(super) folder: PathBuf,
    /// Answers for `${NAME}`.
    pub(super) env: &'s dyn Fn(&str) -> Option<String>,
    /// `memory_budget`, where it is a size: no attempt can have more.
    pub(super) budget: Option<Bytes>,
}

impl Scope<'_> {
    /// The field's text with its variables.
    pub(super) fn expanded(&self, field: &Field<'_>, target: Target, problems: &mut Problems) -> Option<String> {
        let text = field.text(problems)?;
        match expand(text, self.env, target) {
            Ok(text) if text.contains('\0') => {
                field.wrong("holds a NUL character", "correct the environment variable", problems);
                None
            }
            Ok(text) => Some(text),
            Err(error) => {
                field.wrong(&format!("does not expand: {error}"), error.hint(), problems);
                None
            }
        }
    }

    /// The field's text as a path, relative to the file's folder.
    pub(super) fn path(&self, field: &Field<'_>, problems: &mut Problems) -> Option<PathBuf> {
        let text = self.expanded(field, Target::Text, problems)?;
        if text.is_empty() {
            field.wrong("is empty", "write a path, relative to the folder of this file or absolute", problems);
            return None;
        }
        Some(self.folder.join(text))
    }
}

/// Walks the whole document.
pub(super) fn resolve(text: &str, path: &Path, env: &dyn Fn(&str) -> Option<String>) -> Result<Config, ConfigErrors> {
    let mut problems = Problems::default();
    let (document, syntax) = DeTable::parse_recoverable(text);
    if !syntax.is_empty() {
        // What a broken line meant is anyone's guess, and so is every message that would follow from it.
        for error in syntax {
            let span = error.span().unwrap_or_default();
            let mut what = error.message().replace('\n', "; ");
            if let Some(key) = text.get(span.clone()).filter(|key| what == "duplicate key" && !key.contains('\n')) {
                what = format!("duplicate key `{key}`");
            }
            problems.add_bare(span.start, what);
        }
        return Err(problems.into_errors(text, path));
    }
    let mut scope = Scope { folder: folder_of(path), env, budget: None };
    let root = Section::root(document.get_ref());
    root.check_keys(&["database", "supervisor", "kind", "schedule"], &mut problems);
    let (database, migrate) = read_database(&root.section("database", &mut problems), &scope, &mut problems);
    let supervisor = read_supervisor(&root.section("supervisor", &mut problems), &scope, &mut problems);
    if let MemoryBudget::Fixed(budget) = supervisor.memory_budget {
        scope.budget = Some(budget);
    }
    let kinds = kind::read_all(&root.section("kind", &mut problems), &scope, &mut problems);
    let schedules =
        schedule::read_all(&root.section("schedule", &mut problems), &kinds, supervisor.max_payload, &mut problems);
    if !problems.is_empty() {
        return Err(problems.into_errors(text, path));
    }
    let kinds: BTreeMap<_, _> = kinds.into_iter().filter_map(|(name, kind)| Some((name, kind?))).collect();
    let mut config =
        Config { path: path.to_owned(), database, migrate, supervisor, kinds, schedules, warnings: Vec::new() };
    let doubts = doubts(&config, env);
    config.warnings.extend(doubts);
    Ok(config)
}

fn folder_of(path: &Path) -> PathBuf {
    let whole = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    whole.parent().map_or_else(|| PathBuf::from("/"), Path::to_owned)
}

fn read_database(section: &Section<'_>, scope: &Scope<'_>, problems: &mut Problems) -> (Database, bool) {
    section.check_keys(&["url", "migrate"], problems);
    let default = Database::Sqlite(scope.folder.join("jobvisor.db"));
    let migrate = section.get("migrate").and_then(|field| field.boolean(problems)).unwrap_or(true);
    let Some(field) = section.get("url") else { return (default, migrate) };
    let Some(url) = scope.expanded(&field, Target::Text, problems) else { return (default, migrate) };
    match parse_database(&url, &scope.folder) {
        Ok(database) => (database, migrate),
        Err((what, hint)) => {
            problems.add(field.at, format!("{}: {what}", field.label), hint);
            (default, migrate)
        }
    }
}

/// Reads a database URL; a relative path starts at `folder`.
///
/// # Errors
/// What is wrong, and what would be right. Neither repeats the URL, which may hold a password.
pub fn parse_database(url: &str, folder: &Path) -> Result<Database, (String, String)> {
    let example = "write `sqlite://jobvisor.db` (relative to this file) or `postgres://user@host/database`";
    let wrong = |what: &str| Err((what.to_owned(), example.to_owned()));
    let Some((scheme, rest)) = url.split_once(':') else {
        return wrong("the database URL has no scheme");
    };
    match scheme {
        "sqlite" => {}
        "postgres" | "postgresql" => return postgres::read(url).map(Database::Postgres),
        _ => return wrong(&format!("no database speaks `{scheme}:` here")),
    }
    let file = rest.strip_prefix("//").unwrap_or(rest);
    match file {
        "" => wrong("the database URL names no file"),
        ":memory:" => wrong("a database in memory would forget its jobs; it must be a file"),
        _ if file.contains('?') => wrong("options after `?` are not known here"),
        _ if file.contains('\0') => wrong("the database URL holds a NUL character"),
        _ => Ok(Database::Sqlite(folder.join(file))),
    }
}

const SUPERVISOR_KEYS: &[&str] = &[
    "name",
    "state_dir",
    "memory_budget",
    "light_slots",
    "drain",
    "lease",
    "poll",
    "max_payload",
    "max_result",
    "retain",
];

fn read_supervisor(section: &Section<'_>, scope: &Scope<'_>, problems: &mut Problems) -> SupervisorConfig {
    section.check_keys(SUPERVISOR_KEYS, problems);
    if let Some(field) = section.get("light_slots") {
        field.not_yet("light jobs are planned", "leave it out; every kind is heavy and has its own `slots`", problems);
    }
    let name = section.get("name").and_then(|field| read_name(&field, scope, problems)).unwrap_or_else(host_name);
    let base = section.get("state_dir").and_then(|field| scope.path(&field, problems));
    let state_dir = base.unwrap_or_else(|| scope.folder.join(".jobvisor")).join(folder_name(&name));
    let mut duration = |key: &str, default: Duration, least: Duration, most: Duration| {
        section.get(key).and_then(|field| duration_within(&field, least, most, problems)).unwrap_or(default)
    };
    let seconds = Duration::from_secs;
    let drain = duration("drain", seconds(30), Duration::from_millis(1), seconds(24 * 3600));
    let lease = duration("lease", seconds(30), seconds(3), seconds(3600));
    let poll = duration("poll", seconds(1), Duration::from_millis(10), seconds(3600));
    let size = |key: &str, problems: &mut Problems| {
        section
            .get(key)
            .and_then(|field| bytes_within(&field, Bytes(1024), Bytes::mib(256), problems))
            .unwrap_or(Bytes::mib(1))
    };
    SupervisorConfig {
        max_payload: size("max_payload", problems),
        max_result: size("max_result", problems),
        memory_budget: section
            .get("memory_budget")
            .and_then(|field| read_budget(&field, problems))
            .unwrap_or(MemoryBudget::Share(0.8)),
        retain: read_retain(section, problems),
        name,
        state_dir,
        drain,
        lease,
        poll,
    }
}

fn read_name(field: &Field<'_>, scope: &Scope<'_>, problems: &mut Problems) -> Option<String> {
    let name = scope.expanded(field, Target::Text, problems)?;
    if name.trim().is_empty() || name.len() > 200 || name.chars().any(char::is_control) {
        field.wrong("must be 1 to 200 printable characters", "leave it out to use the host's name", problems);
        return None;
    }
    Some(name)
}

fn host_name() -> String {
    nix::unistd::gethostname()
        .ok()
        .and_then(|name| name.into_string().ok())
        .filter(|name| !name.is_empty())
        .unwrap_or_else(|| "localhost".to_owned())
}

/// The supervisor's name as the name of a folder.
fn folder_name(name: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    let safe: String = name.chars().map(|c| if plain(c) { c } else { '_' }).collect();
    match safe.strip_prefix('.') {
        Some(rest) => format!("_{rest}"),
        None => safe,
    }
}

/// A duration within bounds.
pub(super) fn duration_within(
    field: &Field<'_>,
    least: Duration,
    most: Duration,
    problems: &mut Problems,
) -> Option<Duration> {
    let duration = field.duration(problems)?;
    if duration < least || duration > most {
        let hint = format!("from {} to {}", show_duration(least), show_duration(most));
        field.wrong(&format!("cannot be {}", show_duration(duration)), hint, problems);
        return None;
    }
    Some(duration)
}

/// A size within bounds.
pub(super) fn bytes_within(field: &Field<'_>, least: Bytes, most: Bytes, problems: &mut Problems) -> Option<Bytes> {
    let size = field.bytes(problems)?;
    if size < least || size > most {
        field.wrong(&format!("cannot be {size}"), format!("from {least} to {most}"), problems);
        return None;
    }
    Some(size)
}

fn read_budget(field: &Field<'_>, problems: &mut Problems) -> Option<MemoryBudget> {
    let Some(share) = field.value.as_str().and_then(|text| text.trim().strip_suffix('%')) else {
        return bytes_within(field, kind::LEAST_MEMORY, Bytes(u64::MAX), problems).map(MemoryBudget::Fixed);
    };
    match share.trim().parse::<f64>() {
        Ok(share) if (1.0..=100.0).contains(&share) => Some(MemoryBudget::Share(share / 100.0)),
        Ok(_) | Err(_) => {
            field.wrong(
                &format!("cannot be `{share}%`"),
                "a share of the host's memory from `\"1%\"` to `\"100%\"`, or a size such as `\"2GiB\"`",
                problems,
            );
            None
        }
    }
}

fn read_retain(section: &Section<'_>, problems: &mut Problems) -> (Duration, Duration, Duration) {
    let retain = section.section("retain", problems);
    retain.check_keys(&["succeeded", "cancelled", "dead"], problems);
    let mut days = |key: &str, default: u64| {
        let default = Duration::from_secs(default * 24 * 3600);
        retain.get(key).and_then(|field| field.duration(problems)).unwrap_or(default)
    };
    (days("succeeded", 7), days("cancelled", 7), days("dead", 30))
}

/// What is allowed, but hardly meant.
fn doubts(config: &Config, env: &dyn Fn(&str) -> Option<String>) -> Vec<String> {
    let mut doubts = Vec::new();
    if config.kinds.is_empty() {
        doubts.push("there is no [kind.NAME], so nothing can run".to_owned());
    }
    for kind in config.kinds.values() {
        doubts.extend(kind::doubts(kind, &config.supervisor));
        doubts.extend(super::host::doubts(kind, env));
    }
    doubts
}
