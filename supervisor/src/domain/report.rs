//! Prints an error with its causes: the one place that walks the chain.

use std::error::Error;

/// The error and its sources in one line, parted by `: `. (Our errors never repeat their source in their own text.)
#[must_use]
pub fn chain(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text.push_str(": ");
        text.push_str(&error.to_string());
        source = error.source();
    }
    text
}
