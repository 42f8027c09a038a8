//! The commands that agents received, from their logs: no account is given to two zones at once.

use std::collections::{HashMap, HashSet};
use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::Path;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use super::Watcher;
use crate::random_faults::plan::{AGENTS, ZONES, agent, zone_of};
use crate::random_faults::scene::Scene;

/// Interval between reads of the logs.
const POLL: Duration = Duration::from_millis(500);
/// Delay before lines are judged in the order of their timestamps, so that all agents have written earlier
/// lines.
const LATE: SignedDuration = SignedDuration::from_secs(2);
/// Connection time after which the leader has processed an agent's reports.
const HEARD: Duration = Duration::from_secs(5);

/// What happened to an account at an agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Word {
    /// It is being started. If the stream is lost meanwhile, the attempt is cancelled without a log line.
    Starts,
    /// It is held.
    Has,
    /// It was dropped, or has failed.
    HasNot,
    /// A new process has started.
    Begins,
}

/// A log line.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Line {
    at: Timestamp,
    agent: usize,
    word: Word,
    account: String,
    uid: String,
    epoch: i64,
}

/// What was read but not judged yet.
#[derive(Debug, Default)]
struct Logs {
    read: [u64; AGENTS],
    waiting: Vec<Line>,
}

/// The commands received so far.
#[derive(Debug, Default)]
struct Told {
    /// The accounts that each agent has.
    has: HashSet<(usize, String)>,
    /// The zone that received each epoch of a uid.
    zones: HashMap<(String, i64), usize>,
}

/// The observed state at the time when a line is judged.
struct Around<'a> {
    /// The zone to which the objects gave the epoch.
    granted: Option<&'a str>,
    /// The agents whose reports the leader must have processed.
    heard: [bool; AGENTS],
}

impl Told {
    /// What is wrong about an agent receiving this now.
    fn judge(&mut self, line: &Line, around: &Around<'_>) -> Vec<String> {
        let key = (line.agent, line.account.clone());
        match line.word {
            Word::Begins => self.has.retain(|(agent, _)| *agent != line.agent),
            Word::HasNot => drop(self.has.remove(&key)),
            Word::Starts => return self.faults(line, around),
            Word::Has => {
                let faults = self.faults(line, around);
                self.has.insert(key);
                return faults;
            }
        }
        Vec::new()
    }

    fn faults(&mut self, line: &Line, around: &Around<'_>) -> Vec<String> {
        let (zone, epoch, mut faults) = (zone_of(line.agent), line.epoch, Vec::new());
        let told = *self.zones.entry((line.uid.clone(), epoch)).or_insert(zone);
        if told != zone {
            faults.push(format!("epoch {epoch} is told to {} and to {}", ZONES[told], ZONES[zone]));
        }
        if let Some(granted) = around.granted.filter(|granted| *granted != ZONES[zone]) {
            faults.push(format!("{} is told of epoch {epoch}, which is of {granted}", agent(line.agent)));
        }
        for other in (0..AGENTS).filter(|other| zone_of(*other) != zone && around.heard[*other]) {
            if self.has.contains(&(other, line.account.clone())) {
                faults.push(format!("{} is told of it while {} has it", agent(line.agent), agent(other)));
            }
        }
        faults
    }
}

impl Watcher {
    pub(super) async fn watch_commands(&self, scene: &Scene) {
        let (mut logs, mut told) = (Logs::default(), Told::default());
        loop {
            tokio::time::sleep(POLL).await;
            for (number, agent) in scene.agents.iter().enumerate() {
                let text = rest(agent.log(), &mut logs.read[number]);
                logs.waiting.extend(text.lines().filter_map(|line| parsed(number, line)));
            }
            logs.waiting.sort_by_key(|line| line.at);
            let until = Timestamp::now() - LATE;
            let ripe = logs.waiting.partition_point(|line| line.at < until);
            for line in logs.waiting.drain(..ripe) {
                self.read(scene, &mut told, &line);
            }
        }
    }

