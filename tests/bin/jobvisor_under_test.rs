//! The program under test: the same `main` as the shipped one, built beside the tests.
//!
//! With the feature `failpoints` its supervisor's store can be told to strike at a given call; see `failpoints.rs`.

use std::process::ExitCode;

#[cfg(feature = "failpoints")]
mod failpoints;

#[cfg(not(feature = "failpoints"))]
fn main() -> ExitCode {
    jobvisor::cli::main()
}

#[cfg(feature = "failpoints")]
fn main() -> ExitCode {
    jobvisor::cli::main_with(failpoints::wrap)
}
