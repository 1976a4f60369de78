//! `jobvisor doctor`: finds out by doing, and says what would be better.

use std::process::ExitCode;
use std::time::Duration;

use crate::cli::Global;
use crate::cli::context::Place;
use crate::cli::context::block_on;
use crate::cli::failed;
use crate::cli::failure::Failure;
use crate::cli::out;
use crate::config::Config;
use crate::config::Database;
use crate::config::Enforce;
use crate::domain::evidence::Enforcement;
use crate::domain::report::chain;
use crate::domain::text::printable;
use crate::domain::units::Bytes;
use crate::kernel::cgroup;
use crate::kernel::host;
use crate::store::postgres::Level;
use crate::store::postgres::PostgresStore;
use crate::store::postgres::Remark;
use crate::store::sqlite::OpenMode;
use crate::warden::Capabilities;
use crate::warden::WardenSetup;
use crate::warden::client;

/// A transaction that is open for longer keeps too much from being removed.
const OLD: Duration = Duration::from_secs(60);

/// One line of the list.
struct Finding {
    level: Level,
    what: String,
    hint: Option<String>,
}

impl Finding {
    /// Whether everything can go on as it is.
    fn is_good(&self) -> bool {
        self.level != Level::Trouble
    }
}

impl From<Remark> for Finding {
    fn from(Remark { level, what, hint }: Remark) -> Self {
        Self { level, what, hint }
    }
}

fn good(what: impl Into<String>) -> Finding {
    Finding { level: Level::Good, what: what.into(), hint: None }
}

fn trouble(what: impl Into<String>, hint: impl Into<String>) -> Finding {
    Finding { level: Level::Trouble, what: what.into(), hint: Some(hint.into()) }
}

pub(crate) fn run(global: &Global) -> Result<ExitCode, Failure> {
    let mut findings = vec![good(format!("host {}, Linux {}", host::name(), host::kernel_release()))];
    let capabilities = probe();
    findings.extend(memory());
    match Place::find(global) {
        Ok(place) => {
            findings.extend(database(&place));
            findings.extend(enforcement(&capabilities, place.config.as_ref()));
        }
        Err(error) => {
            findings.push(trouble(
                format!("configuration: {error}"),
                "`jobvisor check` shows every error; `jobvisor init` writes a first file",
            ));
            findings.extend(enforcement(&capabilities, None));
        }
    }
    print(global, &findings);
    Ok(if findings.iter().all(Finding::is_good) { ExitCode::SUCCESS } else { failed() })
}

/// A real warden, in a folder of its own, which makes a real leaf.
fn probe() -> Result<Capabilities, String> {
    let state_dir = std::env::temp_dir().join(format!("jobvisor-doctor-{}", std::process::id()));
    std::fs::create_dir_all(&state_dir).map_err(|error| format!("cannot create `{}`: {error}", state_dir.display()))?;
    let setup = WardenSetup { state_dir: state_dir.clone(), memory_budget: Bytes::mib(256).0, watchdog_only: false };
    let launched = client::launch(&setup, &[]);
    let capabilities = launched.map(|launched| launched.capabilities).map_err(|error| chain(&error));
    std::fs::remove_dir_all(&state_dir).ok();
    capabilities
}

fn enforcement(capabilities: &Result<Capabilities, String>, config: Option<&Config>) -> Vec<Finding> {
    let capabilities = match capabilities {
        Ok(capabilities) => capabilities,
        Err(why) => return vec![trouble(format!("no warden can be started: {why}"), "without it no job can run")],
    };
    let mut findings = Vec::new();
    match capabilities.enforcement {
        Enforcement::CgroupV2 | Enforcement::CgroupV1 => findings.push(good(format!(
            "memory limits by {}: a real leaf was made, limited, entered and removed below {}",
            capabilities.enforcement.label(),
            capabilities.jobs_group.as_deref().unwrap_or("-")
        ))),
        Enforcement::Watchdog => findings.push(trouble(
            format!("memory limits by the watchdog only: {}", capabilities.notes.join("; ")),
            "run it as a systemd unit with `Delegate=yes`, or give it a writable cgroup; until then a fast job can go past its limit before it is killed",
        )),
    }
    let strict =
        config.map(|config| config.kinds.values().filter(|kind| kind.enforce == Enforce::Cgroup)).into_iter().flatten();
    if capabilities.enforcement == Enforcement::Watchdog {
        findings.extend(strict.map(|kind| {
            trouble(
                format!("kind `{}` demands a cgroup and will not be started", kind.name),
                "see above, or set `enforce = \"auto\"`",
            )
        }));
    }
    findings
}

fn memory() -> Vec<Finding> {
    let Some(memory) = host::memory() else {
        return vec![trouble("the host's memory cannot be read", "set `memory_budget` to a size")];
    };
    let own = cgroup::memory_limit_of_own_group(&cgroup::Roots::default());
    let limit = own.map_or_else(
        || "no limit of our own group".to_owned(),
        |limit| format!("own group limited to {}", Bytes(limit)),
    );
    let swap = if memory.swap.0 == 0 { "no swap".to_owned() } else { format!("{} of swap", memory.swap) };
    vec![good(format!("memory: {} in all, {} available, {swap}, {limit}", memory.total, memory.available))]
}

fn database(place: &Place) -> Vec<Finding> {
    let shown = place.shown();
    let told = |error: &Failure, hint: &str| trouble(format!("database {shown}: {error}"), hint);
    let mut findings = match &place.database {
        Database::Sqlite(_) => Vec::new(),
        Database::Postgres(url) => match block_on(async { Ok(PostgresStore::examine(url.secret(), OLD).await?) }) {
            Ok(remarks) => remarks.into_iter().map(Finding::from).collect(),
            Err(error) => {
                let hint = "start the server, or correct the URL; a password may come from PGPASSFILE";
                return vec![told(&error, hint)];
            }
        },
    };
    // A server that cannot be used now has been told as such.
    if findings.iter().all(Finding::is_good) {
        findings.push(match block_on(async { Ok(place.open(OpenMode::Existing).await?.counts().await?) }) {
            Ok(counts) => {
                good(format!("database {shown}: {} job(s)", counts.iter().map(|count| count.jobs).sum::<u64>()))
            }
            Err(error) => told(&error, "`jobvisor init` or `jobvisor migrate` makes it ready"),
        });
    }
    findings
}

fn print(global: &Global, findings: &[Finding]) {
    for finding @ Finding { level, what, hint } in findings {
        if global.json {
            out::json(&serde_json::json!({ "good": finding.is_good(), "what": what, "hint": hint }));
            continue;
        }
        let mark = match level {
            Level::Good => "ok",
            Level::Note => "--",
            Level::Trouble => "!!",
        };
        // Names of databases, users and programs are others' words.
        out::data(&printable(format!("[{mark}] {what}").as_bytes()));
        if let Some(hint) = hint {
            out::data(&format!("     hint: {hint}"));
        }
    }
}