    fn read(&self, scene: &Scene, told: &mut Told, line: &Line) {
        let granted = self.objects.lock().granted.get(&(line.uid.clone(), line.epoch)).cloned();
        let links = self.links.lock();
        let heard = std::array::from_fn(|one| links.of(&agent(one)).is_some_and(|since| since > HEARD));
        drop(links);
        if matches!(line.word, Word::Starts | Word::Has) {
            scene.chronicle.count("also:commands to agents");
        }
        if line.word != Word::Begins {
            let uid = line.uid.get(..8).unwrap_or_default();
            let what = format!("agent {} {:?} {uid} epoch {}", agent(line.agent), line.word, line.epoch);
            scene.chronicle.of_account(&line.account, what);
        }
        for fault in told.judge(line, &Around { granted: granted.as_deref(), heard }) {
            scene.chronicle.violation(Some(&line.account), fault);
        }
    }
}

/// The complete lines that were written since the last read.
fn rest(log: &Path, read: &mut u64) -> String {
    let mut bytes = Vec::new();
    let whole = std::fs::File::open(log).and_then(|mut file| {
        file.seek(SeekFrom::Start(*read))?;
        file.read_to_end(&mut bytes)
    });
    let end = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |last| last + 1);
    if whole.is_err() || end == 0 {
        return String::new();
    }
    *read += end as u64;
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}

/// Parses a line about an account or a new process.
fn parsed(agent: usize, line: &str) -> Option<Line> {
    const WORDS: [(&str, Word); 5] = [
        ("starting the account ", Word::Starts),
        ("the account is held ", Word::Has),
        ("the account is dropped ", Word::HasNot),
        ("the account failed: ", Word::HasNot),
        ("starting the agent", Word::Begins),
    ];
    let at = line.split_whitespace().next()?.parse().ok()?;
    let word = WORDS.iter().find(|(text, _)| line.contains(text))?.1;
    let field = |name: &str| {
        let value = line.split_once(&format!(" {name}="))?.1;
        Some(value.split_whitespace().next()?.trim_matches('"').to_owned())
    };
    let of = |name: &str| field(name).unwrap_or_default();
    let epoch = of("epoch").parse().unwrap_or_default();
    Some(Line { at, agent, word, account: of("account"), uid: of("uid"), epoch })
}

#[cfg(test)]
mod tests {
    use super::{AGENTS, Around, Line, Told, Word, parsed};

    const NOBODY: Around<'_> = Around { granted: None, heard: [false; AGENTS] };
    const ALL: Around<'_> = Around { granted: None, heard: [true; AGENTS] };

    fn line(agent: usize, word: Word, epoch: i64) -> Line {
        let at = "2026-01-01T00:00:00Z".parse().expect("a time");
        Line { at, agent, word, account: "one".into(), uid: "u-1".into(), epoch }
    }

    #[test]
    fn the_lines_of_an_agent_are_understood() {
        let text = "2026-01-01T00:00:00.000Z  INFO agent{agentId=east-0 zoneId=east}: kubesvc::agent::accounts: \
                    starting the account account=one uid=u-1 epoch=3";
        assert_eq!(parsed(0, text), Some(line(0, Word::Starts, 3)));
        let held = text.replace("starting the account", "the account is held");
        assert_eq!(parsed(0, &held), Some(line(0, Word::Has, 3)));
        let dropped = text.replace("starting the account", "the account is dropped");
        assert_eq!(parsed(0, &dropped), Some(line(0, Word::HasNot, 3)));
        assert_eq!(parsed(0, "something else"), None);
    }

    #[test]
    fn one_zone_after_the_other_is_well_and_both_at_once_are_not() {
        let mut told = Told::default();
        assert!(told.judge(&line(0, Word::Has, 1), &ALL).is_empty());
        assert!(told.judge(&line(1, Word::Has, 1), &ALL).is_empty(), "the same zone");
        assert_eq!(told.judge(&line(2, Word::Starts, 3), &ALL).len(), 2, "both of the first zone have it");
        for (agent, word) in [(0, Word::HasNot), (1, Word::Begins)] {
            assert!(told.judge(&line(agent, word, 4), &ALL).is_empty());
        }
        assert!(told.judge(&line(4, Word::Has, 5), &ALL).is_empty());
        assert!(told.judge(&line(0, Word::Has, 7), &NOBODY).is_empty(), "the other one was given up");
    }

    #[test]
    fn an_epoch_of_another_zone_is_seen() {
        let mut told = Told::default();
        assert!(told.judge(&line(0, Word::Has, 1), &NOBODY).is_empty());
        assert_eq!(told.judge(&line(2, Word::Has, 1), &NOBODY).len(), 1);
        let granted = Around { granted: Some("west"), ..NOBODY };
        assert_eq!(told.judge(&line(0, Word::Has, 2), &granted).len(), 1);
    }
}
