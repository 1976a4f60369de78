//! Errors that a person meets, and the exit status of each.

use std::error::Error;
use std::fmt;
use std::process::ExitCode;

use crate::config::ConfigErrors;
use crate::domain::report::chain;
use crate::store::StoreError;

/// An error with its exit status.
#[derive(Debug)]
pub(crate) struct Failure {
    code: u8,
    text: String,
}

impl Failure {
    /// The thing asked about failed.
    pub(crate) const FAILED: u8 = 1;
    /// Usage or configuration.
    pub(crate) const USAGE: u8 = 2;
    /// The database is out of reach.
    pub(crate) const DATABASE: u8 = 3;
    /// A wait ran out of time.
    pub(crate) const TIMED_OUT: u8 = 4;

    /// The thing asked about failed.
    pub(crate) fn failed(error: &(dyn Error + 'static)) -> Self {
        Self { code: Self::FAILED, text: chain(error) }
    }

    /// It did not answer in time.
    pub(crate) fn timed_out(error: &(dyn Error + 'static)) -> Self {
        Self { code: Self::TIMED_OUT, text: chain(error) }
    }

    /// A mistake in the arguments or the configuration.
    pub(crate) fn usage(text: impl Into<String>) -> Self {
        Self { code: Self::USAGE, text: text.into() }
    }

    /// The status to exit with.
    pub(crate) fn exit_code(&self) -> ExitCode {
        self.code.into()
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.text.fmt(f)
    }
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        let code = match &error {
            StoreError::Unavailable { .. } | StoreError::Missing { .. } | StoreError::Corrupt { .. } => Self::DATABASE,
            StoreError::Refused { .. } | StoreError::TooNew { .. } | StoreError::NotMigrated { .. } => Self::DATABASE,
            StoreError::Io { .. } => Self::DATABASE,
            StoreError::LockLeft { .. }
            | StoreError::Place { .. }
            | StoreError::NoSuchJob(_)
            | StoreError::Locked { .. } => Self::USAGE,
        };
        Self { code, text: chain(&error) }
    }
}

impl From<ConfigErrors> for Failure {
    fn from(errors: ConfigErrors) -> Self {
        Self { code: Self::USAGE, text: errors.to_string() }
    }
}
