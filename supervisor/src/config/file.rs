//! The document as a person wrote it: sections and fields that know where they stand.
//!
//! Every reader notes what is wrong in [`Problems`] and answers `None`, so that the walk goes on to the next field.

use std::time::Duration;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::error::Problems;
use crate::domain::units::{Bytes, parse_duration};

/// No duration is longer; ten years.
const LONGEST: Duration = Duration::from_secs(3650 * 24 * 3600);

/// A table and its name as in `[kind.ingest]`. A section that is not in the file has no fields.
#[derive(Debug)]
pub(super) struct Section<'a> {
    /// Without brackets.
    pub(super) name: String,
    /// Where it starts.
    pub(super) at: usize,
    table: Option<&'a DeTable<'a>>,
}

/// One `key = value` of a section.
#[derive(Debug, Clone)]
pub(super) struct Field<'a> {
    /// How messages call it: `` `memory` in [kind.ingest] ``.
    pub(super) label: String,
    /// Where its key, or an array's item, stands.
    pub(super) at: usize,
    /// As parsed.
    pub(super) value: &'a DeValue<'a>,
}

/// The known word nearest to a wrong one, if it is near enough to be meant.
pub(super) fn nearest<'k>(wrong: &str, known: impl IntoIterator<Item = &'k str>) -> Option<&'k str> {
    let limit = (wrong.chars().count() / 3).clamp(1, 3);
    known
        .into_iter()
        .map(|word| (strsim::damerau_levenshtein(wrong, word), word))
        .filter(|(distance, _)| *distance <= limit)
        .min()
        .map(|(_, word)| word)
}

/// "did you mean `x`?", or all that is known.
pub(super) fn suggest(wrong: &str, known: &[&str]) -> String {
    match nearest(wrong, known.iter().copied()) {
        Some(word) => format!("did you mean `{word}`?"),
        None => format!("known here: {}", known.join(", ")),
    }
}

/// Words of other systems, and what they are called here.
const ALIASES: &[(&str, &str)] = &[
    ("retries", "max_attempts"),
    ("max_retries", "max_attempts"),
    ("attempts", "max_attempts"),
    ("memory_limit", "memory"),
    ("mem_limit", "memory"),
    ("concurrency", "slots"),
    ("workers", "slots"),
    ("cmd", "command"),
    ("environment", "env"),
    ("working_dir", "cwd"),
    ("workdir", "cwd"),
    ("schedule", "cron"),
    ("args", "payload"),
    ("path", "url"),
];

impl<'a> Section<'a> {
    /// The document itself.
    pub(super) fn root(table: &'a DeTable<'a>) -> Self {
        Self { name: String::new(), at: 0, table: Some(table) }
    }

    /// A table inside this one; a section without fields if it is not there or no table.
    pub(super) fn section(&self, key: &str, problems: &mut Problems) -> Section<'a> {
        let name = if self.name.is_empty() { key.to_owned() } else { format!("{}.{key}", self.name) };
        let field = self.get(key);
        let at = field.as_ref().map_or(self.at, |field| field.at);
        let table = field.and_then(|field| field.table(problems));
        Self { name, at, table }
    }

    /// Is it in the file, and a table?
    pub(super) fn exists(&self) -> bool {
        self.table.is_some()
    }

    /// Its keys with their places, in the order of their names.
    pub(super) fn keys(&self) -> impl Iterator<Item = (&'a str, usize)> + use<'a> {
        self.table.into_iter().flat_map(|table| table.keys().map(|key| (key.get_ref().as_ref(), key.span().start)))
    }

    /// Notes every key that is not among `known`.
    pub(super) fn check_keys(&self, known: &[&str], problems: &mut Problems) {
        for (key, at) in self.keys().filter(|(key, _)| !known.contains(key)) {
            let alias = ALIASES.iter().find(|(word, ours)| *word == key && known.contains(ours));
            let hint = match alias {
                Some((_, ours)) => format!("it is called `{ours}` here"),
                None => suggest(key, known),
            };
            let place = if self.name.is_empty() { "at the top".to_owned() } else { format!("in [{}]", self.name) };
            problems.add(at, format!("unknown key `{key}` {place}"), hint);
        }
    }

    /// The field of this name.
    pub(super) fn get(&self, key: &str) -> Option<Field<'a>> {
        let (spanned, value) = self.table?.iter().find(|(name, _)| name.get_ref() == key)?;
        let label = if self.name.is_empty() { format!("`{key}`") } else { format!("`{key}` in [{}]", self.name) };
        Some(Field { label, at: spanned.span().start, value: value.get_ref() })
    }
}

impl<'a> Field<'a> {
    /// Notes that the value is none of what is wanted.
    fn mismatch(&self, wanted: &str, hint: &str, problems: &mut Problems) {
        let given = match self.value {
            DeValue::String(_) => "a string",
            DeValue::Integer(_) => "an integer",
            DeValue::Float(_) => "a float",
            DeValue::Boolean(_) => "a boolean",
            DeValue::Datetime(_) => "a date",
            DeValue::Array(_) => "an array",
            DeValue::Table(_) => "a table",
        };
        problems.add(self.at, format!("{} must be {wanted}, not {given}", self.label), hint);
    }

    /// Notes that the value is of the right type but cannot be.
    pub(super) fn wrong(&self, why: &str, hint: impl Into<String>, problems: &mut Problems) {
        problems.add(self.at, format!("{} {why}", self.label), hint);
    }

