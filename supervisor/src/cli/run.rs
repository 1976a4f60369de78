//! `jobvisor run`.

use std::os::fd::AsFd;
use std::process::ExitCode;
use std::sync::Arc;

use jiff::Timestamp;

use crate::cli::Global;
use crate::cli::context::Place;
use crate::cli::failed;
use crate::cli::failure::Failure;
use crate::cli::out;
use crate::cli::telemetry;
use crate::config::Config;
use crate::config::Enforce;
use crate::domain::evidence::Enforcement;
use crate::domain::job::JobState;
use crate::domain::units::Bytes;
use crate::inspect;
use crate::kernel::cgroup;
use crate::kernel::host;
use crate::kernel::process;
use crate::runtime::event::ExitReason;
use crate::runtime::service;
use crate::runtime::service::Prepared;
use crate::runtime::service::ServiceError;
use crate::store::Filter;
use crate::store::PausedKind;
use crate::store::Store;
use crate::store::sqlite::OpenMode;
use crate::warden::Capabilities;
use crate::warden::WardenSetup;
use crate::warden::client;

/// Most jobs in the summary at the end, and most dead ones beside them.
const SUMMARY: u32 = 200;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// End when nothing is left to do, with a summary on stdout.
    #[arg(long)]
    until_idle: bool,
    /// With `--until-idle`: exit status 1 if a job ended dead.
    #[arg(long, requires = "until_idle")]
    fail_on_dead: bool,
}

pub(crate) fn run(
    global: &Global,
    args: &Args,
    wrap: &dyn Fn(Arc<dyn Store>) -> Arc<dyn Store>,
) -> Result<ExitCode, Failure> {
    let place = Place::find(global)?;
    let Some(config) = &place.config else {
        return Err(Failure::usage(format!("`run` needs a configuration; there is no `{}`", global.config.display())));
    };
    let mut config = config.clone();
    telemetry::start(global.json);
    for warning in &config.warnings {
        tracing::warn!("{warning}");
    }
    let lock = place.lock(&config.supervisor)?;
    // What the lock protects, nobody else touches: two supervisors of one name may work on two databases.
    config.supervisor.state_dir.push(lock.folder_name());
    let config = Arc::new(config);
    let budget = memory_budget(&config)?;
    let setup = WardenSetup {
        state_dir: config.supervisor.state_dir.clone(),
        memory_budget: budget.0,
        watchdog_only: !config.kinds.is_empty() && config.kinds.values().all(|kind| kind.enforce == Enforce::Watchdog),
    };
    std::fs::create_dir_all(&setup.state_dir)
        .map_err(|error| Failure::usage(format!("cannot create `{}`: {error}", setup.state_dir.display())))?;
    // The last moment without threads: the warden is forked here.
    let launched = client::launch(&setup, &[lock.as_fd()]).map_err(|error| Failure::failed(&error))?;
    telemetry::detach().map_err(|error| Failure::failed(&error))?;
    die_of_panics();
    announce(&launched.capabilities, budget);
    process::set_not_dumpable().map_err(|error| Failure::failed(&error))?;
    let prepared = Prepared { config: Arc::clone(&config), launched, setup, lock, budget, until_idle: args.until_idle };
    let runtime =
        tokio::runtime::Builder::new_multi_thread().enable_all().build().map_err(|error| Failure::failed(&error))?;
    let done = runtime.block_on(async {
        let open = async || place.open_store(OpenMode::Create).await.map(wrap);
        let left = service::run(prepared, open).await.map_err(could_not_begin)?;
        telemetry::flush();
        finish(global, args, left).await
    });
    telemetry::flush();
    done
}

/// A task that panics would leave a supervisor that claims or records nothing and looks alive. It dies instead: the warden
/// ends the children and writes down what it saw, and the next start records that.
fn die_of_panics() {
    let tell = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        tell(info);
        std::process::abort();
    }));
}

fn could_not_begin(error: ServiceError) -> Failure {
    match error {
        ServiceError::Store(error) => error.into(),
        ServiceError::Warden(_) | ServiceError::Signals(_) | ServiceError::Here(_) | ServiceError::Thread(_) => {
            Failure::failed(&error)
        }
    }
}

