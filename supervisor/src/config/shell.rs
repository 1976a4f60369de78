//! Programs that take code as an argument, and where in a command line that code stands.
//!
//! It knows the usual shells, interpreters and wrappers by name. It is a guard for honest mistakes, not a proof: a
//! program that it does not know may still run what it is given.

use super::template::{TemplateError, has_value};

/// How a program finds its code.
struct Runner {
    /// Starts of its file name (`python3.11` is `python`).
    names: &'static [&'static str],
    /// Letters of short options whose value is code.
    code: &'static str,
    /// Long options whose value is code.
    long_code: &'static [&'static str],
    /// Letters of short options that take a value which is no code.
    valued: &'static str,
    /// Its first plain argument is code (a program text), not the name of a file.
    inline: bool,
}

const SHELLS: &[&str] = &["sh", "bash", "dash", "ash", "zsh", "ksh", "mksh", "fish", "csh", "tcsh"];

/// Programs that hand the value of `-c` to a shell.
const WITH_COMMAND: &[&str] = &["su", "runuser", "script", "flock"];

/// Programs that join their arguments and hand them to a shell, here or on another host.
const JOINING: &[&str] = &["ssh", "watch", "parallel"];

const RUNNERS: &[Runner] = &[
    Runner { names: &["python", "pypy"], code: "c", long_code: &[], valued: "WX", inline: false },
    Runner { names: &["perl"], code: "eE", long_code: &[], valued: "I", inline: false },
    Runner { names: &["ruby"], code: "e", long_code: &[], valued: "rIEC", inline: false },
    Runner { names: &["node", "bun"], code: "ep", long_code: &["--eval", "--print"], valued: "rC", inline: false },
    Runner { names: &["php"], code: "rBRE", long_code: &["--run"], valued: "cdz", inline: false },
    Runner { names: &["lua"], code: "e", long_code: &[], valued: "l", inline: false },
    Runner { names: &["Rscript"], code: "e", long_code: &[], valued: "", inline: false },
    Runner {
        names: &["awk", "gawk", "mawk", "nawk"],
        code: "e",
        long_code: &["--source"],
        valued: "Fvf",
        inline: true,
    },
];

/// Wrappers that run the rest of their arguments, with letters of short options that take a value, and how many plain
/// arguments stand before the program.
const WRAPPERS: &[(&str, &str, usize)] = &[
    ("env", "uCS", 0),
    ("nice", "n", 0),
    ("ionice", "cn", 0),
    ("nohup", "", 0),
    ("setsid", "", 0),
    ("stdbuf", "ioe", 0),
    ("time", "fo", 0),
    ("timeout", "ks", 1),
    ("taskset", "", 1),
    ("chrt", "", 1),
    ("sudo", "ugC", 0),
    ("doas", "u", 0),
    ("xargs", "nPILsdEa", 0),
];

/// What of a command line would let the payload choose a program or become code; with the argument's number.
pub(super) fn check(argv: &[String]) -> Vec<(usize, TemplateError)> {
    let start = program_at(argv);
    let Some(program) = argv.get(start) else { return Vec::new() };
    let mut wrong: Vec<_> = split_string(argv, start);
    if has_value(program) {
        wrong.push((start, TemplateError::Program));
        return wrong;
    }
    let base = base_name(program);
    let rest = start + 1;
    if base == "busybox" || base == "toybox" {
        wrong.extend(check(&argv[rest..]).into_iter().map(|(n, error)| (n + rest, error)));
    } else if SHELLS.contains(&base) {
        wrong.extend(check_shell(base, argv, rest));
    } else if let Some(runner) = RUNNERS.iter().find(|runner| runner.is(base)) {
        wrong.extend(check_runner(runner, base, argv, rest));
    } else {
        wrong.extend(check_other(base, argv, rest));
    }
    wrong
}

/// A program that is none of these itself may still pass arguments on to a shell: `find … -exec sh -c …`.
fn check_other(base: &str, argv: &[String], from: usize) -> Vec<(usize, TemplateError)> {
    let code = |program: &str| TemplateError::Code { program: program.to_owned() };
    let mut wrong = Vec::new();
    for (n, word) in argv.iter().enumerate().skip(from) {
        let before = argv.get(n - 1).map_or("", String::as_str);
        let joined = JOINING.contains(&base) || (WITH_COMMAND.contains(&base) && matches!(before, "-c" | "--command"));
        if joined && has_value(word) {
            wrong.push((n, code(base)));
        }
        let inline = argv.get(n + 1).is_some_and(|next| is_cluster(next) && next.contains('c') && !has_value(next));
        if SHELLS.contains(&base_name(word)) && inline {
            wrong.extend(check_shell(base_name(word), argv, n + 1));
        }
    }
    wrong
}

