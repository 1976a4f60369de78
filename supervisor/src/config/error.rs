//! Everything that is wrong with a file, by line.

use std::fmt;
use std::path::{Path, PathBuf};

/// One thing that is wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigError {
    /// From 1; 0 when the file as a whole is meant.
    pub line: usize,
    /// From 1, in characters; 0 when the file as a whole is meant.
    pub column: usize,
    /// What is wrong.
    pub what: String,
    /// What would be right.
    pub hint: Option<String>,
}

/// All that is wrong with a file, in the order of its lines. Its text is made to be shown to a person as it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigErrors {
    /// The file.
    pub path: PathBuf,
    /// At least one.
    pub errors: Vec<ConfigError>,
}

impl ConfigErrors {
    /// The file could not be read at all.
    pub(super) fn unreadable(path: &Path, error: &std::io::Error) -> Self {
        let hint = (error.kind() == std::io::ErrorKind::NotFound)
            .then(|| "`jobvisor init` writes one; `--config PATH` names another".to_owned());
        let what = format!("cannot read the configuration: {error}");
        Self { path: path.to_owned(), errors: vec![ConfigError { line: 0, column: 0, what, hint }] }
    }
}

impl fmt::Display for ConfigErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.path.display();
        for (n, error) in self.errors.iter().enumerate() {
            if n > 0 {
                writeln!(f)?;
            }
            match error.line {
                0 => write!(f, "{path}: {}", error.what)?,
                line => write!(f, "{path}:{line}: {}", error.what)?,
            }
            if let Some(hint) = &error.hint {
                write!(f, "\n  hint: {hint}")?;
            }
        }
        Ok(())
    }
}

impl std::error::Error for ConfigErrors {}

/// Collects while the document is walked; byte offsets become lines at the end.
#[derive(Debug, Default)]
pub(super) struct Problems {
    found: Vec<Problem>,
}

#[derive(Debug)]
struct Problem {
    at: usize,
    what: String,
    hint: Option<String>,
}

impl Problems {
    /// Something is wrong at this byte, and this would be right.
    pub(super) fn add(&mut self, at: usize, what: impl Into<String>, hint: impl Into<String>) {
        self.found.push(Problem { at, what: what.into(), hint: Some(hint.into()) });
    }

    /// Something is wrong at this byte; the text says all there is to say.
    pub(super) fn add_bare(&mut self, at: usize, what: impl Into<String>) {
        self.found.push(Problem { at, what: what.into(), hint: None });
    }

    /// So far without any error?
    pub(super) fn is_empty(&self) -> bool {
        self.found.is_empty()
    }

    /// The errors in order, one line each counted from the file's text.
    pub(super) fn into_errors(mut self, text: &str, path: &Path) -> ConfigErrors {
        self.found.sort_by_key(|problem| problem.at);
        let errors = self.found.into_iter().map(|problem| locate(text, problem)).collect();
        ConfigErrors { path: path.to_owned(), errors }
    }
}

fn locate(text: &str, problem: Problem) -> ConfigError {
    let before = text.get(..problem.at).unwrap_or(text);
    let line = before.matches('\n').count() + 1;
    let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
    ConfigError { line, column, what: problem.what, hint: problem.hint }
}
