//! Everything that an account can go through, while the operator may die at any moment.

use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::{ListParams, PostParams};
use kubesvc_core::owned_secret::OWN_KEY;
use kubesvc_core::{
    KubesvcAccount, KubesvcAccountSpec, KubesvcAgent, ORIGIN_LABEL, ORIGIN_REST, State, WATCH_LABEL, ZoneId,
    object_names, owned_secret,
};
use secrecy::SecretString;
use serde_json::{Value, json};

use crate::faults::settled::settled;
use crate::world::{Agent, Answer, Database, ForeignTableRow, MAX_WAIT, World};
use kubesvc_testkit::{must, wait::eventually};

/// Interval between repeated calls after a broken connection.
const AGAIN: Duration = Duration::from_millis(100);

/// Creates rows of accounts before the operator has ever run: in a table like kubesvc's, or in a different
/// one. Returns the kubeconfig in them.
pub(super) async fn leave_rows(world: &World, database: Database) -> String {
    match database {
        Database::Sqlite => {
            world.execute(include_str!("../../../../migrations/sqlite/0001_accounts.sql")).await;
        }
        Database::MariaDb | Database::Postgres => world.make_vendor_table().await,
    }
    let kubeconfig = world.cluster("left").await.kubeconfig();
    leave_secrets(world, &kubeconfig).await;
    let definition = json!({"kubeconfigContents": kubeconfig}).to_string();
    for (name, status) in [("was-a-row", "ACTIVE"), ("was-one-too", "FAILED")] {
        let row = ForeignTableRow { name, status, zone: "east", definition: &definition };
        world.write_foreign_rows("kubesvc_accounts", &[row]).await;
    }
    kubeconfig
}

/// Creates Secrets that the operator finds at startup: one of a POST whose process died before it created the
/// account, and one of an account created by an earlier version, as a restore left it.
async fn leave_secrets(world: &World, kubeconfig: &str) {
    let of = |object: &'static str, kubeconfig: &str| {
        let kubeconfig = SecretString::from(kubeconfig.to_owned());
        owned_secret::wanted((world.namespace(), object), ORIGIN_REST, &[(OWN_KEY, &kubeconfig)].into(), None)
    };
    let mut earlier = of("earlier", kubeconfig);
    earlier.metadata.annotations = None;
    let labels = earlier.metadata.labels.get_or_insert_default();
    labels.retain(|key, _| [WATCH_LABEL, ORIGIN_LABEL].contains(&key.as_str()));
    earlier.metadata.owner_references = Some(vec![OwnerReference {
        api_version: "kubesvc.io/v1alpha1".to_owned(),
        kind: "KubesvcAccount".to_owned(),
        name: "earlier".to_owned(),
        uid: "of-the-account-before-the-restore".to_owned(),
        ..OwnerReference::default()
    }]);
    let error = |error: kube::Error| error.to_string();
    for secret in [of("rest-kept", "left by a request that was not finished"), earlier] {
        must(world.api().create(&PostParams::default(), &secret).await.map_err(error));
    }
    let spec = KubesvcAccountSpec {
        zone_id: Some("east".into()),
        kubeconfig: owned_secret::source("earlier", OWN_KEY),
        ..KubesvcAccountSpec::default()
    };
    let mut account = KubesvcAccount::new("earlier", spec);
    account.metadata.labels = Some([(ORIGIN_LABEL.to_owned(), ORIGIN_REST.to_owned())].into());
    must(world.api().create(&PostParams::default(), &account).await.map_err(error));
}

/// Accounts in a world with agents of two zones.
pub(super) struct Life<'w> {
    world: &'w World,
    east: Agent,
    west: Agent,
    /// The kubeconfig of every account, and a different text with the same meaning.
    good: String,
    other: String,
    /// The kubeconfig of the accounts that were rows.
    left: String,
    batch: Vec<String>,
    /// Expected states at the end.
    wanted: Vec<(String, State)>,
    /// Whether objects are cached.
    caches: bool,
}

impl<'w> Life<'w> {
    /// Starts the agents and waits for nothing. `batch` is the number of additional accounts applied at once,
    /// `left` the result of [`leave_rows`].
    pub(super) async fn begin(world: &'w World, batch: usize, left: String) -> Self {
        let good = world.cluster("spinnaker").await.kubeconfig();
        let launch = |id, zone| {
            let agent = world.agent(id).zone(zone);
            // The operator dies again and again, and each time soon after the agent is back.
            let agent = agent.setting("kubernetes.reconnectTimeoutMs", json!(100));
            let agent = agent.setting("clouddriver.backoff.baseDelay", json!(100_000_000));
            agent.setting("clouddriver.backoff.multiplier", json!(1)).launch()
        };
        Self {
            world,
            east: launch("agent-1", "east"),
            west: launch("agent-2", "west"),
            other: format!("{good}# as changed by REST\n"),
            good,
            left,
            batch: (0..batch).map(|number| format!("batch-{number:02}")).collect(),
            wanted: Vec::new(),
            caches: false,
        }
    }

