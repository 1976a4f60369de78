//! What `jobs.toml` means once it is checked.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use crate::domain::evidence::ExitMeaning;
use crate::domain::retry::{Backoff, OnOom};
use crate::domain::units::Bytes;

/// A checked configuration.
#[derive(Debug, Clone)]
pub struct Config {
    /// The file it was read from.
    pub path: PathBuf,
    /// The database.
    pub database: Database,
    /// May the schema be brought up to date at start?
    pub migrate: bool,
    /// The supervisor itself.
    pub supervisor: SupervisorConfig,
    /// Kinds by name.
    pub kinds: BTreeMap<String, KindConfig>,
    /// Schedules by name.
    pub schedules: BTreeMap<String, ScheduleConfig>,
    /// What is allowed but hardly meant, one sentence each.
    pub warnings: Vec<String>,
}

/// Which database.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Database {
    /// A SQLite file, absolute.
    Sqlite(PathBuf),
    /// A Postgres database.
    Postgres(PostgresUrl),
}

/// `postgres://…`. It may hold a password: `Debug` and `Display` leave that out.
#[derive(Clone, PartialEq, Eq)]
pub struct PostgresUrl(pub String);

impl PostgresUrl {
    /// The URL with what it holds, for whoever connects.
    #[must_use]
    pub fn secret(&self) -> &str {
        &self.0
    }

    /// Whether a password stands in it.
    #[must_use]
    pub fn has_password(&self) -> bool {
        super::postgres::has_password(&self.0)
    }
}

impl fmt::Display for PostgresUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (scheme, rest) = self.0.split_once("://").unwrap_or(("postgres", self.0.as_str()));
        let rest = rest.split('?').next().unwrap_or_default();
        let (user, place) = rest.rsplit_once('@').unwrap_or(("", rest));
        let user = user.split(':').next().unwrap_or_default();
        write!(f, "{scheme}://{user}{}{place}", if user.is_empty() { "" } else { "@" })
    }
}

impl fmt::Debug for PostgresUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PostgresUrl({self})")
    }
}

/// `[supervisor]`.
#[derive(Debug, Clone)]
pub struct SupervisorConfig {
    /// Its name; the host's by default.
    pub name: String,
    /// Its own subfolder of `state_dir`, absolute.
    pub state_dir: PathBuf,
    /// As written; a share is resolved against the host at start.
    pub memory_budget: MemoryBudget,
    /// How long a drain lets attempts finish.
    pub drain: Duration,
    /// Length of a lease; signs of life come every fifth of it.
    pub lease: Duration,
    /// How often to look for work unasked.
    pub poll: Duration,
    /// Largest payload.
    pub max_payload: Bytes,
    /// Largest result.
    pub max_result: Bytes,
    /// How long ended jobs are kept: succeeded, cancelled, dead.
    pub retain: (Duration, Duration, Duration),
}

/// `memory_budget`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum MemoryBudget {
    /// A share of min(host, own group's limit), 0 to 1.
    Share(f64),
    /// So many bytes.
    Fixed(Bytes),
}

impl MemoryBudget {
    /// The budget in bytes where `total` is what the host or the own group has.
    #[must_use]
    pub fn of(self, total: Bytes) -> Bytes {
        match self {
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                clippy::cast_precision_loss,
                reason = "a share of a size is a size"
            )]
            Self::Share(share) => Bytes((total.0 as f64 * share) as u64),
            Self::Fixed(bytes) => bytes,
        }
    }
}

/// How `enforce` is set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Enforce {
    /// A cgroup where one can be had, else the watchdog, loudly.
    #[default]
    Auto,
    /// A cgroup, or the job is not started.
    Cgroup,
    /// The watchdog.
    Watchdog,
}

/// What happens to output beyond `max_result`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Output {
    /// The last 64 KiB are kept as text, flagged `truncated`.
    #[default]
    Tail,
    /// The job is ended with `output_limit`.
    Strict,
}

/// `[kind.NAME]`: a heavy kind in mode `oneshot`.
#[derive(Debug, Clone)]
pub struct KindConfig {
    /// Its name.
    pub name: String,
    /// Program and arguments, templates and all.
    pub command: CommandTemplate,
    /// Attempts at once.
    pub slots: u32,
    /// Memory limit of one attempt.
    pub memory: Bytes,
    /// How the limit is enforced.
    pub enforce: Enforce,
    /// What an OOM by the own limit leads to.
    pub on_oom: OnOom,
    /// `None` never happens by default; `timeout = "0s"` is refused.
    pub timeout: Duration,
    /// From SIGTERM to SIGKILL.
    pub grace: Duration,
    /// From fork to exec.
    pub start_timeout: Duration,
    /// Charged attempts.
    pub max_attempts: u32,
    /// Interruptions free of charge.
    pub max_interruptions: u32,
    /// Waiting times.
    pub backoff: Backoff,
    /// Additions to the child's environment.
    pub env: BTreeMap<String, String>,
    /// OOM of another process of the tree does not spoil a success.
    pub tolerate_oom: bool,
    /// Output beyond `max_result`.
    pub output: Output,
    /// Working folder, absolute.
    pub cwd: PathBuf,
    /// User to run as.
    pub user: Option<String>,
    /// Group to run as.
    pub group: Option<String>,
    /// Niceness to add.
    pub nice: Option<i32>,
    /// Most processes and threads.
    pub pids: u32,
    /// What exit codes mean; 0 is success, 75 retry, 65 permanent by default.
    pub exit_codes: BTreeMap<i32, ExitMeaning>,
}

/// `[schedule.NAME]`: only `@startup` so far.
#[derive(Debug, Clone)]
pub struct ScheduleConfig {
    /// Its name.
    pub name: String,
    /// What it enqueues.
    pub kind: String,
    /// JSON text.
    pub payload: String,
}

/// A command line whose arguments may hold `{payload}` and `{payload.a.b}`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommandTemplate {
    /// As written.
    pub argv: Vec<String>,
}