async fn finish(global: &Global, args: &Args, left: service::Left) -> Result<ExitCode, Failure> {
    let stuck = match left.reason {
        ExitReason::Stopped if !left.complete => return Ok(failed()),
        ExitReason::Stopped => return Ok(ExitCode::SUCCESS),
        ExitReason::NoWarden { why } => {
            out::complain(&format!("no warden can be started: {why}"));
            return Ok(failed());
        }
        ExitReason::Idle { stuck } => stuck,
    };
    let dead = match &left.store {
        Some(store) => summarize(global, store.as_ref(), left.since).await?,
        None => false,
    };
    for line in &stuck {
        out::note(&format!("nobody living can run {line}"));
    }
    if let Some(store) = &left.store {
        tell_paused(store.as_ref()).await?;
    }
    Ok(if !stuck.is_empty() || (args.fail_on_dead && dead) { failed() } else { ExitCode::SUCCESS })
}

/// A run that ends while jobs are left says why it did not wait for them.
async fn tell_paused(store: &dyn Store) -> Result<(), Failure> {
    let (paused, counts) = (store.paused().await?, store.counts().await?);
    for PausedKind { kind, by, .. } in paused {
        let left = counts.iter().filter(|count| count.kind == kind && !count.state.is_final()).map(|count| count.jobs);
        let left = left.sum::<u64>();
        if left > 0 {
            out::note(&format!("kind `{kind}` is paused (by {by}); {left} job(s) of it are left"));
        }
    }
    Ok(())
}

/// The table of what ended since the start; answers whether a job is dead.
async fn summarize(global: &Global, store: &dyn Store, since: Timestamp) -> Result<bool, Failure> {
    let newest = Filter { since: Some(since), limit: Some(SUMMARY), ..Filter::default() };
    // The dead are asked for by name: among many others they may not be of the newest.
    let dead = Filter { states: vec![JobState::Dead], ..newest.clone() };
    let (newest, dead) = (store.list(&newest).await?, store.list(&dead).await?);
    let cut = [&newest, &dead].iter().any(|jobs| jobs.len() as u64 >= u64::from(SUMMARY));
    let mut jobs = [newest, dead].concat();
    jobs.retain(|job| job.finished_at.is_some_and(|at| at >= since));
    jobs.sort_by_key(|job| job.id);
    jobs.dedup_by_key(|job| job.id);
    if global.json {
        jobs.iter().for_each(|job| out::json(&inspect::list_json_line(job)));
    } else {
        out::data(&inspect::summary_table(&jobs));
    }
    if cut {
        out::note(&format!(
            "more ended than are shown: these are the newest {SUMMARY}, and the newest {SUMMARY} dead ones"
        ));
    }
    let mut dead = jobs.iter().filter(|job| job.state == JobState::Dead);
    let first = dead.next();
    if let Some(job) = dead.chain(first).max_by_key(|job| job.peak) {
        out::note(&format!("next: jobvisor --config {} inspect {}", global.config.display(), job.id));
    }
    Ok(first.is_some())
}

fn memory_budget(config: &Config) -> Result<Bytes, Failure> {
    let host = host::memory().ok_or_else(|| {
        Failure::usage("cannot tell how much memory this host has\nhint: set `memory_budget` to a size")
    })?;
    let own = cgroup::memory_limit_of_own_group(&cgroup::Roots::default()).map_or(host.total, Bytes);
    let budget = config.supervisor.memory_budget.of(host.total.min(own));
    Ok(budget)
}

/// Says loudly what is in force (I14).
fn announce(capabilities: &Capabilities, budget: Bytes) {
    let enforcement = capabilities.enforcement.label();
    match capabilities.enforcement {
        Enforcement::CgroupV2 | Enforcement::CgroupV1 => {
            let group = capabilities.jobs_group.as_deref().unwrap_or_default();
            tracing::info!(enforcement, group, %budget, "memory limits are the kernel's");
        }
        Enforcement::Watchdog => {
            let why = capabilities.notes.join("; ");
            tracing::warn!(enforcement, %budget, %why, "memory limits are enforced by sampling only; run `jobvisor doctor`");
        }
    }
}