    /// An agent of a third zone connects and then goes away permanently.
    pub(super) async fn loses_an_agent(&self) {
        let north = self.world.agent("agent-3").zone("north").start().await;
        north.kill();
    }

    /// Performs all changes of the accounts. [`Life::settles`] checks the results after the last crash: a
    /// timeout that includes restarts would measure the machine.
    pub(super) async fn run_changes(&mut self) {
        self.is_applied().await;
        if self.caches {
            self.until_scopes_of_former(true).await;
        }
        self.add_static_accounts().await;
        self.is_changed().await;
        let wanted = [
            ("kept", State::Active),
            ("changed", State::Active),
            ("moved", State::Active),
            ("anywhere", State::Active),
            ("stopped", State::Inactive),
            ("idle", State::Inactive),
            ("rest-kept", State::Active),
            ("rest-stopped", State::Inactive),
            ("own-kept", State::Active),
            ("was-a-row", State::Active),
            ("was-one-too", State::Inactive),
            ("earlier", State::Active),
        ];
        self.wanted = wanted.map(|(name, state)| (name.to_owned(), state)).into();
        self.wanted.extend(self.batch.iter().map(|name| (name.clone(), State::Active)));
    }

    /// After the crash: everything is as desired. Work that was stopped before the crash has stopped for
    /// good, because another account goes through its whole activation.
    pub(super) async fn check_recovered(&mut self) {
        self.world.account("next").zone("east").kubeconfig(&self.good).create().await;
        self.wanted.push(("next".to_owned(), State::Active));
        self.settles().await;
        self.has_secret("rest-kept", &self.other).await;
        self.has_secret("rest-stopped", &self.good).await;
        self.has_secret("was-a-row", &self.left).await;
        self.has_secret("was-one-too", &self.left).await;
        self.has_secret("earlier", &self.left).await;
        if self.caches {
            self.until_scopes_of_former(false).await;
        }
    }

    /// Has accounts cached before they are stopped and deleted, and checks that nothing is left of them in the end.
    pub(super) fn with_objects(self) -> Self {
        Self { caches: true, ..self }
    }

    /// Waits until the accounts that are stopped and deleted have scopes, or have none any more.
    async fn until_scopes_of_former(&self, exist: bool) {
        eventually("scopes of former accounts", 2 * MAX_WAIT, async || {
            let read = async { self.world.open_database().await?.scopes().await };
            let scopes = read.await.map_err(|error| error.to_string())?;
            let has_scopes = |account: &&str| scopes.iter().any(|(of, ..)| of == account);
            let all = ["stopped", "deleted"].iter().all(|account| has_scopes(account) == exist);
            if all { Ok(()) } else { Err(format!("there are {scopes:?}")) }
        })
        .await;
    }

    /// Waits until the agents' objects have the right number of accounts, and the object of the lost agent is
    /// gone.
    pub(super) async fn until_agent_objects_settle(&self) {
        eventually("objects of agents as they should be", MAX_WAIT, async || {
            let error = |error: kube::Error| error.to_string();
            let accounts = self.world.api::<KubesvcAccount>().list(&ListParams::default()).await;
            let accounts = accounts.map_err(error)?.items;
            let held = |zone: &str| {
                let held = accounts
                    .iter()
                    .filter(|one| one.status_or_default().granted_zone() == Some(&ZoneId::from(zone)));
                Some(i32::try_from(held.count()).expect("there are few"))
            };
            let agents = self.world.api::<KubesvcAgent>().list(&ListParams::default()).await;
            let mut told: Vec<_> = agents
                .map_err(error)?
                .items
                .into_iter()
                .map(|one| {
                    let status = one.status.unwrap_or_default();
                    (one.spec.agent_id, status.connected, status.held)
                })
                .collect();
            told.sort();
            let right = [&self.east, &self.west].map(|one| (one.id().into(), true, held(one.zone())));
            if told == right { Ok(()) } else { Err(format!("they are {told:?}, not {right:?}")) }
        })
        .await;
    }

    /// Applies one account of each kind, and creates some through REST.
    async fn is_applied(&self) {
        let world = self.world;
        let names = ["kept", "changed", "moved", "stopped", "deleted"];
        for name in names.into_iter().chain(self.batch.iter().map(String::as_str)) {
            world.account(name).zone("east").kubeconfig(&self.good).create().await;
        }
        world.account("idle").zone("east").kubeconfig(&self.good).inactive().create().await;
        let made = ["rest-kept", "rest-stopped", "rest-gone"].map(|name| {
            json!({"name": name, "kubeconfigContents": self.good, "zoneId": "east", "state": "ACTIVE"})
        });
        self.until_taken("POST", "/armory/accounts/dynamic", &json!(made), &[202, 409]).await;
        for name in names.into_iter().chain(["rest-kept", "rest-stopped", "rest-gone", "was-a-row"]) {
            self.until_active(name).await;
        }
        // Agents of two zones are probed for it.
        world.until_connected(&self.west, true).await;
        world.account("anywhere").kubeconfig(&self.good).create().await;
    }

