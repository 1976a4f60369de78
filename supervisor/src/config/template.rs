//! `{payload}` and `{payload.a.b}` in a command's arguments.
//!
//! An argument stays one argument whatever the value holds: nothing here, and nothing after it, passes through a shell.
//! A value can neither become an option (an argument that a value would make start with `-` is refused) nor the program,
//! nor code of a shell or interpreter (`shell` refuses such templates when the file is read). `{{` and `}}` are braces.

use serde_json::Value;

use super::model::CommandTemplate;
use super::shell;

/// Why a command cannot be made from its template.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TemplateError {
    /// `{` that opens nothing known.
    #[error("`{{{text}}}` is no template")]
    Unknown {
        /// What stands between the braces.
        text: String,
    },
    /// `{` without `}`.
    #[error("`{{` without its closing brace")]
    Unclosed,
    /// `}` without `{`.
    #[error("`}}` without its opening brace")]
    Unopened,
    /// A template names the program.
    #[error("the payload would choose the program that runs")]
    Program,
    /// A template inside code.
    #[error("the payload would become code of `{program}`")]
    Code {
        /// The shell or interpreter.
        program: String,
    },
    /// The program reads its code from stdin, where the payload is.
    #[error("`{program}` would read its code from stdin, which is the payload")]
    CodeFromStdin {
        /// The shell or interpreter.
        program: String,
    },
    /// A template right behind dashes.
    #[error("the payload would choose the name of an option")]
    OptionName,
    /// The payload has no such value.
    #[error("the payload has no `{path}`")]
    Missing {
        /// As in the template.
        path: String,
    },
    /// The value is no text.
    #[error("`{path}` is {found}, which cannot be an argument; only strings, numbers and booleans can")]
    NotText {
        /// As in the template.
        path: String,
        /// What it is.
        found: &'static str,
    },
    /// A value would become an option.
    #[error("`{path}` would turn the argument into an option: it would start with `-`")]
    BecomesOption {
        /// As in the template.
        path: String,
    },
    /// A value holds a NUL.
    #[error("`{path}` holds a NUL character, which no argument can")]
    Nul {
        /// As in the template.
        path: String,
    },
}

impl TemplateError {
    /// What would be right, for the author of the file or of the payload.
    #[must_use]
    pub fn hint(&self) -> &'static str {
        match self {
            Self::Unknown { .. } | Self::Unclosed | Self::Unopened => {
                "write `{payload}`, `{payload.a.b}` or `{payload.list.0}`; `{{` and `}}` are braces"
            }
            Self::Program => "name the program in the file; one kind for each",
            Self::Code { .. } => {
                "pass it as an argument of its own: `[\"sh\", \"-c\", \"prog \\\"$1\\\"\", \"sh\", \"{payload.x}\"]`"
            }
            Self::CodeFromStdin { .. } => "give it a script file or `-c`",
            Self::OptionName => "write the option's name in the file: `--name={payload.x}`",
            Self::Missing { .. } | Self::NotText { .. } | Self::Nul { .. } => {
                "correct the payload, or read it as JSON from stdin"
            }
            Self::BecomesOption { .. } => {
                "put something in front of it in the file, such as `./{payload.x}` or `--name={payload.x}`"
            }
        }
    }
}

/// A piece of an argument.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Piece {
    /// As it is.
    Literal(String),
    /// A value; the text between the braces.
    Value(String),
}

/// Cuts an argument into its pieces; two literals never follow each other.
pub(super) fn pieces(argument: &str) -> Result<Vec<Piece>, TemplateError> {
    let mut out = Vec::new();
    let mut literal = String::new();
    let mut rest = argument;
    while let Some(at) = rest.find(['{', '}']) {
        let (plain, from) = rest.split_at(at);
        literal.push_str(plain);
        if let Some(after) = from.strip_prefix("{{") {
            literal.push('{');
            rest = after;
        } else if let Some(after) = from.strip_prefix("}}") {
            literal.push('}');
            rest = after;
        } else if let Some(after) = from.strip_prefix('{') {
            let (path, after) = after.split_once('}').ok_or(TemplateError::Unclosed)?;
            if !is_path(path) {
                return Err(TemplateError::Unknown { text: path.to_owned() });
            }
            if !literal.is_empty() {
                out.push(Piece::Literal(std::mem::take(&mut literal)));
            }
            out.push(Piece::Value(path.to_owned()));
            rest = after;
        } else {
            return Err(TemplateError::Unopened);
        }
    }
    literal.push_str(rest);
    if !literal.is_empty() {
        out.push(Piece::Literal(literal));
    }
    Ok(out)
}

