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
use crate::domain::ids::JobId;
use crate::domain::units::Bytes;
use crate::domain::units::parse_duration;
use crate::runtime::spec::row_policy;
use crate::store::NewJob;
use crate::store::sqlite::OpenMode;

/// Largest payload where no configuration says otherwise.
const MAX_PAYLOAD: Bytes = Bytes::mib(1);

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The kind, as `jobs.toml` names it.
    kind: String,
    /// JSON, `@FILE` to read it from a file, or `-` for stdin.
    #[arg(long, default_value = "{}", value_name = "JSON|@FILE|-", allow_hyphen_values = true)]
    payload: String,
    /// Add this many.
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
    let payload = read_payload(&args.payload)?;
    let kind = match &place.config {
        Some(config) => Some(known_kind(config, &args.kind)?),
        None => None,
    };
    let limit = place.config.as_ref().map_or(MAX_PAYLOAD, |config| config.supervisor.max_payload);
    check_payload(&payload, limit, kind)?;
    let run_at = args.at.or_else(|| args.delay.map(|delay| crate::domain::clock::now() + delay));
    let job = NewJob {
        kind: args.kind.clone(),
        payload,
        priority: args.priority,
        run_at,
        tenant: args.tenant.clone(),
        unique_key: args.unique.clone(),
        after: args.after.clone(),
        max_attempts: args.max_attempts,
        memory: args.memory,
        policy: kind.map(row_policy),
        schedule: None,
    };
    let ids = block_on(async {
        let store = place.open(OpenMode::Create).await?;
        let jobs = vec![job; usize::try_from(args.count).unwrap_or(usize::MAX)];
        Ok(store.enqueue(&jobs).await?)
    })?;
    let lines: Vec<String> = ids.iter().map(|enqueued| enqueued.id().to_string()).collect();
    out::data(&lines.join("\n"));
    Ok(ExitCode::SUCCESS)
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

fn read_payload(argument: &str) -> Result<String, Failure> {
    let unreadable =
        |error: std::io::Error| Failure::usage(format!("cannot read the payload from `{argument}`: {error}"));
    if argument == "-" {
        let mut text = String::new();
        std::io::stdin().read_to_string(&mut text).map_err(unreadable)?;
        return Ok(text);
    }
    match argument.strip_prefix('@') {
        Some(path) => fs::read_to_string(path).map_err(unreadable),
        None => Ok(argument.to_owned()),
    }
}

fn check_payload(payload: &str, limit: Bytes, kind: Option<&KindConfig>) -> Result<(), Failure> {
    if payload.len() as u64 > limit.0 {
        let size = Bytes(payload.len() as u64);
        return Err(Failure::usage(format!(
            "the payload has {size}, more than `max_payload` = {limit}\nhint: hand over a path or a key instead of the data"
        )));
    }
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
