//! client-go informers through both doors, while objects change and the agent is killed: at the end they know what the
//! cluster has, and no watch ended as if it were whole.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use kube::ResourceExt as _;
use kube::api::{Api, DeleteParams, ListParams, PostParams};
use serde::Deserialize;
use tokio_util::task::AbortOnDropHandle;

use super::ways::until_available;
use crate::gateway::place::{EVERYTHING, Place};
use kubesvc_testkit::process::{Process, Streams};
use kubesvc_testkit::wait::eventually;
use kubesvc_testkit::{assets, must};

/// Namespace whose ConfigMaps are watched.
const FOLLOWED: &str = "followed";
/// Interval between two changes.
const CHANGE_INTERVAL: Duration = Duration::from_millis(20);
/// Number of objects that change.
const OBJECTS: usize = 40;
/// Time limit until an informer knows again what changes. client-go waits longer after each cut, up to 60 s, until
/// there was none for two minutes.
const CATCH_UP_TIMEOUT: Duration = Duration::from_secs(90);
/// What client-go logs when a connection is cut, or nobody answers for a while.
const LOGGED_FOR_A_CUT: [&str; 5] = [
    "Failed to watch",
    "Unexpected error when reading response body",
    "Unable to decode an event from the watch stream",
    "Warning: watch ended with error",
    "unable to decode an event",
];
/// What no informer may be told because an agent is away.
const NEVER_LOGGED: [&str; 6] = [
    "forbidden",
    "Forbidden",
    "not find the requested resource",
    "NotFound",
    "Unauthorized",
    "unknown account",
];

/// A line about a request that ended.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Ended {
    is_watch: bool,
    code: u16,
    asked: f64,
    seconds: f64,
    how: String,
    is_line: bool,
}

struct Follower {
    door: &'static str,
    process: Process,
    store: PathBuf,
    output: PathBuf,
}

/// How often the agent's process ended.
#[derive(Debug, Default)]
struct Ends {
    kills: usize,
    stops: usize,
}

impl Ends {
    fn all(&self) -> usize {
        self.kills + self.stops
    }
}

type Versions = BTreeMap<String, String>;

impl Follower {
    fn start(place: &Place, door: &'static str, kubeconfig: &std::path::Path) -> Self {
        let folder = place.world.folder();
        let (store, output) = (folder.file(&format!("{door}.store")), folder.file(&format!("{door}.out")));
        let mut command = Command::new(must(tokio::task::block_in_place(assets::informer)));
        command.arg("follow").args([kubeconfig, &store]).args([FOLLOWED, "/v1/configmaps"]);
        let streams = Streams {
            input: None,
            output: Some(output.clone()),
            errors: folder.file(&format!("{door}.err")),
        };
        let process = must(Process::spawn_with("an informer", &command, &streams));
        Self { door, process, store, output }
    }

    fn versions(&self) -> Result<Versions, String> {
        self.process.check_running()?;
        let text = std::fs::read_to_string(&self.store).map_err(|e| format!("{}: {e}", self.door))?;
        serde_json::from_str(&text).map_err(|e| e.to_string())
    }

    fn ended(&self) -> Vec<Ended> {
        let text = std::fs::read_to_string(&self.output).unwrap_or_default();
        text.lines().map(|line| serde_json::from_str(line).expect("a line of the informer")).collect()
    }
}

/// Changes objects until it is dropped.
fn change(maps: Api<ConfigMap>) -> AbortOnDropHandle<()> {
    AbortOnDropHandle::new(tokio::spawn(async move {
        let mut ticks = tokio::time::interval(CHANGE_INTERVAL);
        for step in 0_usize.. {
            ticks.tick().await;
            let name = format!("item-{}", step % OBJECTS);
            // Made, changed twice, deleted; what fails shows in the comparison at the end as nothing.
            match (step / OBJECTS) % 4 {
                0 => drop(maps.create(&PostParams::default(), &object(&name)).await),
                3 => drop(maps.delete(&name, &DeleteParams::default()).await),
                _ => {
                    if let Ok(mut found) = maps.get(&name).await {
                        found.data = Some([("step".to_owned(), step.to_string())].into());
                        drop(maps.replace(&name, &PostParams::default(), &found).await);
                    }
                }
            }
        }
    }))
}

fn object(name: &str) -> ConfigMap {
    let mut map = ConfigMap::default();
    map.metadata.name = Some(name.to_owned());
    map
}