/// Is it one or more short options in one word?
fn is_cluster(word: &str) -> bool {
    word.len() > 1 && word.starts_with('-') && !word.starts_with("--")
}

impl Runner {
    fn is(&self, base: &str) -> bool {
        self.names.iter().any(|name| {
            base.strip_prefix(name).is_some_and(|rest| rest.chars().all(|c| c.is_ascii_digit() || c == '.'))
        })
    }
}

fn base_name(program: &str) -> &str {
    program.rsplit('/').next().unwrap_or(program)
}

/// The number of the program that runs once all wrappers are peeled off.
fn program_at(argv: &[String]) -> usize {
    let mut at = 0;
    while let Some((name, valued, plain)) =
        argv.get(at).and_then(|word| WRAPPERS.iter().find(|(name, ..)| *name == base_name(word)))
    {
        at = skip_options(argv, at + 1, valued);
        if *name == "env" {
            while argv.get(at).is_some_and(|word| is_assignment(word)) {
                at += 1;
            }
        }
        at += plain;
    }
    at
}

fn is_assignment(word: &str) -> bool {
    word.split_once('=').is_some_and(|(name, _)| !name.is_empty() && !has_value(name))
}

/// The number of the first plain argument from `at` on.
fn skip_options(argv: &[String], mut at: usize, valued: &str) -> usize {
    while let Some(word) = argv.get(at).filter(|word| word.starts_with('-') && word.len() > 1) {
        at += 1;
        if word == "--" {
            break;
        }
        if !word.starts_with("--") && word.ends_with(|letter| valued.contains(letter)) {
            at += 1;
        }
    }
    at
}

/// `env -S 'prog …'` splits its value into words.
fn split_string(argv: &[String], program: usize) -> Vec<(usize, TemplateError)> {
    let wrappers = argv.get(..program).unwrap_or(argv);
    let is_env = wrappers.iter().any(|word| base_name(word) == "env");
    let after = |n: usize| n > 0 && wrappers.get(n - 1).is_some_and(|word| word == "-S" || word == "--split-string");
    let splits = |n: usize, word: &str| word.starts_with("-S") || word.starts_with("--split-string=") || after(n);
    wrappers
        .iter()
        .enumerate()
        .filter(|(n, word)| is_env && has_value(word) && splits(*n, word))
        .map(|(n, _)| (n, TemplateError::Program))
        .collect()
}

fn check_shell(base: &str, argv: &[String], from: usize) -> Vec<(usize, TemplateError)> {
    let code = || TemplateError::Code { program: base.to_owned() };
    let mut at = from;
    let mut inline = false;
    while let Some(word) = argv.get(at).filter(|word| word.starts_with(['-', '+']) && word.len() > 1) {
        at += 1;
        if word == "--" {
            break;
        }
        if word == "--rcfile" || word == "--init-file" {
            at += 1;
        } else if !word.starts_with("--") {
            if word.starts_with('-') && word.contains('s') {
                return vec![(at - 1, TemplateError::CodeFromStdin { program: base.to_owned() })];
            }
            inline |= word.starts_with('-') && word.contains('c');
            at += usize::from(word.ends_with(['o', 'O']));
        }
    }
    match argv.get(at) {
        Some(word) if has_value(word) => vec![(at, code())],
        Some(word) if word == "-" && !inline => vec![(at, TemplateError::CodeFromStdin { program: base.to_owned() })],
        None if at == from => vec![(from - 1, TemplateError::CodeFromStdin { program: base.to_owned() })],
        Some(_) | None => Vec::new(),
    }
}

fn check_runner(runner: &Runner, base: &str, argv: &[String], from: usize) -> Vec<(usize, TemplateError)> {
    let code = || TemplateError::Code { program: base.to_owned() };
    let mut wrong = Vec::new();
    let mut at = from;
    let mut seen = false;
    while let Some(word) = argv.get(at).filter(|word| word.starts_with('-') && word.len() > 1) {
        let step = runner.option(word);
        let value = if step.takes_next { at + 1 } else { at };
        if step.code {
            seen = true;
            if argv.get(value).is_some_and(|text| has_value(text)) {
                wrong.push((value, code()));
            }
        }
        at = value + 1;
        if step.ends {
            return wrong;
        }
    }
    match argv.get(at) {
        Some(word) if !seen && has_value(word) => wrong.push((at, code())),
        Some(word) if !seen && word == "-" => {
            wrong.push((at, TemplateError::CodeFromStdin { program: base.to_owned() }));
        }
        None if at == from && !runner.inline => {
            wrong.push((from - 1, TemplateError::CodeFromStdin { program: base.to_owned() }));
        }
        Some(_) | None => {}
    }
    wrong
}

