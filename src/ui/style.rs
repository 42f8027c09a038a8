//! Colors of states.

use anstyle::{AnsiColor, Style};

/// Returns a text in the color of a state: ACTIVE green, failures red, ORPHANED yellow, anything else uncolored.
/// [`super::out`] strips colors where the output does not support them.
pub fn state(word: &str) -> String {
    match colour_of(word) {
        Some(colour) => {
            let style = Style::new().fg_color(Some(colour.into()));
            format!("{style}{word}{style:#}")
        }
        None => word.to_owned(),
    }
}

/// Returns a text in bold.
pub fn strong(text: &str) -> String {
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
    fn states_that_need_a_look_stand_out() {
        assert_eq!(state("ACTIVE"), "\x1b[32mACTIVE\x1b[0m");
        assert_eq!(state("FAILED"), "\x1b[31mFAILED\x1b[0m");
        assert_eq!(state("DELETE_FAILED"), "\x1b[31mDELETE_FAILED\x1b[0m");
        assert_eq!(state("ORPHANED"), "\x1b[33mORPHANED\x1b[0m");
        assert_eq!(state("INACTIVE"), "INACTIVE");
    }
}
