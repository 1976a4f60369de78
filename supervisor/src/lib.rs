//! jobvisor: a supervisor for background jobs that says, with proof, how a job died.

pub mod config;
pub mod domain;
pub mod inspect;
pub mod kernel;
pub mod store;
pub mod warden;
