//! `jobvisor status`: how the supervisor of this configuration stands, in its own words.

use std::process::ExitCode;

use crate::cli::Global;
use crate::cli::context::Place;
use crate::cli::failure::Failure;
use crate::cli::out;
use crate::inspect;
use crate::runtime::control;
use crate::runtime::control::ControlError;

pub(crate) fn run(global: &Global) -> Result<ExitCode, Failure> {
    let place = Place::find(global)?;
    let Some(config) = &place.config else {
        return Err(Failure::usage(format!(
            "a supervisor is found by its configuration; there is no `{}`\nhint: `jobvisor supervisors` asks the database",
            global.config.display()
        )));
    };
    let folder = config.supervisor.state_dir.join(place.state_folder()?);
    let snapshot = control::ask(&folder).map_err(|error| match &error {
        ControlError::Silent { .. } => Failure::timed_out(&error),
        ControlError::Nobody { .. } | ControlError::Socket { .. } | ControlError::Answer(_) => Failure::failed(&error),
    })?;
    if global.json {
        let value = serde_json::to_value(&snapshot).map_err(|error| Failure::failed(&error))?;
        out::json(&value);
    } else {
        out::data(&inspect::status_text(&snapshot));
    }
    Ok(ExitCode::SUCCESS)
}
