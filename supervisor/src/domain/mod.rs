//! The words and rules of the product, free of I/O: jobs and their states, attempts and their fences,
//! what was observed of a death, what it proves, and what follows from it.
//!
//! Everybody calls it; it calls nobody. Its two decisions are pure functions:
//! [`judge`](verdict::judge) turns [`Evidence`](evidence::Evidence) into a [`Verdict`](verdict::Verdict), and
//! [`decide`](retry::decide) turns a verdict and the job's budgets into what the store has to record.
//! Neither reads a clock: [`clock`] is the one place that does.

pub mod cause;
pub mod clock;
pub mod evidence;
pub mod explain;
pub mod ids;
pub mod job;
mod readings;
pub mod report;
pub mod retry;
pub mod text;
pub mod units;
pub mod verdict;
