//! `jobvisor enqueue`.

use std::fs;
use std::io::Read;
use std::process::ExitCode;
use std::time::Duration;

use jiff::Timestamp;

use crate::cli::Global;
use crate::cli::context::Place;
use crate::cli::context::block_on;
use crate::cli::failure::Failure;
use crate::cli::out;
use crate::config::KindConfig;
use crate::config::LEAST_MEMORY;
use crate::domain::ids::JobId;
use crate::domain::units::Bytes;
use crate::domain::units::parse_duration;
use crate::domain::units::show_duration;
use crate::runtime::spec::row_policy;
use crate::store::NewJob;
use crate::store::sqlite::OpenMode;

/// Largest payload where no configuration says otherwise.
const MAX_PAYLOAD: Bytes = Bytes::mib(1);
/// Most jobs of one transaction, and most bytes of their payloads together.
const BATCH: usize = 10_000;
const BATCH_BYTES: usize = 32 << 20;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The kind, as `jobs.toml` names it.
    kind: String,
    /// JSON, `@FILE` to read it from a file, or `-` for stdin.
    #[arg(long, default_value = "{}", value_name = "JSON|@FILE|-", allow_hyphen_values = true)]
    payload: String,
    /// Add this many; their ids are printed as they are added, 10000 at once.
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    count: u32,
    /// Not before this long from now.
    #[arg(long = "in", value_name = "DURATION", value_parser = parse_duration, conflicts_with = "at")]
    delay: Option<Duration>,
    /// Not before this time (RFC 3339, `2027-01-31T06:00:00Z`).
    #[arg(long, value_name = "TIME")]
    at: Option<Timestamp>,
    /// Lower goes first.
    #[arg(long, default_value_t = 0, value_name = "N", allow_hyphen_values = true, value_parser = clap::value_parser!(i32).range(-32768..=32767))]
    priority: i32,
    /// At most one unfinished job of the kind holds this key; the id of the holder is printed instead.
    #[arg(long, value_name = "KEY", conflicts_with = "count")]
    unique: Option<String>,
    /// Run after this job has succeeded (may be given several times).
    #[arg(long, value_name = "ID")]
    after: Vec<JobId>,
    /// In place of the kind's `max_attempts`.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=32767))]
    max_attempts: Option<u32>,
    /// In place of the kind's `memory`.
    #[arg(long, value_name = "SIZE")]
    memory: Option<Bytes>,
    /// For whom; kept for fair shares.
    #[arg(long, default_value = "", value_name = "T")]
    tenant: String,
}

pub(crate) fn run(global: &Global, args: &Args) -> Result<ExitCode, Failure> {
    let place = Place::find(global)?;
    let kind = match &place.config {
        Some(config) => Some(known_kind(config, &args.kind)?),
        None if args.kind.is_empty() => return Err(Failure::usage("a kind needs a name")),
        None => None,
    };
    let limit = place.config.as_ref().map_or(MAX_PAYLOAD, |config| config.supervisor.max_payload);
    let payload = read_payload(&args.payload, limit)?;
    check_payload(&payload, kind)?;
    if let Some(memory) = args.memory.filter(|memory| *memory < LEAST_MEMORY) {
        return Err(Failure::usage(format!(
            "--memory cannot be {memory}\nhint: at least {LEAST_MEMORY}: with less a process stalls without end instead of dying"
        )));
    }
    let mut job = NewJob {
        kind: args.kind.clone(),
        payload,
        priority: args.priority,
        run_at: args.at,
        tenant: args.tenant.clone(),
        unique_key: args.unique.clone(),
        after: args.after.clone(),
        max_attempts: args.max_attempts,
        memory: args.memory,
        policy: kind.map(row_policy),
        schedule: None,
    };
    block_on(async {
        let store = place.open(OpenMode::Create).await?;
        if let Some(delay) = args.delay {
            // The database's clock decides what is due, not this host's (I6).
            job.run_at = Some(later(store.now().await?, delay)?);
        }
        let mut left = usize::try_from(args.count).unwrap_or(usize::MAX);
        while left > 0 {
            let jobs = vec![job.clone(); left.min(at_once(&job))];
            let ids = store.enqueue(&jobs).await?;
            let lines: Vec<String> = ids.iter().map(|enqueued| enqueued.id().to_string()).collect();
            out::data(&lines.join("\n"));
            left -= jobs.len();
        }
        Ok(ExitCode::SUCCESS)
    })
}

/// How many such jobs make one transaction: what is held in memory is bounded, whatever `--count` says.
fn at_once(job: &NewJob) -> usize {
    (BATCH_BYTES / job.payload.len().max(1)).clamp(1, BATCH)
}

fn later(now: Timestamp, delay: Duration) -> Result<Timestamp, Failure> {
    now.checked_add(delay)
        .map_err(|_| Failure::usage(format!("--in {} lies beyond the year 9999", show_duration(delay))))
}

fn known_kind<'a>(config: &'a crate::config::Config, name: &str) -> Result<&'a KindConfig, Failure> {
    config.kinds.get(name).ok_or_else(|| {
        let known: Vec<&str> = config.kinds.keys().map(String::as_str).collect();
        Failure::usage(format!(
            "{} has no kind `{name}`\nhint: it has {}",
            config.path.display(),
            if known.is_empty() { "none".to_owned() } else { known.join(", ") }
        ))
    })
}

fn read_payload(argument: &str, limit: Bytes) -> Result<String, Failure> {
    let text = match (argument, argument.strip_prefix('@')) {
        ("-", _) => read_up_to(std::io::stdin().lock(), limit),
        (_, Some(path)) => fs::File::open(path).and_then(|file| read_up_to(file, limit)),
        (_, None) => Ok(argument.to_owned()),
    };
    let text = text.map_err(|error| Failure::usage(format!("cannot read the payload from `{argument}`: {error}")))?;
    if text.len() as u64 > limit.0 {
        return Err(Failure::usage(format!(
            "the payload has more than `max_payload` = {limit}\nhint: hand over a path or a key instead of the data"
        )));
    }
    Ok(text)
}

/// One byte more than allowed is enough to tell, and a stream without an end is not waited for.
fn read_up_to(source: impl Read, limit: Bytes) -> std::io::Result<String> {
    let mut bytes = Vec::new();
    source.take(limit.0.saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > limit.0 {
        // Cut wherever it was: it is refused for its length.
        return Ok(String::from_utf8_lossy(&bytes).into_owned());
    }
    String::from_utf8(bytes).map_err(|error| std::io::Error::new(std::io::ErrorKind::InvalidData, error))
}

fn check_payload(payload: &str, kind: Option<&KindConfig>) -> Result<(), Failure> {
    let value: serde_json::Value = serde_json::from_str(payload).map_err(|error| {
        Failure::usage(format!(
            "the payload is not JSON: {error}\nhint: strings need quotes of their own: --payload '\"text\"'"
        ))
    })?;
    if let Some(kind) = kind
        && let Err(error) = kind.command.render(&value)
    {
        return Err(Failure::usage(format!("kind `{}` cannot run this payload: {error}", kind.name)));
    }
    Ok(())
}
