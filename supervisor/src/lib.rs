//! jobvisor: a supervisor for background jobs that says, with proof, how a job died.
//!
//! The folders are the layers; a module names only modules of a lower row (`tests/layers.rs` holds it).
//!
//! | layer | module | what it is |
//! |---|---|---|
//! | 6 | [`cli`] | the command line |
//! | 5 | [`inspect`] | a job's story as text and JSON |
//! | 4 | [`runtime`] | the supervisor at work: who runs, when, and what follows |
//! | 3 | [`warden`] | the helper process that is the parent of every child: starts, limits, watches, freezes, kills, sees the end |
//! | 2 | [`config`] · [`store`] · [`kernel`] | `jobs.toml` · the database · what is asked of Linux |
//! | 1 | [`domain`] | words and rules: states, evidence, verdicts, retries |
//!
//! The life of an attempt: the store claims it (counted and charged) → the dispatcher gives it a slot → the warden starts
//! its process inside a limited group → the process ends, somehow → the warden reads the counters *after* the end and before
//! the group is removed → `domain::verdict::judge` says what the evidence proves → `domain::retry::decide` says what
//! follows → the store records both, under the attempt's fence.
//!
//! The database is a SQLite file of one supervisor, whose lock is its lease, or a Postgres database of any number of them. There
//! `runtime::lease` renews the lease and tells the warden how long to trust it, and `runtime::rescue` ends what supervisors left
//! that are gone.

pub mod cli;
pub mod config;
pub mod domain;
pub mod inspect;
pub mod kernel;
pub mod runtime;
pub mod store;
pub mod warden;
