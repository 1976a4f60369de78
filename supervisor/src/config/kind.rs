//! `[kind.NAME]`: a heavy kind in mode `oneshot`.

use std::collections::BTreeMap;
use std::time::Duration;

use super::error::Problems;
use super::expand::Target;
use super::file::{Field, Section};
use super::model::{CommandTemplate, Enforce, KindConfig, MemoryBudget, Output, SupervisorConfig};
use super::resolve::{Scope, duration_within};
use crate::domain::evidence::ExitMeaning;
use crate::domain::retry::{Backoff, OnOom};
use crate::domain::units::{Bytes, show_duration};

/// Below this a process stalls in the kernel's reclaim instead of dying.
pub const LEAST_MEMORY: Bytes = Bytes::mib(16);
/// What a name may be.
pub(super) const NAME_HINT: &str = "1 to 64 letters, digits, `_`, `-` or `.`, starting with a letter or digit";

const KEYS: &[&str] = &[
    "command",
    "mode",
    "slots",
    "memory",
    "enforce",
    "on_oom",
    "timeout",
    "grace",
    "start_timeout",
    "max_attempts",
    "max_interruptions",
    "backoff",
    "env",
    "tolerate_oom",
    "output",
    "cwd",
    "user",
    "group",
    "nice",
    "cpu_weight",
    "pids",
    "exit_codes",
    "min_idle",
    "max",
    "idle_timeout",
    "max_jobs",
    "recycle_at",
    "http",
];

/// Reads every kind; `None` for one that is wrong, so that schedules can tell it from an unknown one.
pub(super) fn read_all(
    all: &Section<'_>,
    scope: &Scope<'_>,
    problems: &mut Problems,
) -> BTreeMap<String, Option<KindConfig>> {
    let mut kinds = BTreeMap::new();
    for (name, at) in all.keys() {
        if !is_name(name) {
            problems.add(at, format!("`{name}` cannot be the name of a kind"), NAME_HINT);
        }
        let section = all.section(name, problems);
        let kind = if section.exists() { read(name, &section, scope, problems) } else { None };
        kinds.insert(name.to_owned(), kind);
    }
    kinds
}

/// May a kind or schedule be called so?
pub(super) fn is_name(name: &str) -> bool {
    name.len() <= 64
        && name.starts_with(|c: char| c.is_ascii_alphanumeric())
        && name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.'))
}

fn read(name: &str, section: &Section<'_>, scope: &Scope<'_>, problems: &mut Problems) -> Option<KindConfig> {
    section.check_keys(KEYS, problems);
    if let Some(field) = section.get("http") {
        field.not_yet(
            "light kinds such as `http` are planned",
            "call it from a `command`, for example with curl",
            problems,
        );
        return None;
    }
    check_not_yet(section, problems);
    let command = read_command(section, scope, problems);
    let max_attempts = count(section, "max_attempts", 1..=32767, 3, problems);
    let free = if max_attempts == 1 { 0 } else { 5 };
    let seconds = Duration::from_secs;
    let hour = seconds(3600);
    let words = [("auto", Enforce::Auto), ("cgroup", Enforce::Cgroup), ("watchdog", Enforce::Watchdog)];
    let outputs = [("tail", Output::Tail), ("strict", Output::Strict)];
    let kind = KindConfig {
        name: name.to_owned(),
        command: CommandTemplate { argv: Vec::new() },
        slots: count(section, "slots", 1..=10_000, 2, problems),
        memory: read_memory(section, scope, problems),
        enforce: section.get("enforce").and_then(|field| field.choice(&words, problems)).unwrap_or_default(),
        on_oom: read_on_oom(section, problems),
        timeout: section.get("timeout").and_then(|field| field.duration(problems)).unwrap_or(seconds(600)),
        grace: duration(section, "grace", hour, problems).unwrap_or(seconds(10)),
        start_timeout: duration(section, "start_timeout", hour, problems).unwrap_or(seconds(30)),
        max_attempts,
        max_interruptions: count(section, "max_interruptions", 0..=32767, free, problems),
        backoff: read_backoff(section, problems),
        env: read_env(section, scope, problems),
        tolerate_oom: section.get("tolerate_oom").and_then(|field| field.boolean(problems)).unwrap_or_default(),
        output: section.get("output").and_then(|field| field.choice(&outputs, problems)).unwrap_or_default(),
        cwd: section.get("cwd").and_then(|field| scope.path(&field, problems)).unwrap_or_else(|| scope.folder.clone()),
        user: section.get("user").and_then(|field| read_account(&field, problems)),
        group: section.get("group").and_then(|field| read_account(&field, problems)),
        nice: section
            .get("nice")
            .and_then(|field| field.integer(-20..=19, problems))
            .and_then(|nice| i32::try_from(nice).ok()),
        pids: count(section, "pids", 1..=4_194_304, 512, problems),
        exit_codes: read_exit_codes(section, problems),
    };
    command.map(|command| KindConfig { command, ..kind })
}

