//! Text for a terminal: foreign text without control characters, and colors.

use std::fmt::Write as _;

use anstyle::{AnsiColor, Style};

pub use kubesvc_core::object_names::is_hidden;

/// Returns the text on one line: each run of white space becomes one space, and characters that could control a
/// terminal or change the writing direction are escaped as `\u{1b}`.
pub fn line(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for word in text.split_whitespace() {
        if !out.is_empty() {
            out.push(' ');
        }
        for character in word.chars() {
            push(&mut out, character);
        }
    }
    out
}

/// Like [`line`], but keeps the line breaks.
pub fn lines(text: &str) -> String {
    text.lines().map(line).collect::<Vec<_>>().join("\n")
}

/// Returns the text with hidden characters escaped and white space kept, for text that is to be copied.
pub fn visible(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    text.chars().for_each(|character| push(&mut out, character));
    out
}

fn push(out: &mut String, character: char) {
    if is_hidden(character) {
        // Writing to a String cannot fail.
        let _ = write!(out, "{}", character.escape_unicode());
    } else {
        out.push(character);
    }
}

/// Returns a text in the color of a state: ACTIVE green, failures red, ORPHANED yellow, anything else uncolored.
/// [`print`](super::print) strips colors where the output does not support them.
pub fn colored_state(word: &str) -> String {
    match colour_of(word) {
        Some(colour) => {
            let style = Style::new().fg_color(Some(colour.into()));
            format!("{style}{word}{style:#}")
        }
        None => word.to_owned(),
    }
}

/// Returns a text in bold.
pub fn bold(text: &str) -> String {
    let style = Style::new().bold();
    format!("{style}{text}{style:#}")
}

fn colour_of(word: &str) -> Option<AnsiColor> {
    match word {
        "ACTIVE" => Some(AnsiColor::Green),
        "FAILED" | "DELETE_FAILED" => Some(AnsiColor::Red),
        "ORPHANED" => Some(AnsiColor::Yellow),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_that_steers_a_terminal_is_left() {
        assert_eq!(line("a\x1b[31mred\x1b[0m"), "a\\u{1b}[31mred\\u{1b}[0m");
        assert_eq!(line("bell\x07 csi\u{9b}2J del\x7f"), "bell\\u{7} csi\\u{9b}2J del\\u{7f}");
        assert_eq!(line("rtl\u{202e}txt"), "rtl\\u{202e}txt");
        assert_eq!(line("a\u{61c}b\u{ad}c"), "a\\u{61c}b\\u{ad}c");
        assert_eq!(line("tags\u{e0000}\u{e0041}\u{e007f}"), "tags\\u{e0000}\\u{e0041}\\u{e007f}");
        assert_eq!(line("two\r\n lines\tand  more "), "two lines and more");
        assert_eq!(lines("two\r\nlines\x1b"), "two\nlines\\u{1b}");
        assert_eq!(visible("a  b\x1b\n"), "a  b\\u{1b}\\u{a}");
        assert_eq!(line("Grüße, 東京"), "Grüße, 東京");
    }

    #[test]
    fn states_that_need_a_look_stand_out() {
        assert_eq!(colored_state("ACTIVE"), "\x1b[32mACTIVE\x1b[0m");
        assert_eq!(colored_state("FAILED"), "\x1b[31mFAILED\x1b[0m");
        assert_eq!(colored_state("DELETE_FAILED"), "\x1b[31mDELETE_FAILED\x1b[0m");
        assert_eq!(colored_state("ORPHANED"), "\x1b[33mORPHANED\x1b[0m");
        assert_eq!(colored_state("INACTIVE"), "INACTIVE");
    }
}
