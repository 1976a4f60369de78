//! Fails when a module of `supervisor` names a module of its own layer or of a higher one.
//!
//! It reads lines, not syntax, so imports are written one `use crate::module::…` a line;
//! a grouped `crate::{…}` is refused because this scan cannot see into it.
use std::{
    fs,
    path::{Path, PathBuf},
};

/// Lowest layer first; a module may name only modules of a lower row.
const LAYERS: &[&[&str]] =
    &[&["domain"], &["config", "store", "kernel"], &["warden"], &["runtime"], &["inspect", "web"], &["cli"]];

fn rank(module: &str) -> Option<usize> {
    LAYERS.iter().position(|row| row.contains(&module))
}

fn files(dir: &Path, out: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).expect("source folder is readable") {
        let path = entry.expect("entry is readable").path();
        if path.is_dir() {
            files(&path, out)
        } else if path.extension().is_some_and(|e| e == "rs") {
            out.push(path)
        }
    }
}

fn named_modules(source: &str) -> Vec<String> {
    source
        .lines()
        .filter(|l| !l.trim_start().starts_with("//"))
        .flat_map(|l| {
            l.match_indices("crate::")
                .map(|(at, m)| {
                    l[at + m.len()..].chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect::<String>()
                })
                .collect::<Vec<_>>()
        })
        .collect()
}

#[test]
fn imports_point_downwards() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("../supervisor/src");
    let mut all = Vec::new();
    files(&src, &mut all);
    let mut wrong = Vec::new();
    for file in &all {
        let rel = file.strip_prefix(&src).expect("under src");
        let own = rel
            .components()
            .next()
            .expect("a component")
            .as_os_str()
            .to_string_lossy()
            .trim_end_matches(".rs")
            .to_owned();
        let Some(own_rank) = rank(&own) else { continue };
        let source = fs::read_to_string(file).expect("utf-8 source");
        if source.contains("crate::{") {
            wrong.push(format!("{} groups imports with crate::{{", rel.display()));
        }
        for target in named_modules(&source) {
            if target != own && rank(&target).is_some_and(|r| r >= own_rank) {
                wrong.push(format!("{} names crate::{target}", rel.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "imports against the layers:\n{}", wrong.join("\n"));
}