    /// Adds accounts through an agent's own file.
    async fn add_static_accounts(&self) {
        let file = self.east.kubeconfigs().join("own.yaml");
        must(std::fs::write(&file, &self.good).map_err(|error| format!("{}: {error}", file.display())));
        self.east.set("kubernetes.accounts", json!([self.own("own-kept"), self.own("own-gone")]));
        for name in ["own-kept", "own-gone", "anywhere"] {
            self.until_active(name).await;
        }
    }

    /// Changes, moves, deactivates and deletes accounts, through kubectl, REST and the agent's file.
    async fn is_changed(&self) {
        let world = self.world;
        let mut changed = self.own("own-kept");
        changed["kinds"] = json!(["deployment"]);
        self.east.set("kubernetes.accounts", json!([changed]));
        world.patch("changed", json!({"spec": {"kinds": ["deployment"]}})).await;
        world.patch("moved", json!({"spec": {"zoneId": "west"}})).await;
        world.patch("stopped", json!({"spec": {"state": "INACTIVE"}})).await;
        must(world.kubectl(&["delete", "ksa", "deleted", "--wait=false"]).await.ok());
        let kept = json!([{"name": "rest-kept", "state": "ACTIVE", "kubeconfigContents": self.other}]);
        self.until_taken("PATCH", "/armory/accounts", &kept, &[202]).await;
        let stopped = json!([{"name": "rest-stopped", "state": "INACTIVE"}]);
        self.until_taken("PATCH", "/armory/accounts/dynamic", &stopped, &[202]).await;
        // 400: a call whose response was lost has already deleted it.
        self.until_taken("DELETE", "/armory/accounts", &json!(["rest-gone"]), &[202, 400]).await;
    }

    /// An entry of the agent's own file.
    fn own(&self, name: &str) -> Value {
        let file = self.east.kubeconfigs().join("own.yaml");
        json!({"name": name, "kubeconfigFile": file.display().to_string()})
    }

    /// Waits until everything is as desired.
    pub(super) async fn settles(&self) {
        let wanted: Vec<_> = self.wanted.iter().map(|(name, state)| (name.as_str(), *state)).collect();
        settled(self.world, &[&self.east, &self.west], &wanted).await;
    }

    /// Repeats a call to the REST API, as a caller does after a broken connection, until it returns one of
    /// these codes. A `409` counts only with the list of existing accounts.
    async fn until_taken(&self, method: &str, path: &str, body: &Value, codes: &[u16]) {
        let deadline = Instant::now() + MAX_WAIT;
        let taken = |answer: &Answer| {
            codes.contains(&answer.status) && (answer.status != 409 || answer.json.is_array())
        };
        loop {
            match self.world.try_rest(method, path, body).await {
                Ok(answer) if taken(&answer) => return,
                Ok(answer) => {
                    // 409 without a list: another client changed it at the same moment, and the response says
                    // to retry.
                    let passes = answer.status >= 500 || answer.status == 409;
                    assert!(passes && Instant::now() < deadline, "{method} {path}: {answer}");
                }
                Err(error) => assert!(Instant::now() < deadline, "{error}"),
            }
            tokio::time::sleep(AGAIN).await;
        }
    }

    /// Like [`World::until`], with time for a crash on the way.
    async fn until_active(&self, name: &str) {
        eventually(&format!("account {name} ACTIVE"), 2 * MAX_WAIT, async || {
            let account = self.world.try_object(name).await?.ok_or("there is none")?;
            let status = account.status_or_default();
            if status.state() == State::Active { Ok(()) } else { Err(format!("{status:?}")) }
        })
        .await;
    }

    /// Waits until the Secret of an account contains what was given last and has the account's labels.
    async fn has_secret(&self, account: &str, kubeconfig: &str) {
        eventually(&format!("the Secret of {account} as it should be"), MAX_WAIT, async || {
            let secret = self.world.api::<Secret>().get(&object_names::credential_secret_name(account)).await;
            let secret = secret.map_err(|error| error.to_string())?;
            if !secret.data.unwrap_or_default().values().any(|content| content.0 == kubeconfig.as_bytes()) {
                return Err("it holds something else".to_owned());
            }
            let ours = owned_secret::is_ours(&secret.metadata, (self.world.namespace(), account));
            let free = secret.metadata.owner_references.is_none();
            if ours && free { Ok(()) } else { Err(format!("it is not the account's: {:?}", secret.metadata)) }
        })
        .await;
    }
}
