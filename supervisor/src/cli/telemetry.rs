//! The log: key=value lines on stderr, filtered by `JOBVISOR_LOG` (`info` by default); JSON with `--json`.

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;

/// Starts the log of this process.
pub(crate) fn start(json: bool) {
    let filter = EnvFilter::try_from_env("JOBVISOR_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    if json {
        log.json().init();
    } else {
        log.with_ansi(std::io::stderr().is_terminal()).with_target(false).init();
    }
}
