//! After the faults, everything is as desired in every view.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Secret;
use kube::ResourceExt as _;
use kube::api::{DynamicObject, ListParams};
use serde_json::Value;

use super::plan::{self, DesiredAccount, REPLICAS, ZONES};
use super::scene::{Scene, WRITTEN_KINDS, fields, state};
use crate::faults::cache::row_oracle;
use crate::world::{connect, one_leads};
use kubesvc_testkit::wait::try_eventually;

/// Time limit for that.
pub(super) const LIMIT: Duration = Duration::from_secs(60);

const STATUSES: &str =
    "SELECT name, uid, status, generation, observed_generation FROM kubesvc_accounts ORDER BY name";
const ZONE_IDS: &str =
    "SELECT name, uid, zone_id, generation, observed_generation FROM kubesvc_accounts ORDER BY name";
const DEFINITIONS: &str =
    "SELECT name, uid, definition, generation, observed_generation FROM kubesvc_accounts ORDER BY name";

/// Desired states, by name.
type Wanted = BTreeMap<String, DesiredAccount>;

impl Scene {
    /// Waits until everything is as desired.
    ///
    /// # Errors
    ///
    /// Something is missing when the time is over; the text says what.
    pub(super) async fn settle(
        &self,
        desired_accounts: &[Option<DesiredAccount>],
        limit: Duration,
    ) -> Result<(), String> {
        let all =
            desired_accounts.iter().enumerate().filter_map(|(account, desired)| Some((account, (*desired)?)));
        let wanted: Wanted = all.map(|(account, desired)| (plan::name(account), desired)).collect();
        try_eventually("everything as desired", limit, async || {
            let uids = self.objects_are(&wanted).await?;
            self.rows_are(&wanted, &uids).await?;
            self.agents_have(&wanted).await?;
            self.nothing_is_left(&uids).await?;
            self.objects_are_cached().await?;
            let replicas: Vec<_> = (0..REPLICAS).map(|one| self.replica(one)).collect();
            one_leads(&replicas).await.map(drop)
        })
        .await
    }

    /// Checks the objects, and that there are no others. Returns uid and generation of each.
    async fn objects_are(&self, wanted: &Wanted) -> Result<BTreeMap<String, (String, i64)>, String> {
        let kind = kube::api::ApiResource::from_gvk_with_plural(
            &kube::api::GroupVersionKind::gvk("kubesvc.io", "v1alpha1", "KubesvcAccount"),
            "kubesvcaccounts",
        );
        let client = self.world.control_plane().client().await;
        let api: kube::Api<DynamicObject> = kube::Api::namespaced_with(client, self.world.namespace(), &kind);
        let listed = api.list(&ListParams::default()).await.map_err(|error| error.to_string())?;
        let mut wrong = Vec::new();
        let mut uids = BTreeMap::new();
        for object in &listed.items {
            let name = object.name_any();
            let Some(desired) = wanted.get(&name) else {
                wrong.push(format!("{name} is still there"));
                continue;
            };
            let (spec, status) = (&object.data["spec"], &object.data["status"]);
            let zone = if desired.active { Value::from(ZONES[desired.zone]) } else { Value::Null };
            let granted =
                if status["grant"]["phase"] == "Open" { &status["grant"]["zone"] } else { &Value::Null };
            let generation = object.metadata.generation.unwrap_or_default();
            let asked = fields(*desired);
            let spec_fits =
                asked.as_object().is_some_and(|all| all.iter().all(|(field, value)| spec[field] == *value));
            if !spec_fits || object.metadata.deletion_timestamp.is_some() {
                wrong.push(format!("{name} is not what was asked for: {asked}, but {spec}"));
            } else if status["state"] != state(*desired)
                || *granted != zone
                || status["observedGeneration"] != generation
            {
                wrong.push(format!("{name} is to be {} in {zone}: {status}", state(*desired)));
            }
            uids.insert(name, (object.uid().unwrap_or_default(), generation));
        }
        wrong.extend(wanted.keys().filter(|name| !uids.contains_key(*name)).map(|name| format!("no {name}")));
        said(&wrong).map(|()| uids)
    }

