//! Control planes that the tests of a process use one after another: to start one costs four seconds of a core, to empty one
//! a few milliseconds.

use std::{collections::BTreeMap, ops::Deref, sync::atomic::Ordering, time::Duration};

use http::Request;
use kube::Client;
use parking_lot::Mutex;

use super::{ControlPlane, StartOptions, etcd::Etcd, ready};
use crate::{audit, wait::try_eventually};

/// Those that no test uses.
static IDLE: Mutex<Vec<Kept>> = Mutex::new(Vec::new());
/// Bound on [`IDLE`]. Each has some 300 MB of memory.
const MAX_IDLE: usize = 3;
/// Time limit for the API server to show what etcd holds.
const VIEW_TIMEOUT: Duration = Duration::from_secs(20);
/// What the API server keeps for itself, and what it only ever counts up.
const OWN: [&str; 4] = [
    "/registry/leases/kube-system/apiserver-",
    "/registry/masterleases/",
    "/registry/peerserverleases/",
    "/registry/ranges/",
];
/// Answers that are the same again once everything else is gone. Those of lists are from the API server's memory.
const VIEWS: [&str; 3] = [
    "/apis",
    "/apis/apiextensions.k8s.io/v1/customresourcedefinitions?resourceVersion=0",
    "/api/v1/namespaces?resourceVersion=0",
];

/// A control plane as good as new, which another test of this process may get after it is dropped. Tests may stop, pause
/// and compact it: one that does not answer any more is not used again.
///
/// The versions of its objects do not begin anew, nor do its log and the ranges of addresses.
#[derive(Debug)]
pub struct Reused(Option<Kept>);

#[derive(Debug)]
struct Kept {
    plane: ControlPlane,
    /// All objects of etcd after the start.
    first: BTreeMap<Vec<u8>, Vec<u8>>,
    /// What [`VIEWS`] were then: names alone, since versions change.
    shown: [Vec<String>; VIEWS.len()],
}

impl Deref for Reused {
    type Target = ControlPlane;

    fn deref(&self) -> &ControlPlane {
        &self.0.as_ref().expect("it is there until it is dropped").plane
    }
}

impl Drop for Reused {
    fn drop(&mut self) {
        let Some(kept) = self.0.take() else { return };
        // After a test that failed, what it did last is of interest. Users have tokens that no other test asks for.
        if std::thread::panicking() || !kept.plane.options.users.is_empty() {
            return;
        }
        let mut idle = IDLE.lock();
        let surplus = (idle.len() >= MAX_IDLE).then(|| idle.remove(0));
        idle.push(kept);
        drop(idle);
        drop(surplus);
    }
}

impl ControlPlane {
    /// Returns a control plane as good as new: one that an earlier test has dropped, or else a new one.
    ///
    /// # Errors
    ///
    /// Same as [`ControlPlane::start`].
    pub async fn reused(options: StartOptions) -> Result<Reused, String> {
        while let Some(mut kept) = idle(&options) {
            match kept.empty().await {
                Ok(()) => return Ok(Reused(Some(kept))),
                Err(reason) => eprintln!("a control plane is not used again: {reason}"),
            }
        }
        let plane = Self::start_with(options).await?;
        let first = Etcd::connect(&plane.etcd_socket()).await?.all().await?.into_iter().collect();
        let shown = shown(&plane.client().await).await?;
        Ok(Reused(Some(Kept { plane, first, shown })))
    }
}

fn idle(options: &StartOptions) -> Option<Kept> {
    let mut idle = IDLE.lock();
    let found = idle.iter().position(|kept| kept.plane.options == *options)?;
    Some(idle.remove(found))
}

impl Kept {
    /// Makes everything as it was after the start.
    async fn empty(&mut self) -> Result<(), String> {
        self.plane.check_apiserver()?;
        let client = self.plane.client().await;
        ready(&client).await?;
        let mut etcd = Etcd::connect(&self.plane.etcd_socket()).await?;
        let now: BTreeMap<_, _> = etcd.all().await?.into_iter().collect();
        for key in now.keys().filter(|key| !is_own(key) && !self.first.contains_key(*key)) {
            etcd.delete(key).await?;
        }
        for (key, value) in self.first.iter().filter(|(key, _)| !is_own(key)) {
            if now.get(key) != Some(value) {
                etcd.put(key, value).await?;
            }
        }
        try_eventually("an empty control plane", VIEW_TIMEOUT, async || {
            let shown = shown(&client).await?;
            if shown == self.shown { Ok(()) } else { Err(format!("it shows {shown:?}")) }
        })
        .await?;
        let log = audit::length(&self.plane.audit_log())?;
        self.plane.audited.store(log, Ordering::Relaxed);
        Ok(())
    }
}

fn is_own(key: &[u8]) -> bool {
    OWN.iter().any(|own| key.starts_with(own.as_bytes()))
}

async fn shown(client: &Client) -> Result<[Vec<String>; VIEWS.len()], String> {
    let mut shown = [const { Vec::new() }; VIEWS.len()];
    for (path, names) in VIEWS.into_iter().zip(&mut shown) {
        let request = Request::get(path).body(Vec::new()).map_err(|e| e.to_string())?;
        let answer: serde_json::Value = client.request(request).await.map_err(|e| format!("{path}: {e}"))?;
        let list = answer["groups"].as_array().or_else(|| answer["items"].as_array());
        let name = |item: &serde_json::Value| {
            item["name"].as_str().or_else(|| item["metadata"]["name"].as_str()).map(str::to_owned)
        };
        names.extend(list.into_iter().flatten().filter_map(name));
        names.sort_unstable();
    }
    Ok(shown)
}
