//! The `jobvisor` program.

use std::process::ExitCode;

fn main() -> ExitCode {
    jobvisor::cli::main()
}
