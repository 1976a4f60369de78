//! Writing to the two streams: data to stdout, words to stderr.

use std::io;
use std::io::IsTerminal;
use std::io::Write;

use clap::ColorChoice;

/// Prints data. A reader that went away (`| head`) is no error.
pub(crate) fn data(text: &str) {
    let mut stdout = io::stdout().lock();
    let newline = if text.is_empty() || text.ends_with('\n') { "" } else { "\n" };
    write!(stdout, "{text}{newline}").and_then(|()| stdout.flush()).ok();
}

/// Prints one JSON value on a line.
pub(crate) fn json(value: &serde_json::Value) {
    data(&value.to_string());
}

/// Says something to the person.
pub(crate) fn note(text: &str) {
    writeln!(io::stderr().lock(), "{text}").ok();
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
