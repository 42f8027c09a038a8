//! What the person at the terminal sees.

use std::io::{IsTerminal, Write, stdout};
use std::time::Instant;

/// Where the elapsed time stands.
const WIDTH: usize = 66;

/// Prints steps, and colours where there is a terminal to show them.
pub(crate) struct Screen {
    colour: bool,
    terminal: bool,
}

impl Screen {
    pub(crate) fn new() -> Self {
        let terminal = stdout().is_terminal();
        let colour = terminal && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        Self { colour, terminal }
    }

    /// Runs one step: its name while it goes on where that can be wiped away again, then one line with its time.
    pub(crate) async fn step<T>(
        &self,
        what: &str,
        work: impl Future<Output = Result<T, String>>,
    ) -> Result<T, String> {
        let start = Instant::now();
        if self.terminal {
            print!("  … {what}");
            // Nothing is lost if this shows late.
            let _ = stdout().flush();
        }
        let result = work.await;
        let mark = match &result {
            Ok(_) => self.green("✓"),
            Err(_) => self.red("✗"),
        };
        let wipe = if self.terminal { "\r\x1b[2K" } else { "" };
        println!("{wipe}  {mark} {what:<WIDTH$} {:>6.1} s", start.elapsed().as_secs_f64());
        result
    }

    /// A heading.
    pub(crate) fn heading(&self, text: &str) {
        println!("\n{}", self.paint("1", text));
    }

    /// A command and what it printed.
    pub(crate) fn command(&self, command: &str, output: &str) {
        println!("\n{} {}", self.paint("2", "$"), self.paint("1", command));
        for line in output.trim_end().lines() {
            println!("{}", line.trim_end());
        }
    }

    /// Something to copy.
    pub(crate) fn suggestion(&self, why: &str, command: &str) {
        println!("\n  {}\n    {command}", self.paint("2", &format!("# {why}")));
    }

    /// A line by itself.
    pub(crate) fn say(&self, text: &str) {
        println!("{text}");
    }

    /// What went wrong, on standard error.
    pub(crate) fn complain(&self, text: &str) {
        eprintln!("\n{}", self.red(text));
    }

    fn green(&self, text: &str) -> String {
        self.paint("32", text)
    }

    fn red(&self, text: &str) -> String {
        self.paint("31", text)
    }

    fn paint(&self, code: &str, text: &str) -> String {
        if self.colour { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }
}
