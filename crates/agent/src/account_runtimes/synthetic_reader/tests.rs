use std::collections::VecDeque;

use futures::SinkExt as _;
use parking_lot::Mutex;
use tokio_util::task::AbortOnDropHandle;

use super::*;
use crate::watch::{OmittedItem, WaitReason};
use kubesvc_core::wire::common::Failure;
use kubesvc_core::wire::events::BasisRow;

/// What a reader said: events, and the end of its list.
#[derive(Clone, Debug, Default)]
struct Sink {
    said: Arc<Mutex<Vec<String>>>,
    starts: Arc<Mutex<VecDeque<String>>>,
    /// Events that are refused first.
    refused: Arc<Mutex<usize>>,
}

impl ReaderSink for Sink {
    fn event(&self, event: Event) -> Result<(), Box<Event>> {
        let mut refused = self.refused.lock();
        if *refused > 0 {
            *refused -= 1;
            return Err(Box::new(event));
        }
        let operation = event.op().as_str_name();
        self.said.lock().push(format!("{operation} {}/{} at {:?}", event.namespace, event.name, event.rv));
        Ok(())
    }

    fn checkpoint(&self, _: String) {}

    fn sync_start(&self, sync_key: String) {
        self.starts.lock().push_back(sync_key);
    }

    fn synced(&self, synced: Synced) {
        let Synced { rv, listed, sent, deleted, .. } = synced;
        self.said.lock().push(format!("synced at {rv:?}: {listed} listed, {sent} sent, {deleted} deleted"));
    }

    fn problem(&self, _: Option<&Failure>) {}

    fn waits(&self, _: WaitReason) {}

    fn left_out(&self, _: OmittedItem) {}

    async fn room(&self) {}
}

fn object(name: &str) -> SyntheticObject {
    SyntheticObject { name: name.to_owned(), body: format!("{{\"name\":\"{name}\"}}"), hash: [1; 32] }
}

fn row(name: &str) -> BasisRow {
    BasisRow { name: name.to_owned(), rv: SYNTHETIC_VERSION.to_owned(), ..BasisRow::default() }
}

/// Runs a reader whose basis is as given, after frames that cannot be read.
async fn said(sink: Sink, unreadable: usize, rows: Vec<BasisRow>) -> Vec<String> {
    let (mut inputs, receiver) = mpsc::channel(1);
    let objects: Arc<[_]> = [object("a"), object("b")].into();
    let reading = AbortOnDropHandle::new(tokio::spawn(run(objects, receiver, sink.clone())));
    for attempt in 0..=unreadable {
        let sync_key = loop {
            let started = sink.starts.lock().pop_front();
            if let Some(key) = started {
                break key;
            }
            sleep(Duration::from_millis(1)).await;
        };
        let frame = if attempt < unreadable { Err(Failure::default()) } else { Ok(rows.clone()) };
        let late =
            ReaderInput::Basis { sync_key: "another".to_owned(), frames: Box::new(std::iter::empty()) };
        inputs.send(late).await.expect("the reader runs");
        let input = ReaderInput::Basis { sync_key, frames: Box::new([frame].into_iter()) };
        inputs.send(input).await.expect("the reader runs");
    }
    reading.await.expect("it ends");
    sink.said.lock().clone()
}

#[tokio::test(start_paused = true)]
async fn objects_are_sent_and_other_rows_end() {
    let sink = Sink { refused: Arc::new(Mutex::new(1)), ..Sink::default() };
    assert_eq!(
        said(sink, 0, vec![row("a"), row("former")]).await,
        [
            "DELETE /former at \"0\"",
            "UPSERT /a at \"0\"",
            "UPSERT /b at \"0\"",
            "synced at \"0\": 2 listed, 2 sent, 1 deleted",
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn rows_that_cannot_be_read_are_asked_for_again() {
    let said = said(Sink::default(), 2, Vec::new()).await;
    assert_eq!(said.last().map(String::as_str), Some("synced at \"0\": 2 listed, 2 sent, 0 deleted"));
}