/// Does the argument hold a value? One that is no template at all is another error's business.
pub(super) fn has_value(argument: &str) -> bool {
    pieces(argument).is_ok_and(|pieces| pieces.iter().any(|piece| matches!(piece, Piece::Value(_))))
}

fn is_path(text: &str) -> bool {
    match text.strip_prefix("payload") {
        Some("") => true,
        Some(steps) => steps
            .strip_prefix('.')
            .is_some_and(|steps| steps.split('.').all(|step| !step.is_empty() && !step.contains('{'))),
        None => false,
    }
}

impl CommandTemplate {
    /// Makes the command line of one attempt. It has as many arguments as the template.
    ///
    /// # Errors
    /// A value is missing or is no text, would become an option, or holds a NUL.
    pub fn render(&self, payload: &Value) -> Result<Vec<String>, TemplateError> {
        self.argv.iter().map(|argument| render_argument(argument, payload)).collect()
    }

    /// What of the template can be told wrong without a payload, with the number of the argument.
    pub(super) fn check(&self) -> Vec<(usize, TemplateError)> {
        let mut wrong: Vec<_> = self
            .argv
            .iter()
            .enumerate()
            .filter_map(|(n, argument)| check_argument(argument).err().map(|error| (n, error)))
            .collect();
        for (n, error) in shell::check(&self.argv) {
            if wrong.iter().all(|(seen, _)| *seen != n) {
                wrong.push((n, error));
            }
        }
        wrong
    }
}

fn check_argument(argument: &str) -> Result<(), TemplateError> {
    let pieces = pieces(argument)?;
    if let [Piece::Literal(start), Piece::Value(_), ..] = pieces.as_slice()
        && (start == "-" || (start.starts_with("--") && !start.contains('=')))
    {
        return Err(TemplateError::OptionName);
    }
    Ok(())
}

fn render_argument(argument: &str, payload: &Value) -> Result<String, TemplateError> {
    let mut out = String::new();
    let mut open = None;
    for piece in pieces(argument)? {
        match piece {
            Piece::Literal(text) => out.push_str(&text),
            Piece::Value(path) => {
                if out.is_empty() {
                    open = Some(path.clone());
                }
                out.push_str(&value_text(&path, payload)?);
            }
        }
    }
    match open {
        Some(path) if out.starts_with('-') => Err(TemplateError::BecomesOption { path }),
        Some(_) | None => Ok(out),
    }
}