    /// Checks that there is exactly one matching row for each object.
    async fn rows_are(&self, wanted: &Wanted, uids: &BTreeMap<String, (String, i64)>) -> Result<(), String> {
        let of = |error: sqlx::Error| format!("the database: {error}");
        let mut database = connect(self.world.database_url()).await.map_err(of)?;
        let statuses = database.five(STATUSES).await.map_err(of)?;
        let zones = database.five(ZONE_IDS).await.map_err(of)?;
        let definitions = database.five(DEFINITIONS).await.map_err(of)?;
        let (mut wrong, mut names) = (Vec::new(), BTreeSet::new());
        for ((row, zone), definition) in statuses.into_iter().zip(zones).zip(definitions) {
            let right =
                wanted.get(&row.0).zip(uids.get(&row.0)).is_some_and(|(desired, (uid, generation))| {
                    let (kinds, environment) = (
                        format!("\"kind{}\"", desired.kinds),
                        format!("environment-{}", desired.environment),
                    );
                    (row.1.as_ref(), row.2.as_str(), row.3, row.4)
                        == (Some(uid), state(*desired), *generation, *generation)
                        && zone.2 == ZONES[desired.zone]
                        && definition.2.contains(&kinds)
                        && definition.2.contains(&environment)
                });
            if !right {
                let (zone, definition) = (zone.2, definition.2);
                wrong.push(format!("the row {row:?} {zone} {definition} is not as {:?}", uids.get(&row.0)));
            }
            names.insert(row.0);
        }
        wrong.extend(
            wanted.keys().filter(|name| !names.contains(*name)).map(|name| format!("no row of {name}")),
        );
        said(&wrong)?;
        let told = self.world.try_assignments().await?;
        let told: BTreeSet<_> = told.into_iter().collect();
        let active = wanted.iter().filter(|(_, desired)| desired.active);
        let right: BTreeSet<_> = active
            .flat_map(|(name, desired)| {
                [0, 1].map(|which| (name.clone(), plan::agent(2 * desired.zone + which)))
            })
            .collect();
        let differ: Vec<_> =
            told.symmetric_difference(&right).map(|one| format!("assignment {one:?}")).collect();
        said(&differ)
    }

    /// Checks that the rows of the accounts whose objects are cached are the objects.
    async fn objects_are_cached(&self) -> Result<(), String> {
        for account in 0..plan::CACHED {
            let name = plan::name(account);
            let compared = row_oracle::compare(&self.world, &name, &WRITTEN_KINDS).await;
            compared.map_err(|why| format!("of {name}, {why}"))?;
        }
        Ok(())
    }

    /// Checks that each agent reports exactly the accounts that are ACTIVE in its zone.
    async fn agents_have(&self, wanted: &Wanted) -> Result<(), String> {
        for agent in &self.agents {
            let of_zone =
                wanted.iter().filter(|(_, desired)| desired.active && ZONES[desired.zone] == agent.zone());
            let right: BTreeSet<_> = of_zone.map(|(name, _)| format!("{name} HELD")).collect();
            let answer = self.world.ask_agent_for(agent, "/accounts").await?;
            let told = answer["accounts"].as_array().cloned().unwrap_or_default();
            let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            let told: BTreeSet<_> =
                told.iter().map(|one| format!("{} {}", text(&one["name"]), text(&one["state"]))).collect();
            let wrong: Vec<_> = told.symmetric_difference(&right).cloned().collect();
            said(&wrong).map_err(|why| format!("at {}: {why}", agent.id()))?;
        }
        Ok(())
    }

    /// Checks that there are no Secrets of deleted accounts, and no Leases except those of the current
    /// replicas.
    async fn nothing_is_left(&self, uids: &BTreeMap<String, (String, i64)>) -> Result<(), String> {
        let list = ListParams::default();
        let secrets = self.world.api::<Secret>().list(&list).await.map_err(|error| error.to_string())?;
        let mut wrong = Vec::new();
        for secret in secrets.items.iter().filter(|one| one.labels().contains_key("kubesvc.io/origin")) {
            let object = secret.annotations().get("kubesvc.io/account");
            let stands = object
                .and_then(|object| object.strip_prefix(self.world.namespace())?.strip_prefix('/'))
                .is_some_and(|object| uids.contains_key(object));
            if !stands || !secret.owner_references().is_empty() {
                wrong.push(format!("the Secret {} is of {object:?}", secret.name_any()));
            }
        }
        let leases = self.world.api::<Lease>().list(&list).await.map_err(|error| error.to_string())?;
        let leases: BTreeSet<_> = leases.items.iter().map(kube::ResourceExt::name_any).collect();
        let ids = (0..REPLICAS).map(|one| format!("kubesvc-replica-{}", self.replica(one).replica_id()));
        let right: BTreeSet<_> = ids.chain(["kubesvc-operator".to_owned()]).collect();
        if leases != right {
            wrong.push(format!("the Leases are {leases:?}"));
        }
        said(&wrong)
    }
}

fn said(wrong: &[String]) -> Result<(), String> {
    if wrong.is_empty() {
        return Ok(());
    }
    let some = wrong.iter().take(5).map(String::as_str).collect::<Vec<_>>().join("\n  ");
    Err(format!("{} are not as desired, among them:\n  {some}", wrong.len()))
}
