//! From a claimed job and its kind to what the warden is told to start.

use std::collections::BTreeMap;

use crate::config::Enforce;
use crate::config::KindConfig;
use crate::store::Claimed;
use crate::store::RowPolicy;
use crate::warden::StartSpec;

/// Variables of the supervisor's own environment that children get. Nothing that may hold a secret: a child of the same
/// user must not find the database's URL there.
const INHERITED: [&str; 10] =
    ["PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TZ", "SSL_CERT_FILE", "SSL_CERT_DIR"];

/// The child's environment: what may be inherited (and every `LC_…`), then the kind's `env`, which wins.
fn environment(kind: &KindConfig, own: impl Iterator<Item = (String, String)>) -> Vec<(String, String)> {
    let mut env: BTreeMap<String, String> =
        own.filter(|(name, _)| INHERITED.contains(&name.as_str()) || name.starts_with("LC_")).collect();
    env.extend(kind.env.iter().map(|(name, value)| (name.clone(), value.clone())));
    env.into_iter().collect()
}

/// How to start this attempt.
///
/// # Errors
/// The payload does not fit the kind's command template; the text says where.
pub fn start_spec(claimed: &Claimed, kind: &KindConfig) -> Result<StartSpec, String> {
    let payload =
        serde_json::from_str(&claimed.payload).map_err(|error| format!("the payload is not JSON: {error}"))?;
    let argv = kind.command.render(&payload).map_err(|error| error.to_string())?;
    let own =
        std::env::vars_os().filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
    Ok(StartSpec {
        fence: claimed.fence,
        argv,
        env: environment(kind, own),
        cwd: kind.cwd.clone(),
        memory: claimed.memory.0,
        pids: kind.pids,
        require_cgroup: kind.enforce == Enforce::Cgroup,
        watchdog: kind.enforce == Enforce::Watchdog,
        timeout_ms: Some(millis(kind.timeout)),
        grace_ms: millis(kind.grace),
        start_timeout_ms: millis(kind.start_timeout),
        user: kind.user.clone(),
        group: kind.group.clone(),
        nice: kind.nice,
    })
}

/// What of a kind's configuration is kept on its jobs' rows.
#[must_use]
pub fn row_policy(kind: &KindConfig) -> RowPolicy {
    RowPolicy {
        max_attempts: kind.max_attempts,
        max_interruptions: kind.max_interruptions,
        memory: kind.memory,
        backoff: kind.backoff,
    }
}

fn millis(duration: std::time::Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