    /// Notes something that a later version will do.
    pub(super) fn not_yet(&self, what: &str, instead: &str, problems: &mut Problems) {
        problems.add(self.at, format!("not yet: {what} ({})", self.label), instead);
    }

    /// A string without NUL.
    pub(super) fn text(&self, problems: &mut Problems) -> Option<&'a str> {
        match self.value.as_str() {
            Some(text) if text.contains('\0') => {
                self.wrong("holds a NUL character", "no program can be given one; leave it out", problems);
                None
            }
            Some(text) => Some(text),
            None => {
                self.mismatch("a string", "put it in quotes", problems);
                None
            }
        }
    }

    /// `true` or `false`.
    pub(super) fn boolean(&self, problems: &mut Problems) -> Option<bool> {
        let value = self.value.as_bool();
        if value.is_none() {
            self.mismatch("true or false", "write it without quotes", problems);
        }
        value
    }

    /// A whole number within bounds.
    pub(super) fn integer(&self, bounds: std::ops::RangeInclusive<i64>, problems: &mut Problems) -> Option<i64> {
        let range = format!("write a whole number from {} to {}", bounds.start(), bounds.end());
        let Some(number) = self.value.as_integer() else {
            self.mismatch("a whole number", &range, problems);
            return None;
        };
        let parsed = i64::from_str_radix(number.as_str(), number.radix()).ok().filter(|n| bounds.contains(n));
        if parsed.is_none() {
            self.wrong(&format!("cannot be {number}"), range, problems);
        }
        parsed
    }

    /// The same, for what is kept as `u32`; the bounds must lie within it.
    pub(super) fn count(&self, bounds: std::ops::RangeInclusive<u32>, problems: &mut Problems) -> Option<u32> {
        let bounds = i64::from(*bounds.start())..=i64::from(*bounds.end());
        self.integer(bounds, problems).and_then(|n| u32::try_from(n).ok())
    }

    /// A number; whole ones may be written without a point.
    pub(super) fn number(&self, problems: &mut Problems) -> Option<f64> {
        let text = self.value.as_float().map(|f| f.as_str()).or(self.value.as_integer().map(|i| i.as_str()));
        let number = text.and_then(|text| text.parse::<f64>().ok());
        if number.is_none() {
            self.mismatch("a number", "write for example `2.0`", problems);
        }
        number
    }

    /// A duration, longer than nothing and no longer than ten years.
    pub(super) fn duration(&self, problems: &mut Problems) -> Option<Duration> {
        let Some(text) = self.value.as_str() else {
            self.mismatch("a duration in quotes", "write for example `\"30s\"` or `\"10m\"`", problems);
            return None;
        };
        match parse_duration(text) {
            Ok(duration) if duration.is_zero() => {
                self.wrong("must be longer than 0", "write for example `\"30s\"`", problems);
                None
            }
            Ok(duration) if duration > LONGEST => {
                self.wrong(&format!("of `{text}` is longer than ten years"), "write at most `\"3650d\"`", problems);
                None
            }
            Ok(duration) => Some(duration),
            Err(_) => {
                let hint = "write a number and a unit, for example `\"500ms\"`, `\"30s\"`, `\"10m\"` or `\"7d\"`";
                self.wrong(&format!("is not a duration: `{text}`"), hint, problems);
                None
            }
        }
    }

    /// A size: `"64MiB"`, or a number of bytes.
    pub(super) fn bytes(&self, problems: &mut Problems) -> Option<Bytes> {
        let hint = "write for example `\"64MiB\"` or `\"2GiB\"`";
        let text = match self.value {
            DeValue::String(text) => text.as_ref(),
            DeValue::Integer(number) if number.radix() == 10 => number.as_str(),
            DeValue::Integer(_)
            | DeValue::Float(_)
            | DeValue::Boolean(_)
            | DeValue::Datetime(_)
            | DeValue::Array(_)
            | DeValue::Table(_) => {
                self.mismatch("a size", hint, problems);
                return None;
            }
        };
        let size = text.parse::<Bytes>().ok().filter(|size| i64::try_from(size.0).is_ok());
        if size.is_none() {
            self.wrong(&format!("is not a size: `{text}`"), hint, problems);
        }
        size
    }

    /// One of a few words.
    pub(super) fn choice<T: Copy>(&self, words: &[(&str, T)], problems: &mut Problems) -> Option<T> {
        let known: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
        let text = self.text(problems)?;
        let found = words.iter().find(|(word, _)| *word == text).map(|(_, value)| *value);
        if found.is_none() {
            self.wrong(&format!("cannot be `{text}`"), suggest(text, &known), problems);
        }
        found
    }

    /// A table.
    pub(super) fn table(&self, problems: &mut Problems) -> Option<&'a DeTable<'a>> {
        let table = self.value.as_table();
        if table.is_none() {
            self.mismatch("a table", "write `{ key = value }`, or a section of its own", problems);
        }
        table
    }

    /// The items of an array, each a field of its own.
    pub(super) fn items(&self, problems: &mut Problems) -> Option<Vec<Field<'a>>> {
        let Some(array) = self.value.as_array() else {
            self.mismatch("an array", "write `[…]`", problems);
            return None;
        };
        let item = |(n, item): (usize, &'a Spanned<DeValue<'a>>)| Field {
            label: format!("item {} of {}", n + 1, self.label),
            at: item.span().start,
            value: item.get_ref(),
        };
        Some(array.iter().enumerate().map(item).collect())
    }
}
