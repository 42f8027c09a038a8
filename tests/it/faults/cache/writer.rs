//! A cluster that changes at random: objects are created, changed, deleted, made anew under the same name, and moved
//! between applications. The seed decides what is done in which order.

use std::convert::Infallible;
use std::time::Duration;

use fastrand::Rng;
use futures::StreamExt as _;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client};

use super::kinds::{NATIVE_KINDS, WrittenKind, definition, definition_name};
use crate::world::{MAX_WAIT, World};
use kubesvc_testkit::{must, wait::eventually};

/// Number of names of each kind.
const NAMES: u8 = 24;
/// Range of pauses between two changes, in milliseconds.
const PAUSES: std::ops::Range<u64> = 1..30;
/// Time limit of a change, while the API server may be paused.
const CHANGE_TIMEOUT: Duration = Duration::from_secs(5);
/// Number of objects that are created concurrently at the start.
const AT_ONCE: usize = 16;

/// Writes objects of one namespace.
pub(crate) struct ClusterWriter {
    client: Client,
    namespace: String,
    kinds: Vec<WrittenKind>,
    random: Rng,
    pauses: std::ops::Range<u64>,
    changes: usize,
}

impl ClusterWriter {
    /// A writer in the world's namespace, of the kinds that every API server has.
    pub(crate) async fn new(world: &World, seed: u64) -> Self {
        Self::of_cluster(world.control_plane().client().await, world.namespace(), seed)
    }

    /// The same in a namespace of any cluster.
    pub(super) fn of_cluster(client: Client, namespace: &str, seed: u64) -> Self {
        Self {
            client,
            namespace: namespace.to_owned(),
            kinds: NATIVE_KINDS.to_vec(),
            random: Rng::with_seed(seed),
            pauses: PAUSES,
            changes: 0,
        }
    }

    /// Writes these kinds alone.
    pub(crate) fn of_kinds(self, kinds: &[WrittenKind]) -> Self {
        Self { kinds: kinds.to_vec(), ..self }
    }

    /// Pauses for so many milliseconds between two changes.
    pub(crate) fn with_pauses(self, pauses: std::ops::Range<u64>) -> Self {
        Self { pauses, ..self }
    }

    /// Number of writes that the API server has answered.
    pub(crate) fn changes(&self) -> usize {
        self.changes
    }

    /// The kinds that it writes.
    pub(crate) fn kinds(&self) -> &[WrittenKind] {
        &self.kinds
    }

    /// The cluster and the namespace that it writes to.
    pub(super) fn target(&self) -> (&Client, &str) {
        (&self.client, &self.namespace)
    }

    fn api(&self, kind: WrittenKind) -> Api<DynamicObject> {
        kind.api(self.client.clone(), &self.namespace)
    }

    /// Creates one object for each name, and `more` ConfigMaps that are left alone, so that lists take several pages.
    pub(crate) async fn fill(&mut self, more: usize) {
        let mut all = Vec::new();
        for kind in self.kinds.clone() {
            for number in 0..NAMES {
                let name = name(kind, number);
                all.push((self.api(kind), kind.object(&self.namespace, &name, &mut self.random)));
            }
        }
        for number in 0..more {
            let kind = WrittenKind::ConfigMap;
            let name = format!("still-{number:04}");
            all.push((self.api(kind), kind.object(&self.namespace, &name, &mut self.random)));
        }
        let made = futures::stream::iter(all).map(async |(api, object)| {
            let object: DynamicObject = serde_json::from_value(object).expect("a fixed form");
            must(api.create(&PostParams::default(), &object).await.map_err(|error| error.to_string()));
        });
        made.buffer_unordered(AT_ONCE).collect::<Vec<()>>().await;
    }

    /// Writes for as long as it is asked.
    pub(crate) async fn run(&mut self) -> Infallible {
        loop {
            // The API server may be away; what was done is what it says at the end.
            let _ = tokio::time::timeout(CHANGE_TIMEOUT, self.step()).await;
            tokio::time::sleep(Duration::from_millis(self.random.u64(self.pauses.clone()))).await;
        }
    }

    async fn step(&mut self) -> kube::Result<()> {
        let kind = self.kinds[self.random.usize(0..self.kinds.len())];
        let name = name(kind, self.random.u8(0..NAMES));
        let api = self.api(kind);
        match self.random.u8(0..20) {
            0..=2 => self.delete(&api, &name).await,
            3..=5 => {
                self.delete(&api, &name).await?;
                self.create(&api, kind, &name).await
            }
            // Bursts of one object.
            6 | 7 => {
                for _ in 0..5 {
                    self.update(&api, kind, &name).await?;
                }
                Ok(())
            }
            _ => self.update(&api, kind, &name).await,
        }
    }

    async fn update(&mut self, api: &Api<DynamicObject>, kind: WrittenKind, name: &str) -> kube::Result<()> {
        let patch = Patch::Merge(kind.change(name, &mut self.random));
        match api.patch(name, &PatchParams::default(), &patch).await {
            Err(kube::Error::Api(status)) if status.code == 404 => self.create(api, kind, name).await,
            answer => self.count(answer),
        }
    }

    async fn create(&mut self, api: &Api<DynamicObject>, kind: WrittenKind, name: &str) -> kube::Result<()> {
        let object = kind.object(&self.namespace, name, &mut self.random);
        let object: DynamicObject = serde_json::from_value(object).expect("a fixed form");
        let answer = api.create(&PostParams::default(), &object).await;
        self.count(answer)
    }

    async fn delete(&mut self, api: &Api<DynamicObject>, name: &str) -> kube::Result<()> {
        let answer = api.delete(name, &DeleteParams::default()).await;
        self.count(answer)
    }

    fn count<T>(&mut self, answer: kube::Result<T>) -> kube::Result<()> {
        self.changes += usize::from(answer.is_ok());
        answer.map(drop)
    }
}

fn name(kind: WrittenKind, number: u8) -> String {
    format!("{kind:?}-{number:02}").to_lowercase()
}

/// Creates the CRD of the world's namespace, and waits until its objects can be written.
pub(crate) async fn define_gadgets(world: &World) {
    let client = world.control_plane().client().await;
    let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
    let made = serde_json::from_value(definition(world.namespace())).expect("a fixed object");
    eventually("the CRD", MAX_WAIT, async || {
        let made = definitions.create(&PostParams::default(), &made).await;
        made.map_err(|error| error.to_string())
    })
    .await;
    let gadgets = WrittenKind::Gadget.api(client, world.namespace());
    eventually("a kind that is served", MAX_WAIT, async || {
        gadgets.list(&ListParams::default()).await.map_err(|error| error.to_string())
    })
    .await;
}

/// Deletes the CRD of the world's namespace with all its objects, and waits until it is gone.
pub(crate) async fn forget_gadgets(world: &World) {
    let definitions: Api<CustomResourceDefinition> = Api::all(world.control_plane().client().await);
    let name = definition_name(world.namespace());
    eventually("no CRD", MAX_WAIT, async || {
        match definitions.delete(&name, &DeleteParams::default()).await {
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
            answer => Err(format!("{answer:?}")),
        }
    })
    .await;
}
