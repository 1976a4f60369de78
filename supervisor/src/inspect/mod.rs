//! What people and scripts get to see of jobs: the whole story of one, lists of many, the summary of a run.
//!
//! Called by the command line; it turns stored rows into text or JSON and does nothing else: no store, no clock (the
//! caller says what time it is), no terminal (the caller says whether colour is wanted).
//!
//! Whatever comes from a job (payload, result, message, trace, output, process names, also its kind) is hostile to a
//! terminal until proven otherwise: every text leaves through `printable`, which makes control characters visible.
//! JSON output needs none of that; it keeps what was stored.

mod json;
mod picture;
mod printable;
mod render;
mod report;
mod tables;
#[cfg(test)]
mod tests;

pub use json::{json, list_json_line};
pub use picture::sparkline;
pub use render::text;
pub use report::Report;
pub use tables::{list_table, summary_table};
