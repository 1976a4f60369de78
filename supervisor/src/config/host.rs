//! What a kind asks of this host: its user, its group, its folder, its program.
//!
//! Warnings only: a file may be checked on another host than the one that will run it.

use std::path::Path;

use nix::unistd::{AccessFlags, Group, User, access};

use super::model::KindConfig;
use super::template::has_value;

/// What this host lacks for the kind, one sentence each.
pub(super) fn doubts(kind: &KindConfig, env: &dyn Fn(&str) -> Option<String>) -> Vec<String> {
    let mut doubts = Vec::new();
    let name = &kind.name;
    if let Some(user) = kind.user.as_deref().filter(|user| matches!(User::from_name(user), Ok(None))) {
        doubts.push(format!("[kind.{name}]: this host knows no user `{user}`"));
    }
    if let Some(group) = kind.group.as_deref().filter(|group| matches!(Group::from_name(group), Ok(None))) {
        doubts.push(format!("[kind.{name}]: this host knows no group `{group}`"));
    }
    if !kind.cwd.is_dir() {
        doubts.push(format!("[kind.{name}]: `cwd` is no folder on this host: {}", kind.cwd.display()));
    }
    let search = kind.env.get("PATH").cloned().or_else(|| env("PATH"));
    if let (Some(program), Some(search)) = (kind.command.argv.first(), search)
        && !has_value(program)
        && !found(program, &search, &kind.cwd)
    {
        doubts.push(format!("[kind.{name}]: the program `{program}` was not found on this host"));
    }
    doubts
}

fn found(program: &str, search: &str, cwd: &Path) -> bool {
    let runs = |path: &Path| path.is_file() && access(path, AccessFlags::X_OK).is_ok();
    if program.contains('/') {
        return runs(&cwd.join(program));
    }
    search.split(':').any(|folder| runs(&cwd.join(folder).join(program)))
}
