//! `${NAME}` and `${NAME:-default}` in strings of the file.
//!
//! `$$` is a dollar sign; a dollar sign before anything else stays one, so `sh -c 'prog "$1"'` needs no escaping. A
//! variable that is set but empty takes its default, as in a shell.

/// Why a string does not expand.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum ExpandError {
    /// No value and no default.
    #[error("the environment variable `{name}` is not set")]
    Unset {
        /// Its name.
        name: String,
    },
    /// `${` without `}`.
    #[error("`${{` without its closing brace")]
    Unclosed,
    /// Not a name.
    #[error("`${{{text}}}` does not name an environment variable")]
    NotAName {
        /// What stands between the braces.
        text: String,
    },
}

impl ExpandError {
    /// What would be right.
    pub(super) fn hint(&self) -> String {
        match self {
            Self::Unset { name } => format!("set it, or give a default: `${{{name}:-value}}`"),
            Self::Unclosed | Self::NotAName { .. } => {
                "write `${NAME}` or `${NAME:-default}`; `$$` is a dollar sign".to_owned()
            }
        }
    }
}

/// Where the text goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Target {
    /// A plain string.
    Text,
    /// A template of `command`: braces that come from a variable are doubled, so they stay braces.
    Template,
}

/// Expands every variable of `text`.
pub(super) fn expand(text: &str, env: &dyn Fn(&str) -> Option<String>, target: Target) -> Result<String, ExpandError> {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        let (plain, from) = rest.split_at(at);
        out.push_str(plain);
        if let Some(after) = from.strip_prefix("$$") {
            out.push('$');
            rest = after;
        } else if let Some(after) = from.strip_prefix("${") {
            let (inside, after) = after.split_once('}').ok_or(ExpandError::Unclosed)?;
            let value = look_up(inside, env)?;
            match target {
                Target::Text => out.push_str(&value),
                Target::Template => out.push_str(&value.replace('{', "{{").replace('}', "}}")),
            }
            rest = after;
        } else {
            out.push('$');
            rest = &from[1..];
        }
    }
    out.push_str(rest);
    Ok(out)
}

fn look_up(inside: &str, env: &dyn Fn(&str) -> Option<String>) -> Result<String, ExpandError> {
    let (name, default) = match inside.split_once(":-") {
        Some((name, default)) => (name, Some(default)),
        None => (inside, None),
    };
    let starts = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
    if !starts || !name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_') {
        return Err(ExpandError::NotAName { text: inside.to_owned() });
    }
    match (env(name), default) {
        (Some(value), None) => Ok(value),
        (Some(value), Some(_)) if !value.is_empty() => Ok(value),
        (_, Some(default)) => Ok(default.to_owned()),
        (None, None) => Err(ExpandError::Unset { name: name.to_owned() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn env(name: &str) -> Option<String> {
        match name {
            "HOME" => Some("/home/u".to_owned()),
            "EMPTY" => Some(String::new()),
            "BRACES" => Some("a{payload.x}b".to_owned()),
            _ => None,
        }
    }

    #[test]
    fn variables_and_defaults_expand_and_other_dollars_stay() {
        for (text, expected) in [
            ("${HOME}/x", "/home/u/x"),
            ("${NONE:-d}", "d"),
            ("${NONE:-}", ""),
            ("${EMPTY}", ""),
            ("${EMPTY:-d}", "d"),
            ("${HOME:-d}", "/home/u"),
            ("$$HOME $${HOME} $1 $", "$HOME ${HOME} $1 $"),
        ] {
            assert_eq!(expand(text, &env, Target::Text), Ok(expected.to_owned()), "{text}");
        }
    }

    #[test]
    fn what_cannot_expand_is_named() {
        assert_eq!(expand("a${NONE}", &env, Target::Text), Err(ExpandError::Unset { name: "NONE".to_owned() }));
        assert_eq!(expand("a${NONE", &env, Target::Text), Err(ExpandError::Unclosed));
        assert_eq!(expand("${1}", &env, Target::Text), Err(ExpandError::NotAName { text: "1".to_owned() }));
        assert_eq!(expand("${}", &env, Target::Text), Err(ExpandError::NotAName { text: String::new() }));
    }

    #[test]
    fn braces_of_a_variable_are_no_template() {
        assert_eq!(expand("${BRACES}", &env, Target::Template), Ok("a{{payload.x}}b".to_owned()));
        assert_eq!(expand("${BRACES}", &env, Target::Text), Ok("a{payload.x}b".to_owned()));
    }
}