fn check_not_yet(section: &Section<'_>, problems: &mut Problems) {
    let oneshot = "leave it out: each job is a process of its own (`mode = \"oneshot\"`)";
    for key in ["min_idle", "max", "idle_timeout", "max_jobs", "recycle_at"] {
        if let Some(field) = section.get(key) {
            field.not_yet("warm children are planned", oneshot, problems);
        }
    }
    if let Some(field) = section.get("cpu_weight") {
        field.not_yet("shares of the processor are planned", "leave it out; `nice` works", problems);
    }
    if let Some(field) = section.get("mode") {
        match field.text(problems) {
            Some("oneshot") | None => {}
            Some(mode @ ("prefork" | "forkserver" | "shared")) => {
                field.not_yet(&format!("mode `{mode}` is planned"), oneshot, problems);
            }
            Some(_) => {
                field.choice(&[("oneshot", ())], problems);
            }
        }
    }
}

fn count(
    section: &Section<'_>,
    key: &str,
    bounds: std::ops::RangeInclusive<u32>,
    default: u32,
    problems: &mut Problems,
) -> u32 {
    section.get(key).and_then(|field| field.count(bounds, problems)).unwrap_or(default)
}

fn duration(section: &Section<'_>, key: &str, most: Duration, problems: &mut Problems) -> Option<Duration> {
    section.get(key).and_then(|field| duration_within(&field, Duration::from_millis(1), most, problems))
}

fn read_command(section: &Section<'_>, scope: &Scope<'_>, problems: &mut Problems) -> Option<CommandTemplate> {
    let example = "write for example `command = [\"python3\", \"job.py\", \"{payload.file}\"]`";
    let Some(field) = section.get("command") else {
        problems.add(section.at, format!("[{}] lacks `command`", section.name), example);
        return None;
    };
    if field.value.as_str().is_some() {
        field.wrong("must be an array, one item for each argument: no shell reads it", example, problems);
        return None;
    }
    let items = field.items(problems)?;
    let argv: Vec<_> = items.iter().map(|item| scope.expanded(item, Target::Template, problems)).collect();
    let argv: Vec<String> = argv.into_iter().collect::<Option<_>>()?;
    if argv.first().is_none_or(String::is_empty) {
        field.wrong("names no program", example, problems);
        return None;
    }
    let template = CommandTemplate { argv };
    let wrong = template.check();
    for (n, error) in &wrong {
        let item = items.get(*n).unwrap_or(&field);
        item.wrong(&format!("is refused: {error}"), error.hint(), problems);
    }
    wrong.is_empty().then_some(template)
}

fn read_memory(section: &Section<'_>, scope: &Scope<'_>, problems: &mut Problems) -> Bytes {
    let default = Bytes::mib(256);
    let field = section.get("memory");
    let memory = match &field {
        Some(field) => field.bytes(problems),
        None => Some(default),
    };
    let Some(memory) = memory else { return default };
    let at = field.as_ref().map_or(section.at, |field| field.at);
    let label = format!("`memory` in [{}]", section.name);
    if memory < LEAST_MEMORY {
        let hint = format!("at least {LEAST_MEMORY}: with less a process stalls without end instead of dying");
        problems.add(at, format!("{label} cannot be {memory}"), hint);
    } else if let Some(budget) = scope.budget.filter(|budget| memory > *budget) {
        let hint = format!("at most {budget}, or raise `memory_budget` in [supervisor]");
        problems.add(at, format!("{label} is {memory}, more than the whole memory_budget: no job could start"), hint);
    }
    memory
}

fn read_on_oom(section: &Section<'_>, problems: &mut Problems) -> OnOom {
    let Some(field) = section.get("on_oom") else { return OnOom::default() };
    if field.value.is_table() {
        field.not_yet("a limit that grows is planned", "write \"retry\" or \"fail\", and raise `memory`", problems);
        return OnOom::default();
    }
    field.choice(&[("fail", OnOom::Fail), ("retry", OnOom::Retry)], problems).unwrap_or_default()
}

