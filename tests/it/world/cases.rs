//! Cases that run beside one another in one world.

use std::any::{Any, type_name_of_val};
use std::panic::AssertUnwindSafe;

use futures::FutureExt as _;
use futures::future::{LocalBoxFuture, join_all};

use kubesvc_testkit::must;

/// A case of a test.
pub(crate) struct Case<'c> {
    name: &'static str,
    run: LocalBoxFuture<'c, ()>,
}

/// Returns the case that an `async fn` is, under the name of the function.
pub(crate) fn case<'c>(run: impl Future<Output = ()> + 'c) -> Case<'c> {
    Case { name: type_name_of_val(&run).trim_end_matches("::{{closure}}"), run: Box::pin(run) }
}

/// Runs cases beside one another, each to its end, and fails with the names and messages of all that failed.
pub(crate) async fn run_cases<'c>(cases: impl IntoIterator<Item = Case<'c>>) {
    let runs = cases.into_iter().map(|case| async move {
        let ended = AssertUnwindSafe(case.run).catch_unwind().await;
        ended.err().map(|panic| format!("{}: {}", case.name, panic_message(&*panic)))
    });
    let failed: Vec<_> = join_all(runs).await.into_iter().flatten().collect();
    must(if failed.is_empty() { Ok(()) } else { Err(failed.join("\n")) });
}

/// The message of a panic.
pub(crate) fn panic_message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref().copied()).unwrap_or("it panicked")
}

#[tokio::test]
#[should_panic(expected = "fails: on purpose\n")]
async fn failed_cases_are_named_and_the_others_run_to_their_end() {
    async fn fails() {
        must(Err::<(), _>("on purpose".to_owned()));
    }
    async fn fails_later() {
        tokio::task::yield_now().await;
        unreachable!("as well");
    }
    run_cases([case(fails()), case(fails_later())]).await;
}
