//! The program under test: the same `main` as the shipped one, built beside the tests.

use std::process::ExitCode;

fn main() -> ExitCode {
    jobvisor::cli::main()
}