fn read_backoff(section: &Section<'_>, problems: &mut Problems) -> Backoff {
    let backoff = section.section("backoff", problems);
    backoff.check_keys(&["first", "factor", "max", "jitter"], problems);
    let default = Backoff::default();
    let bounded = |key: &str, why: &str, fits: &dyn Fn(f64) -> bool, problems: &mut Problems| {
        let field = backoff.get(key)?;
        let number = field.number(problems)?;
        if !fits(number) {
            field.wrong(&format!("cannot be {number}"), why, problems);
            return None;
        }
        Some(number)
    };
    let factor = bounded("factor", "a number from 1 on", &|n| n >= 1.0 && n.is_finite(), problems);
    let jitter = bounded("jitter", "from 0 (none) to 1", &|n| (0.0..=1.0).contains(&n), problems);
    let first = backoff.get("first").and_then(|field| field.duration(problems)).unwrap_or(default.first);
    let max = backoff.get("max").and_then(|field| {
        let max = field.duration(problems)?;
        if max < first {
            let hint = format!("at least `first`, which is {}", show_duration(first));
            field.wrong(&format!("cannot be {}", show_duration(max)), hint, problems);
        }
        Some(max)
    });
    Backoff {
        first,
        factor: factor.unwrap_or(default.factor),
        max: max.unwrap_or(default.max.max(first)),
        jitter: jitter.unwrap_or(default.jitter),
    }
}

fn read_env(section: &Section<'_>, scope: &Scope<'_>, problems: &mut Problems) -> BTreeMap<String, String> {
    let env = section.section("env", problems);
    let mut out = BTreeMap::new();
    for (key, at) in env.keys() {
        if key.is_empty() || key.contains(['=', '\0']) {
            problems.add(at, format!("`{}` cannot name a variable", key.escape_debug()), "no `=`, no NUL, not empty");
        } else if matches!(key, "JOBVISOR_JOB_ID" | "JOBVISOR_ATTEMPT") {
            problems.add(at, format!("`{key}` is set for each attempt"), "leave it out");
        }
        if let Some(value) = env.get(key).and_then(|field| scope.expanded(&field, Target::Text, problems)) {
            out.insert(key.to_owned(), value);
        }
    }
    out
}

fn read_account(field: &Field<'_>, problems: &mut Problems) -> Option<String> {
    let name = field.text(problems)?;
    if name.is_empty() {
        field.wrong("is empty", "write a name, or leave it out", problems);
        return None;
    }
    Some(name.to_owned())
}

fn read_exit_codes(section: &Section<'_>, problems: &mut Problems) -> BTreeMap<i32, ExitMeaning> {
    let table = section.section("exit_codes", problems);
    let lists: [(&str, ExitMeaning, &[i32]); 4] = [
        ("success", ExitMeaning::Success, &[0]),
        ("retry", ExitMeaning::Retry, &[75]),
        ("permanent", ExitMeaning::Permanent, &[65]),
        ("snooze", ExitMeaning::Snooze, &[]),
    ];
    table.check_keys(&lists.map(|(key, ..)| key), problems);
    let mut meanings: BTreeMap<i32, (ExitMeaning, &str)> = BTreeMap::new();
    for (key, meaning, _) in lists {
        for item in table.get(key).and_then(|field| field.items(problems)).unwrap_or_default() {
            let Some(code) = item.integer(0..=255, problems).and_then(|code| i32::try_from(code).ok()) else {
                continue;
            };
            let before = meanings.get(&code).map(|(_, list)| *list);
            if code == 0 && meaning != ExitMeaning::Success {
                item.wrong("cannot be 0", "0 is always success", problems);
            } else if let Some(before) = before.filter(|before| *before != key) {
                let hint = format!("{code} stands in `{before}` too; keep one of them");
                item.wrong(&format!("gives {code} a second meaning"), hint, problems);
            } else {
                meanings.insert(code, (meaning, key));
            }
        }
    }
    for (key, meaning, defaults) in lists {
        if key == "success" || table.get(key).is_none() {
            for code in defaults {
                meanings.entry(*code).or_insert((meaning, key));
            }
        }
    }
    meanings.into_iter().map(|(code, (meaning, _))| (code, meaning)).collect()
}

/// What of a kind is allowed, but hardly meant.
pub(super) fn doubts(kind: &KindConfig, supervisor: &SupervisorConfig) -> Vec<String> {
    let mut doubts = Vec::new();
    let name = &kind.name;
    if let MemoryBudget::Fixed(budget) = supervisor.memory_budget
        && kind.memory.0.saturating_mul(u64::from(kind.slots)) > budget.0
    {
        doubts.push(format!(
            "[kind.{name}]: {} slots of {} are more than the memory_budget of {budget}; fewer will run at once",
            kind.slots, kind.memory
        ));
    }
    if kind.timeout > Duration::from_secs(24 * 3600) {
        doubts.push(format!(
            "[kind.{name}]: with a timeout of {} a hanging job holds its slot for long",
            show_duration(kind.timeout)
        ));
    }
    if kind.grace > supervisor.drain {
        doubts.push(format!(
            "[kind.{name}]: its grace of {} is longer than the supervisor's drain of {}",
            show_duration(kind.grace),
            show_duration(supervisor.drain)
        ));
    }
    doubts
}
