//! What people and scripts get to see: the whole story of a job, lists of many, the summary of a run; kinds, and who runs them.
//!
//! Called by the command line; it turns stored rows into text or JSON and does nothing else: no store, no clock (the
//! caller says what time it is), no terminal (the caller says whether colour is wanted).
//!
//! Whatever comes from a job (payload, result, message, trace, output, process names, also its kind) is hostile to a
//! terminal until proven otherwise: every text leaves through `printable`, which makes control characters visible.
//! JSON output needs none of that; it keeps what was stored.

mod fleet;
mod json;
mod picture;
mod printable;
mod render;
mod report;
mod stats;
mod status;
mod tables;
#[cfg(test)]
mod tests;

pub use fleet::{TermState, supervisor_json_line, supervisors_table};
pub use json::{json, list_json_line};
pub use picture::sparkline;
pub use render::text;
pub use report::Report;
pub use stats::{KindStats, kind_json_line, kind_stats, kinds_table, stats_json_line, stats_table};
pub use status::status_text;
pub use tables::{list_table, summary_table};
