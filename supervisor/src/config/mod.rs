//! `jobs.toml`: its shape as written, and what it means once checked.
//!
//! Called by the commands at start (and by `check`), before anything else is opened. [`parse`] walks the document with
//! its spans (`file`), section by section (`resolve`, `kind`, `schedule`), and collects *every* error with its line, what
//! is wrong and what would be right. What the file may say but this version cannot do yet is refused as "not yet",
//! never ignored; what is allowed but hardly meant becomes a warning.
//!
//! It reads the file, the environment and, for warnings only, the user table and `PATH` of this host. It opens no
//! database and creates no folder.

mod error;
mod expand;
mod file;
mod host;
mod kind;
mod model;
mod postgres;
mod resolve;
mod schedule;
mod shell;
mod template;

use std::path::Path;

pub use error::{ConfigError, ConfigErrors};
pub use kind::LEAST_MEMORY;
pub use model::{
    CommandTemplate, Config, Database, Enforce, KindConfig, MemoryBudget, Output, PostgresUrl, ScheduleConfig,
    SupervisorConfig,
};
pub use resolve::parse_database;
pub use template::TemplateError;

/// Reads and checks a file; `${NAME}` comes from this process's environment.
///
/// # Errors
/// The file cannot be read, or everything that is wrong in it.
pub fn load(path: &Path) -> Result<Config, ConfigErrors> {
    let text = std::fs::read_to_string(path).map_err(|error| ConfigErrors::unreadable(path, &error))?;
    parse(&text, path, &|name| std::env::var(name).ok())
}

/// Checks the text of the file at `path`; `env` answers for `${NAME}`.
///
/// # Errors
/// Everything that is wrong, in the order of the file's lines.
pub fn parse(text: &str, path: &Path, env: &dyn Fn(&str) -> Option<String>) -> Result<Config, ConfigErrors> {
    resolve::resolve(text, path, env)
}

/// The commented file that `jobvisor init` writes: one kind that works out of the box.
#[must_use]
pub fn example() -> &'static str {
    include_str!("init.toml")
}

#[cfg(test)]
mod tests;
