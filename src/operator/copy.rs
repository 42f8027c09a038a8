//! `kubesvc-operator copy-database`.

use std::io::{IsTerminal as _, stderr};

use indicatif::{ProgressBar, ProgressStyle};

use super::arguments::CopyArguments;
use crate::command_line::{FAILURE, USAGE};
use crate::store::{self, copying::Copied};

/// Copies the accounts, and returns a one-line summary.
///
/// # Errors
/// One line that says what is wrong and what to do, and the exit code.
pub(super) fn run(arguments: &CopyArguments) -> Result<String, (String, u8)> {
    for (flag, url) in [("--from", &arguments.from), ("--to", &arguments.to)] {
        store::check_url(url).map_err(|error| (format!("{flag}: {error}"), USAGE))?;
    }
    if arguments.from == arguments.to {
        return Err(("--from and --to name the same database".to_owned(), USAGE));
    }
    super::kube_client::install_crypto();
    let runtime =
        tokio::runtime::Runtime::new().map_err(|error| (format!("no runtime: {error}"), FAILURE))?;
    let bar = bar();
    let progress = |done: usize, of: usize| {
        bar.set_length(of as u64);
        bar.set_position(done as u64);
    };
    let copied =
        runtime.block_on(store::copying::copy(&arguments.from, &arguments.to, arguments.overwrite, progress));
    bar.finish_and_clear();
    copied.map(summary).map_err(|error| (error.in_full(), FAILURE))
}

/// A progress bar on a terminal; hidden otherwise.
fn bar() -> ProgressBar {
    if !stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("{wide_bar} {pos}/{len} rows").expect("a fixed template");
    ProgressBar::new(0).with_style(style)
}

fn summary(copied: Copied) -> String {
    let Copied { accounts, namespaces, others, others_there, malformed, deleted } = copied;
    let mut text = format!(
        "Copied {accounts} accounts, {namespaces} of them with a list of namespaces, and {others} rows that are not \
         kubesvc's."
    );
    for (count, what) in [
        (deleted, "accounts that the target held were deleted before"),
        (others_there, "rows that are not kubesvc's were left out: the target has rows of these names"),
        (
            malformed,
            "accounts could not be read and were left out: the operator makes them anew from the objects",
        ),
    ] {
        if count > 0 {
            text.push_str(&format!(" {count} {what}."));
        }
    }
    text
}
