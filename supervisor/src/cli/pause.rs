//! `jobvisor pause` and `jobvisor resume`.

use std::collections::BTreeSet;
use std::process::ExitCode;

use clap::builder::NonEmptyStringValueParser;

use crate::cli::Global;
use crate::cli::context::Place;
use crate::cli::context::block_on;
use crate::cli::failure::Failure;
use crate::cli::out;
use crate::kernel::host;
use crate::store::sqlite::OpenMode;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The kinds.
    #[arg(required = true, value_name = "KIND", value_parser = NonEmptyStringValueParser::new())]
    kinds: Vec<String>,
}

impl Args {
    /// Each once, in the order of their names.
    fn kinds(&self) -> Vec<String> {
        self.kinds.iter().cloned().collect::<BTreeSet<_>>().into_iter().collect()
    }
}

pub(crate) fn pause(global: &Global, args: &Args) -> Result<ExitCode, Failure> {
    let place = Place::find(global)?;
    let kinds = args.kinds();
    let already = block_on(async {
        let store = place.open(OpenMode::Existing).await?;
        let already = store.paused().await?;
        store.pause(&kinds, &who()).await?;
        Ok(already)
    })?;
    for kind in &kinds {
        told(global, kind, true);
        if let Some(paused) = already.iter().find(|paused| paused.kind == *kind) {
            out::note(&format!("kind `{kind}` was paused already, by {}", paused.by));
        }
        if let Some(config) = place.config.as_ref().filter(|config| !config.kinds.contains_key(kind)) {
            let known: Vec<&str> = config.kinds.keys().map(String::as_str).collect();
            let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
            let path = config.path.display();
            out::note(&format!("{path} has no kind `{kind}`, it has {known}; another supervisor may have it"));
        }
    }
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn resume(global: &Global, args: &Args) -> Result<ExitCode, Failure> {
    let place = Place::find(global)?;
    let kinds = args.kinds();
    let resumed = block_on(async { Ok(place.open(OpenMode::Existing).await?.resume(&kinds).await?) })?;
    for kind in &kinds {
        if resumed.contains(kind) {
            told(global, kind, false);
        } else {
            out::note(&format!("kind `{kind}` was not paused"));
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Who pauses, as everybody who meets the pause will read it: the user and the host, which outlive the command.
fn who() -> String {
    let uid = nix::unistd::Uid::current();
    let user = nix::unistd::User::from_uid(uid).ok().flatten().map_or_else(|| format!("uid {uid}"), |user| user.name);
    format!("{user}@{}", host::name())
}

/// The kinds acted on, one a line.
fn told(global: &Global, kind: &str, paused: bool) {
    if global.json {
        out::json(&serde_json::json!({ "kind": kind, "paused": paused }));
    } else {
        out::data(kind);
    }
}
