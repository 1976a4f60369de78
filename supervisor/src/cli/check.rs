//! `jobvisor check`.

use std::process::ExitCode;

use crate::cli::Global;
use crate::cli::failure::Failure;
use crate::cli::out;
use crate::config;

pub(crate) fn run(global: &Global) -> Result<ExitCode, Failure> {
    let config = config::load(&global.config)?;
    for warning in &config.warnings {
        out::note(&format!("warning: {warning}"));
    }
    out::data(&format!(
        "{} is good: {} kind(s), {} schedule(s)",
        config.path.display(),
        config.kinds.len(),
        config.schedules.len()
    ));
    Ok(ExitCode::SUCCESS)
}
