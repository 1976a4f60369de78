//! The program `jobvisor`, built where tests can find it.

use std::process::ExitCode;

fn main() -> ExitCode {
    match std::env::args().nth(1).as_deref() {
        Some("warden") => jobvisor::warden::run(),
        Some(_) | None => ExitCode::from(2),
    }
}
