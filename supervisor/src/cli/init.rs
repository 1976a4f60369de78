//! `jobvisor init`.

use std::fs::OpenOptions;
use std::io::ErrorKind;
use std::io::Write;
use std::process::ExitCode;

use crate::cli::Global;
use crate::cli::context::Place;
use crate::cli::context::block_on;
use crate::cli::failure::Failure;
use crate::cli::out;
use crate::config;
use crate::store::sqlite::OpenMode;

pub(crate) fn run(global: &Global) -> Result<ExitCode, Failure> {
    let path = &global.config;
    match OpenOptions::new().write(true).create_new(true).open(path) {
        Ok(mut file) => {
            file.write_all(config::example().as_bytes()).map_err(|error| Failure::failed(&error))?;
            out::data(&format!("wrote {}", path.display()));
        }
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            out::note(&format!("{} is there already and stays as it is", path.display()));
        }
        Err(error) => return Err(Failure::usage(format!("cannot write `{}`: {error}", path.display()))),
    }
    let place = Place::find(global)?;
    block_on(async { place.open(OpenMode::Create).await.map(|_| ()) })?;
    out::data(&format!("database {} is ready", place.shown()));
    Ok(ExitCode::SUCCESS)
}
