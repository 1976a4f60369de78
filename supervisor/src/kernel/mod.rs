//! x

pub mod cgroup;
mod error;

pub use error::KernelError;
