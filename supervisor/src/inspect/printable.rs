//! Makes text from outside harmless to a terminal, and short.

/// `text` on one line: what a terminal would obey is shown as an escape (`\x1b`, `\n`, `\u{202e}`).
pub(super) fn line(text: &str) -> String {
    text.chars().map(shown).collect()
}

/// The first `most` characters of [`line`]`(text)`, and how much there is beyond them.
pub(super) fn cut_line(text: &str, most: usize) -> String {
    let all = text.chars().count();
    let head = line(&text.chars().take(most).collect::<String>());
    if all > most { format!("{head}… ({} more characters)", all - most) } else { head }
}

/// A line of output is not shown beyond this.
const WIDEST: usize = 400;

/// The last `most` lines of `text`, each made harmless; before them how many lines were left out.
pub(super) fn last_lines(text: &str, most: usize) -> Vec<String> {
    let all: Vec<_> = text.lines().collect();
    let left_out = all.len().saturating_sub(most);
    let note = (left_out > 0).then(|| format!("… {left_out} earlier lines"));
    note.into_iter().chain(all[left_out..].iter().map(|text| cut_line(&text.replace('\t', "    "), WIDEST))).collect()
}

/// Control characters of both sets, and those that reorder or break lines.
fn shown(c: char) -> String {
    match c {
        '\n' => "\\n".to_owned(),
        '\r' => "\\r".to_owned(),
        '\t' => "\\t".to_owned(),
        c if c.is_ascii_control() => format!("\\x{:02x}", u32::from(c)),
        '\u{80}'..='\u{9f}'
        | '\u{200b}'..='\u{200f}'
        | '\u{2028}'..='\u{202e}'
        | '\u{2060}'..='\u{2069}'
        | '\u{feff}' => format!("\\u{{{:x}}}", u32::from(c)),
        c => c.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_a_terminal_would_obey_is_shown() {
        assert_eq!(line("a\u{1b}[2J\u{7}\r\nb\u{9b}c\u{202e}d é 漢"), "a\\x1b[2J\\x07\\r\\nb\\u{9b}c\\u{202e}d é 漢");
        assert_eq!(cut_line("abcdef", 4), "abcd… (2 more characters)");
        assert_eq!(last_lines("1\n2\n3\t\u{1b}c\n", 2), ["… 1 earlier lines", "2", "3    \\x1bc"]);
    }

    proptest! {
        #[test]
        fn no_control_character_passes(text in any::<String>(), most in 0..50_usize) {
            let all = [line(&text), cut_line(&text, most), last_lines(&text, most).concat()].concat();
            prop_assert!(!all.chars().any(char::is_control));
        }
    }
}