/// What one option of an interpreter does.
struct Step {
    code: bool,
    takes_next: bool,
    ends: bool,
}

impl Runner {
    fn option(&self, word: &str) -> Step {
        if word.starts_with("--") {
            let name = word.split('=').next().unwrap_or(word);
            let code = self.long_code.contains(&name);
            return Step { code, takes_next: code && !word.contains('='), ends: false };
        }
        let python = self.names.contains(&"python");
        for (n, letter) in word.char_indices().skip(1) {
            let last = n + letter.len_utf8() == word.len();
            if self.code.contains(letter) || (python && letter == 'm') {
                return Step { code: true, takes_next: last, ends: python };
            }
            if self.valued.contains(letter) {
                return Step { code: false, takes_next: last, ends: false };
            }
        }
        Step { code: false, takes_next: false, ends: false }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(line: &str) -> Vec<(usize, TemplateError)> {
        // `~` stands for a space inside an argument.
        check(&line.split(' ').map(|word| word.replace('~', " ")).collect::<Vec<_>>())
    }

    #[test]
    fn code_made_of_the_payload_is_refused() {
        for (line, at) in [
            ("sh -c echo~{payload.x}", 2),
            ("/bin/bash -ec echo~{payload.x}", 2),
            ("bash -euo pipefail -c echo~{payload.x}", 4),
            ("sh -c -e echo~{payload.x}", 3),
            ("bash --rcfile x -c {payload.x}", 4),
            ("sh {payload.x}", 1),
            ("busybox sh -c {payload.x}", 3),
            ("env A=1 B={payload.y} sh -c {payload.x}", 5),
            ("nice -n 5 timeout -k 1 10 sh -c {payload.x}", 9),
            ("python3 -c print({payload.x})", 2),
            ("python3.11 -W ignore -c {payload.x}", 4),
            ("python3 -Bcprint({payload.x})", 1),
            ("python3 -m {payload.x}", 2),
            ("python3 {payload.x}", 1),
            ("perl -ne {payload.x}", 2),
            ("ruby -r json -e {payload.x}", 4),
            ("node --eval {payload.x}", 2),
            ("node --eval={payload.x}", 1),
            ("awk {payload.x}", 1),
            ("awk -F : {payload.x} file", 3),
            ("find . -name a -exec sh -c {payload.x} sh", 7),
            ("flock lock -c {payload.x}", 3),
            ("ssh host convert {payload.x}", 3),
        ] {
            let wrong = checked(line);
            let code = matches!(wrong.as_slice(), [(n, TemplateError::Code { .. })] if *n == at);
            assert!(code, "{line}: {wrong:?}");
        }
    }

    #[test]
    fn a_program_chosen_by_the_payload_is_refused() {
        for (line, at) in
            [("{payload.x} a", 0), ("nice {payload.x}", 1), ("env A=1 {payload.x}", 2), ("env -S {payload.x} a", 2)]
        {
            assert_eq!(checked(line), vec![(at, TemplateError::Program)], "{line}");
        }
    }

    #[test]
    fn a_shell_that_would_run_the_payload_from_stdin_is_refused() {
        for line in ["sh", "bash -s", "bash -es a", "python3", "python3 -", "env python3"] {
            let wrong = checked(line);
            assert!(matches!(wrong.as_slice(), [(_, TemplateError::CodeFromStdin { .. })]), "{line}: {wrong:?}");
        }
    }

    #[test]
    fn values_in_plain_arguments_are_fine() {
        for line in [
            "sh -c prog~\"$1\" sh {payload.x}",
            "bash script.sh -c {payload.x}",
            "python3 ingest.py {payload.x}",
            "python3 -u ingest.py -c {payload.x}",
            "python3 -m app.jobs {payload.x}",
            "python3 -c print(1) {payload.x}",
            "perl script.pl -e {payload.x}",
            "timeout {payload.limit} prog {payload.x}",
            "prog -c {payload.x}",
            "find . -exec sh -c prog~\"$1\" sh {payload.x}",
            "flock {payload.x} prog",
            "env A={payload.x} prog",
            "awk {{print}} {payload.x}",
            "python3 --version",
        ] {
            assert_eq!(checked(line), vec![], "{line}");
        }
    }
}
