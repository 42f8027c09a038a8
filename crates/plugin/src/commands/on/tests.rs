use std::ffi::OsString;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use parking_lot::Mutex;
use tokio::io::AsyncWrite;

use super::children::{Ended, RunError};
use super::lines::{Output, Sink};
use super::{reads_no_input, stays_at_the_account, summary};
use crate::arguments::CommandError;

fn words(line: &str) -> Vec<OsString> {
    line.split(' ').map(OsString::from).collect()
}

#[derive(Clone, Default)]
struct Written(Arc<Mutex<Vec<u8>>>);

impl AsyncWrite for Written {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.0.lock().extend_from_slice(bytes);
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

async fn copied(from: &[u8], is_terminal: bool, has_colors: bool) -> Vec<u8> {
    let written = Written::default();
    let sink = |to: Written| Sink::new(to, is_terminal, has_colors);
    let output =
        Output::new(["prod", "production"].into_iter(), sink(written.clone()), sink(written.clone()));
    output.copy(from, 0, &output.stdout).await.expect("memory");
    output.copy(&b"end"[..], 1, &output.stderr).await.expect("memory");
    written.0.lock().clone()
}

#[tokio::test]
async fn each_line_begins_with_its_account_and_is_otherwise_kept() {
    let out = copied(b"a\tb\n\n\xff\x1b[2J\r\nlast", false, false).await;
    let wanted = b"prod       | a\tb\nprod       | \nprod       | \xff\x1b[2J\r\nprod       | last\nproduction | end\n";
    assert_eq!(out, wanted);
    let out = copied(b"a\tb\n\x1b[2J\r\n", true, true).await;
    let wanted = "\x1b[36mprod      \x1b[0m | a\tb\n\x1b[36mprod      \x1b[0m | \\u{1b}[2J\n\x1b[32mproduction\x1b[0m | end\n";
    assert_eq!(String::from_utf8_lossy(&out), wanted);
}

#[tokio::test]
async fn an_endless_line_is_written_in_parts() {
    let out = copied(&vec![b'x'; 300_000], false, false).await;
    let text = String::from_utf8_lossy(&out);
    assert!(text.lines().all(|line| line.len() < 90_000 && line.contains(" | ")), "a part is too long");
    assert_eq!(text.matches('x').count(), 300_000);
}

#[test]
fn kubectl_stays_at_the_account() {
    for line in [
        "get pods --kubeconfig x",
        "get pods --server=https://c",
        "-s https://c get pods",
        "--context a get ns",
        "get pods -shttps://c",
        "get pods -s=https://c",
        "get pods -As https://c",
        "get pods -Awshttps://c",
        "exec -its https://c web",
        "logs -fs https://c web",
        "logs web -pfshttps://c",
    ] {
        assert!(stays_at_the_account(&words(line)).is_err(), "{line}");
    }
    for line in [
        "get pods -o name",
        "exec web -- ls -s",
        "create clusterrolebinding b --user=u",
        "get pods -ojson -nkube-system -lapp=shop",
        "get pods -A -o=jsonpath={.items}",
        "get pods -Anshop",
        "apply -fshop.yaml",
        "apply -Rfshops",
        "patch pod web -p{\"spec\":{}}",
        "exec -itcshop web",
        "set env deploy/web -eHOSTS=a",
        "logs -f web --since=1h",
        "logs -fn shop web",
        "scale --replicas=-1 -",
    ] {
        assert_eq!(stays_at_the_account(&words(line)), Ok(()), "{line}");
    }
}

#[test]
fn a_manifest_of_standard_input_goes_to_one_account_only() {
    for line in ["apply -f -", "apply -f-", "apply --filename=-", "delete --filename -"] {
        assert!(reads_no_input(&words(line)).is_err(), "{line}");
    }
    for line in ["apply -f a.yaml", "exec web -- tar -f -", "get -o name"] {
        assert_eq!(reads_no_input(&words(line)), Ok(()), "{line}");
    }
}

#[test]
fn a_closed_output_is_a_failure_without_a_message() {
    let closed = RunError::Output(io::ErrorKind::BrokenPipe.into());
    assert_eq!(CommandError::from(closed), CommandError::Ended(1));
    let full = CommandError::from(RunError::Output(io::ErrorKind::StorageFull.into()));
    assert!(matches!(&full, CommandError::Failed(why) if why.starts_with("kubectl's output: ")), "{full:?}");
}

#[test]
fn the_summary_names_who_failed() {
    let names = ["a", "b", "c"];
    let ended = [Ended::Exited(0), Ended::Exited(3), Ended::Killed(9)];
    let said = summary(names.into_iter().zip(&ended));
    assert_eq!(said.as_deref(), Some("2 of 3 accounts failed: b (exit code 3), c (signal 9)"));
    assert_eq!(summary(names.into_iter().zip(&[Ended::Exited(0); 3])), None);
    assert_eq!((Ended::Killed(15).exit_code(), Ended::Exited(4).exit_code()), (143, 4));
}