fn value_text(path: &str, payload: &Value) -> Result<String, TemplateError> {
    let not_text = |found| Err(TemplateError::NotText { path: path.to_owned(), found });
    let mut steps = path.split('.').skip(1).peekable();
    if steps.peek().is_none() {
        return Ok(payload.to_string());
    }
    let mut value = payload;
    for step in steps {
        let next = match value {
            Value::Object(map) => map.get(step),
            Value::Array(items) => step.parse::<usize>().ok().and_then(|n| items.get(n)),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => None,
        };
        value = next.ok_or_else(|| TemplateError::Missing { path: path.to_owned() })?;
    }
    match value {
        Value::String(text) if text.contains('\0') => Err(TemplateError::Nul { path: path.to_owned() }),
        Value::String(text) => Ok(text.clone()),
        Value::Number(number) => Ok(number.to_string()),
        Value::Bool(value) => Ok(value.to_string()),
        Value::Null => not_text("null"),
        Value::Array(_) => not_text("an array"),
        Value::Object(_) => not_text("an object"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    fn template(argv: &[&str]) -> CommandTemplate {
        CommandTemplate { argv: argv.iter().map(|&a| a.to_owned()).collect() }
    }

    #[test]
    fn values_are_put_in_where_the_template_says() {
        let payload = json!({ "a": { "b": "x y" }, "files": ["one", 2, true], "s": "" });
        for (argument, expected) in [
            ("{payload.a.b}", "x y"),
            ("--in={payload.files.0}.txt", "--in=one.txt"),
            ("{payload.files.1}/{payload.files.2}", "2/true"),
            ("{{payload}} }}{{", "{payload} }{"),
            ("{payload.s}", ""),
            ("plain", "plain"),
        ] {
            assert_eq!(template(&[argument]).render(&payload), Ok(vec![expected.to_owned()]), "{argument}");
        }
        let whole = template(&["{payload}"]).render(&payload).unwrap();
        assert_eq!(serde_json::from_str::<Value>(&whole[0]).unwrap(), payload);
    }

    #[test]
    fn what_cannot_be_an_argument_names_its_path() {
        let payload =
            json!({ "none": null, "list": [1], "map": {}, "nul": "a\u{0}b", "dash": "-rf", "minus": -1, "s": "" });
        for (argument, error) in [
            ("{payload.x}", "the payload has no `payload.x`"),
            ("{payload.list.1}", "the payload has no `payload.list.1`"),
            ("{payload.list.-1}", "the payload has no `payload.list.-1`"),
            ("{payload.dash.x}", "the payload has no `payload.dash.x`"),
            (
                "{payload.none}",
                "`payload.none` is null, which cannot be an argument; only strings, numbers and booleans can",
            ),
            (
                "{payload.list}",
                "`payload.list` is an array, which cannot be an argument; only strings, numbers and booleans can",
            ),
            (
                "{payload.map}",
                "`payload.map` is an object, which cannot be an argument; only strings, numbers and booleans can",
            ),
            ("a{payload.nul}", "`payload.nul` holds a NUL character, which no argument can"),
            ("{payload.dash}", "`payload.dash` would turn the argument into an option: it would start with `-`"),
            ("{payload.minus}", "`payload.minus` would turn the argument into an option: it would start with `-`"),
            ("{payload.s}-x", "`payload.s` would turn the argument into an option: it would start with `-`"),
            (
                "{payload.s}{payload.dash}",
                "`payload.dash` would turn the argument into an option: it would start with `-`",
            ),
        ] {
            let found = template(&["prog", argument]).render(&payload).unwrap_err();
            assert_eq!(found.to_string(), error, "{argument}");
        }
        assert!(template(&["./{payload.dash}"]).render(&payload).is_ok());
    }

    #[test]
    fn bad_templates_are_told_without_a_payload() {
        for (argument, error) in [
            ("{payload", TemplateError::Unclosed),
            ("payload}", TemplateError::Unopened),
            ("{payloads}", TemplateError::Unknown { text: "payloads".to_owned() }),
            ("{payload.}", TemplateError::Unknown { text: "payload.".to_owned() }),
            ("{payload..a}", TemplateError::Unknown { text: "payload..a".to_owned() }),
            ("{print $1}", TemplateError::Unknown { text: "print $1".to_owned() }),
            ("-{payload.x}", TemplateError::OptionName),
            ("--{payload.x}=1", TemplateError::OptionName),
            ("--out{payload.x}", TemplateError::OptionName),
        ] {
            assert_eq!(template(&["prog", argument]).check(), vec![(1, error)], "{argument}");
        }
        assert_eq!(template(&["prog", "--a={payload.x}", "-o", "{payload}", "x-{payload.y}"]).check(), vec![]);
    }

    proptest! {
        #[test]
        fn no_value_becomes_an_option_or_a_second_argument(text in any::<String>(), second in any::<String>()) {
            let command = template(&["prog", "{payload.a}", "{payload.a}{payload.b}", "--name={payload.a}", "end"]);
            match command.render(&json!({ "a": text, "b": second })) {
                Ok(argv) => {
                    prop_assert_eq!(argv.len(), 5);
                    prop_assert!(!argv[1].starts_with('-') && !argv[2].starts_with('-'));
                    prop_assert_eq!(&argv[1], &text);
                    prop_assert_eq!(&argv[3], &format!("--name={text}"));
                    prop_assert!(argv.iter().all(|argument| !argument.contains('\0')));
                }
                Err(_) => prop_assert!(
                    text.starts_with('-') || (text.is_empty() && second.starts_with('-'))
                        || text.contains('\0') || second.contains('\0')
                ),
            }
        }

        #[test]
        fn a_literal_survives_its_escaping(text in any::<String>()) {
            let escaped = text.replace('{', "{{").replace('}', "}}");
            prop_assert_eq!(template(&[&escaped]).render(&json!(null)), Ok(vec![text]));
        }
    }
}
