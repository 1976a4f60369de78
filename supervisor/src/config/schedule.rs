//! `[schedule.NAME]`: only `@startup` so far.

use std::collections::BTreeMap;

use serde_json::{Map, Number, Value};
use toml::de::{DeArray, DeTable, DeValue};

use super::error::Problems;
use super::file::{Field, Section, suggest};
use super::kind::is_name;
use super::model::{KindConfig, ScheduleConfig};
use crate::domain::units::Bytes;

/// Reads every schedule. `kinds` holds every kind of the file, also those that are wrong.
pub(super) fn read_all(
    all: &Section<'_>,
    kinds: &BTreeMap<String, Option<KindConfig>>,
    max_payload: Bytes,
    problems: &mut Problems,
) -> BTreeMap<String, ScheduleConfig> {
    let mut schedules = BTreeMap::new();
    for (name, at) in all.keys() {
        if !is_name(name) {
            problems.add(at, format!("`{name}` cannot be the name of a schedule"), super::kind::NAME_HINT);
        }
        let section = all.section(name, problems);
        if !section.exists() {
            continue;
        }
        section.check_keys(&["kind", "cron", "timezone", "payload", "misfire"], problems);
        check_times(&section, problems);
        let kind = read_kind(&section, kinds, problems);
        let payload = section.get("payload").map_or_else(
            || Some(Value::Object(Map::new()).to_string()),
            |field| read_payload(&field, max_payload, problems),
        );
        if let (Some(kind), Some(payload)) = (kind, payload) {
            schedules.insert(name.to_owned(), ScheduleConfig { name: name.to_owned(), kind, payload });
        }
    }
    schedules
}

const NOT_YET: &str = "write `cron = \"@startup\"`: once at each start, unless an earlier job of it is unfinished";

fn check_times(section: &Section<'_>, problems: &mut Problems) {
    match section.get("cron") {
        None => problems.add(section.at, format!("[{}] lacks `cron`", section.name), NOT_YET),
        Some(field) => match field.text(problems) {
            Some("@startup") | None => {}
            Some(other) => field.not_yet(&format!("only `@startup` fires, not `{other}`"), NOT_YET, problems),
        },
    }
    for key in ["timezone", "misfire"] {
        if let Some(field) = section.get(key) {
            field.not_yet("schedules by the clock are planned", "leave it out; `@startup` needs none", problems);
        }
    }
}

fn read_kind(
    section: &Section<'_>,
    kinds: &BTreeMap<String, Option<KindConfig>>,
    problems: &mut Problems,
) -> Option<String> {
    let known: Vec<&str> = kinds.keys().map(String::as_str).collect();
    let Some(field) = section.get("kind") else {
        let hint = if known.is_empty() { "declare a [kind.NAME]".to_owned() } else { known.join(", ") };
        problems.add(section.at, format!("[{}] lacks `kind`", section.name), format!("one of: {hint}"));
        return None;
    };
    let kind = field.text(problems)?;
    if !kinds.contains_key(kind) {
        let hint = if known.is_empty() { format!("declare it as [kind.{kind}]") } else { suggest(kind, &known) };
        field.wrong(&format!("names an unknown kind `{kind}`"), hint, problems);
        return None;
    }
    Some(kind.to_owned())
}

fn read_payload(field: &Field<'_>, limit: Bytes, problems: &mut Problems) -> Option<String> {
    let Some(value) = json(field.value) else {
        field.wrong(
            "holds a number that JSON has not",
            "leave out `inf` and `nan`, and integers beyond 64 bits",
            problems,
        );
        return None;
    };
    let text = value.to_string();
    if u64::try_from(text.len()).is_ok_and(|length| length > limit.0) {
        field.wrong(&format!("is longer than {limit}"), "shorten it, or raise `max_payload`", problems);
        return None;
    }
    Some(text)
}

/// The value as JSON; a date becomes its text.
fn json(value: &DeValue<'_>) -> Option<Value> {
    Some(match value {
        DeValue::String(text) => Value::String(text.as_ref().to_owned()),
        DeValue::Integer(number) => i64::from_str_radix(number.as_str(), number.radix()).ok()?.into(),
        DeValue::Float(number) => Value::Number(Number::from_f64(number.as_str().parse().ok()?)?),
        DeValue::Boolean(value) => Value::Bool(*value),
        DeValue::Datetime(date) => Value::String(date.to_string()),
        DeValue::Array(items) => json_array(items)?,
        DeValue::Table(table) => json_object(table)?,
    })
}

fn json_array(items: &DeArray<'_>) -> Option<Value> {
    items.iter().map(|item| json(item.get_ref())).collect::<Option<Vec<_>>>().map(Value::Array)
}

fn json_object(table: &DeTable<'_>) -> Option<Value> {
    let pairs = table.iter().map(|(key, value)| Some((key.get_ref().clone().into_owned(), json(value.get_ref())?)));
    pairs.collect::<Option<Map<_, _>>>().map(Value::Object)
}
