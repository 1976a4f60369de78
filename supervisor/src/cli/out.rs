//! Writing to the two streams: data to stdout, words to stderr.

use std::io;
use std::io::IsTerminal;
use std::io::Write;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering;

use clap::ColorChoice;

use crate::domain::text::printable;

/// Some data did not reach stdout.
static LOST: AtomicBool = AtomicBool::new(false);

/// Prints data. A reader that went away (`| head`) is no error; another failure is told once and makes the command fail.
pub(crate) fn data(text: &str) {
    let mut stdout = io::stdout().lock();
    let newline = if text.is_empty() || text.ends_with('\n') { "" } else { "\n" };
    match write!(stdout, "{text}{newline}").and_then(|()| stdout.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe && !LOST.swap(true, Ordering::Relaxed) => {
            complain(&format!("cannot write to stdout: {error}"));
        }
        Ok(()) | Err(_) => {}
    }
}

/// Whether [`data`] failed.
pub(crate) fn is_incomplete() -> bool {
    LOST.load(Ordering::Relaxed)
}

/// Prints one JSON value on a line.
pub(crate) fn json(value: &serde_json::Value) {
    data(&value.to_string());
}

/// Says something to the person. Names of kinds and the like come from others: no terminal obeys them.
pub(crate) fn note(text: &str) {
    writeln!(io::stderr().lock(), "{}", printable(text.as_bytes())).ok();
}

/// Reports an error.
pub(crate) fn complain(error: &dyn std::fmt::Display) {
    note(&format!("error: {error}"));
}

/// Whether to print colour on stdout.
pub(crate) fn colored(choice: ColorChoice) -> bool {
    match choice {
        ColorChoice::Always => true,
        ColorChoice::Never => false,
        ColorChoice::Auto => io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none(),
    }
}