/// Waits until each informer knows an object that was made now; returns how long the slowest took.
async fn until_known(maps: &Api<ConfigMap>, followers: &[Follower], marker: &str) -> Duration {
    must(maps.create(&PostParams::default(), &object(marker)).await.map_err(|e| e.to_string()));
    let began = Instant::now();
    for follower in followers {
        eventually(&format!("{marker} at the {} door", follower.door), CATCH_UP_TIMEOUT, async || {
            if follower.versions()?.contains_key(marker) { Ok(()) } else { Err("it is not there".to_owned()) }
        })
        .await;
    }
    began.elapsed()
}

/// Follows for this time, and ends the agent at least three times: every second time it may say goodbye.
async fn follow(time: Duration) {
    let place = Place::start(true).await;
    until_available(&place).await;
    let aggregated = place.aggregated(&place.person("ann", EVERYTHING, None).await);
    let direct = place.direct(&place.token("ann", Some("kubesvc")).await);
    let client = place.target.client().await;
    let mut namespace = Namespace::default();
    namespace.metadata.name = Some(FOLLOWED.to_owned());
    let made = Api::all(client.clone()).create(&PostParams::default(), &namespace).await;
    must(made.map_err(|e| e.to_string()));
    let maps: Api<ConfigMap> = Api::namespaced(client, FOLLOWED);
    let followers =
        [Follower::start(&place, "aggregated", &aggregated), Follower::start(&place, "direct", &direct)];
    until_known(&maps, &followers, "marker-0").await;
    let changing = change(maps.clone());

    let (began, mut ends, mut slowest) = (Instant::now(), Ends::default(), Duration::ZERO);
    while ends.all() < 3 || began.elapsed() < time {
        if ends.kills > ends.stops {
            place.agent.terminate().await;
            ends.stops += 1;
        } else {
            place.agent.kill();
            ends.kills += 1;
        }
        place.agent.launch();
        slowest = slowest.max(until_known(&maps, &followers, &format!("marker-{}", ends.all())).await);
    }
    drop(changing);
    for follower in &followers {
        eventually(&format!("all objects at the {} door", follower.door), CATCH_UP_TIMEOUT, async || {
            let list = maps.list(&ListParams::default()).await.map_err(|e| e.to_string())?;
            let of = |map: &ConfigMap| (map.name_any(), map.resource_version().unwrap_or_default());
            let cluster: Versions = list.iter().map(of).collect();
            let known = follower.versions()?;
            if known == cluster { Ok(()) } else { Err(format!("{known:?}\nis not\n{cluster:?}")) }
        })
        .await;
        check_requests(follower, &ends);
        check_log(follower);
    }
    let took = began.elapsed().as_secs_f64();
    eprintln!("{ends:?} of the agent in {took:.0} s; known again after {slowest:.1?} at most");
}

/// No watch ended as if it were whole before its time, except where an agent that was told to stop ended it after a
/// whole event: an informer goes on from there.
fn check_requests(follower: &Follower, ends: &Ends) {
    let (door, ended) = (follower.door, follower.ended());
    let watches: Vec<_> = ended.iter().filter(|one| one.is_watch && one.code == 200).collect();
    assert!(watches.len() >= ends.all(), "{door}: too few watches: {ended:#?}");
    let cut = watches.iter().filter(|one| one.how != "end").count();
    assert!(cut >= ends.kills, "{door}: {cut} watches were cut: {ended:#?}");
    let whole = watches.iter().filter(|one| one.how == "end");
    let early: Vec<_> = whole.clone().filter(|one| one.seconds + 1.0 < one.asked).collect();
    assert!(
        early.len() <= ends.stops,
        "{door}: {} watches were cut and seemed whole: {early:#?}",
        early.len()
    );
    for watch in whole {
        assert!(watch.is_line, "{door}: it ended within an event: {watch:?}");
    }
    for other in ended.iter().filter(|one| one.code != 200) {
        assert!([0, 503, 504].contains(&other.code), "{door}: {other:?}");
    }
}

/// client-go logs nothing but that connections were cut.
fn check_log(follower: &Follower) {
    let log = follower.process.log_text();
    for line in log.lines() {
        let is_known = LOGGED_FOR_A_CUT.iter().any(|known| line.contains(known));
        let is_wrong = NEVER_LOGGED.iter().any(|wrong| line.contains(wrong));
        assert!(is_known && !is_wrong, "{}: {line}\nof\n{log}", follower.door);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn informers_miss_nothing_while_the_agent_is_killed() {
    follow(Duration::ZERO).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "ten minutes, or KUBESVC_INFORMER_SECONDS; `make faults`"]
async fn informers_miss_nothing_in_ten_minutes_of_killed_agents() {
    let seconds = std::env::var("KUBESVC_INFORMER_SECONDS").ok().and_then(|text| text.parse().ok());
    follow(Duration::from_secs(seconds.unwrap_or(600))).await;
}
