//! What we ask of Linux, and what we do where it cannot.
//!
//! The warden and the supervisor call it; it knows files, processes and groups, not jobs. It alone holds `unsafe`.
//! Nothing in it waits (but [`local::connect`], within bounds), and nothing in it decides: a refusal comes back as [`KernelError`] with the verb, the object
//! and the kernel's error number. Folders such as `/proc` are parameters, so that tests can give fixtures.

pub mod cgroup;
pub mod durable;
mod error;
pub mod host;
pub mod local;
pub mod proc;
pub mod process;
pub mod reap;
pub mod signals;
pub mod socket;
pub mod spawn;
mod text;

pub use error::KernelError;
