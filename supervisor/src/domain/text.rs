//! Makes what programs print storable in every database and harmless on every terminal (invariant I10).
//!
//! Called by whoever takes bytes from a child, and by the stores for every text that they record. One rule for both:
//! what is not text stands as `\xNN`, one for each byte.
//!
//! - Escaped: control characters other than newline and tab (a carriage return stays in front of a newline), and bytes
//!   that are not UTF-8.
//! - In a text that needs escaping, a `\xNN` that stood there before is written `\x5cxNN`, so [`restore`] gives back
//!   exactly the bytes that went in. A text that needs no escaping is kept untouched, so escaping twice changes nothing.

use std::borrow::Cow;

/// Turns any bytes into text without control characters. See the module for the rule.
#[must_use]
pub fn printable(bytes: &[u8]) -> Cow<'_, str> {
    match std::str::from_utf8(bytes) {
        Ok(text) if is_clean(text) => Cow::Borrowed(text),
        Ok(_) | Err(_) => Cow::Owned(escape(bytes)),
    }
}

/// The bytes that [`printable`] was given, from its escaped form.
#[must_use]
pub fn restore(text: &str) -> Vec<u8> {
    let mut rest = text.as_bytes();
    let mut bytes = Vec::with_capacity(rest.len());
    while let Some((first, tail)) = rest.split_first() {
        if let Some(byte) = escaped_byte(rest) {
            bytes.push(byte);
            rest = rest.get(4..).unwrap_or_default();
        } else {
            bytes.push(*first);
            rest = tail;
        }
    }
    bytes
}

fn is_clean(text: &str) -> bool {
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        if must_escape(c, chars.peek().copied()) {
            return false;
        }
    }
    true
}

fn must_escape(c: char, follower: Option<char>) -> bool {
    match c {
        '\n' | '\t' => false,
        '\r' => follower != Some('\n'),
        c => c.is_control(),
    }
}

fn escape(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(bytes.len() + 16);
    for chunk in bytes.utf8_chunks() {
        let text = chunk.valid();
        let mut chars = text.char_indices().peekable();
        while let Some((at, c)) = chars.next() {
            let looks_escaped = c == '\\' && escaped_byte(text.as_bytes().get(at..).unwrap_or_default()).is_some();
            if looks_escaped || must_escape(c, chars.peek().map(|(_, next)| *next)) {
                let mut buffer = [0; 4];
                c.encode_utf8(&mut buffer).bytes().for_each(|byte| push_escape(&mut out, byte));
            } else {
                out.push(c);
            }
        }
        chunk.invalid().iter().for_each(|byte| push_escape(&mut out, *byte));
    }
    out
}

fn push_escape(out: &mut String, byte: u8) {
    const DIGITS: [char; 16] = ['0', '1', '2', '3', '4', '5', '6', '7', '8', '9', 'a', 'b', 'c', 'd', 'e', 'f'];
    out.push_str("\\x");
    out.push(DIGITS[usize::from(byte >> 4)]);
    out.push(DIGITS[usize::from(byte & 15)]);
}

fn escaped_byte(bytes: &[u8]) -> Option<u8> {
    let digit =
        |b: u8| char::from(b).to_digit(16).filter(|_| !b.is_ascii_uppercase()).and_then(|d| u8::try_from(d).ok());
    match bytes {
        [b'\\', b'x', high, low, ..] => Some(digit(*high)? << 4 | digit(*low)?),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_text_stands_as_escapes() {
        assert_eq!(printable(b"a\0b\xffc\x1b[31m\r\nd\te\rf"), "a\\x00b\\xffc\\x1b[31m\r\nd\te\\x0df");
        assert_eq!(printable("caf\u{e9} \u{9b}".as_bytes()), "caf\u{e9} \\xc2\\x9b");
    }

    #[test]
    fn clean_text_is_untouched_and_escaping_twice_changes_nothing() {
        assert!(matches!(printable(br"C:\x41 \n"), Cow::Borrowed(r"C:\x41 \n")));
        let once = printable(b"\0 \\x41").into_owned();
        assert_eq!(printable(once.as_bytes()), once);
    }

    proptest::proptest! {
        #[test]
        fn i10_escaped_bytes_are_given_back(bytes: Vec<u8>, tail in "(\\\\x[0-9a-f]{2}|\\\\|x){0,6}") {
            let mut bytes = bytes;
            bytes.push(0);
            bytes.extend(tail.bytes());
            proptest::prop_assert_eq!(restore(&printable(&bytes)), bytes);
        }
    }
}
