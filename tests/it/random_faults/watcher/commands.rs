//! The commands that agents received, from their logs: no account is given to two zones at once.

use std::collections::HashMap;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::Path;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use super::Watcher;
use crate::random_faults::plan::{AGENTS, ZONES, agent, zone_of};
use crate::random_faults::scene::Scene;

/// Interval between reads of the logs.
const POLL: Duration = Duration::from_millis(500);
/// Delay before lines are checked in the order of their timestamps, so that all agents have written earlier
/// lines.
const LOG_DELAY: SignedDuration = SignedDuration::from_secs(2);
/// Connection time after which the leader has processed an agent's reports.
const REPORT_DELAY: Duration = Duration::from_secs(5);

/// What happened to an account at an agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Event {
    /// It is being started. If the stream is lost meanwhile, the attempt is cancelled without a log line.
    Starting,
    /// It is held.
    Held,
    /// It was dropped and nothing runs for it, or it has failed.
    Released,
    /// A new process has started.
    AgentStarted,
}

/// A log line.
#[derive(Clone, Debug, PartialEq, Eq)]
struct LogLine {
    at: Timestamp,
    agent: usize,
    event: Event,
    account: String,
    uid: String,
    epoch: i64,
}

/// What was read but not checked yet.
#[derive(Debug, Default)]
struct Logs {
    read: [u64; AGENTS],
    waiting: Vec<LogLine>,
}

/// The commands received so far.
#[derive(Debug, Default)]
struct ReceivedCommands {
    /// The accounts that each agent has, by name, with their uids and epochs.
    held: HashMap<(usize, String), (String, i64)>,
    /// The zone that received each epoch of a uid.
    zones: HashMap<(String, i64), usize>,
}

/// The observed state at the time when a line is checked.
struct Observed<'a> {
    /// The zone to which the objects gave the epoch.
    granted: Option<&'a str>,
    /// The agents whose reports the leader must have processed.
    reported: [bool; AGENTS],
}

impl ReceivedCommands {
    /// What is wrong about an agent receiving this now.
    fn check(&mut self, line: &LogLine, observed: &Observed<'_>) -> Vec<String> {
        let key = (line.agent, line.account.clone());
        match line.event {
            Event::AgentStarted => self.held.retain(|(agent, _), _| *agent != line.agent),
            Event::Released => {
                let ends = |(uid, epoch): &(String, i64)| *uid == line.uid && *epoch <= line.epoch;
                if self.held.get(&key).is_some_and(ends) {
                    self.held.remove(&key);
                }
            }
            Event::Starting => return self.faults(line, observed),
            Event::Held => {
                let faults = self.faults(line, observed);
                self.held.insert(key, (line.uid.clone(), line.epoch));
                return faults;
            }
        }
        Vec::new()
    }

    fn faults(&mut self, line: &LogLine, observed: &Observed<'_>) -> Vec<String> {
        let (zone, epoch, mut faults) = (zone_of(line.agent), line.epoch, Vec::new());
        let first = *self.zones.entry((line.uid.clone(), epoch)).or_insert(zone);
        if first != zone {
            faults.push(format!("epoch {epoch} is sent to {} and to {}", ZONES[first], ZONES[zone]));
        }
        if let Some(granted) = observed.granted.filter(|granted| *granted != ZONES[zone]) {
            faults.push(format!("{} is sent epoch {epoch}, which is of {granted}", agent(line.agent)));
        }
        for other in (0..AGENTS).filter(|other| zone_of(*other) != zone && observed.reported[*other]) {
            if self.held.contains_key(&(other, line.account.clone())) {
                faults.push(format!("{} is sent it while {} has it", agent(line.agent), agent(other)));
            }
        }
        faults
    }
}

impl Watcher {
    pub(super) async fn watch_commands(&self, scene: &Scene) {
        let (mut logs, mut received) = (Logs::default(), ReceivedCommands::default());
        loop {
            tokio::time::sleep(POLL).await;
            for (number, agent) in scene.agents.iter().enumerate() {
                let text = new_lines(agent.log(), &mut logs.read[number]);
                logs.waiting.extend(text.lines().filter_map(|line| parsed(number, line)));
            }
            logs.waiting.sort_by_key(|line| line.at);
            let until = Timestamp::now() - LOG_DELAY;
            let due = logs.waiting.partition_point(|line| line.at < until);
            for line in logs.waiting.drain(..due) {
                self.read(scene, &mut received, &line);
            }
        }
    }

    fn read(&self, scene: &Scene, received: &mut ReceivedCommands, line: &LogLine) {
        let granted = self.objects.lock().granted.get(&(line.uid.clone(), line.epoch)).cloned();
        let links = self.links.lock();
        let reported =
            std::array::from_fn(|one| links.of(&agent(one)).is_some_and(|since| since > REPORT_DELAY));
        drop(links);
        if matches!(line.event, Event::Starting | Event::Held) {
            scene.event_log.count("also:commands to agents");
        }
        if line.event != Event::AgentStarted {
            let uid = line.uid.get(..8).unwrap_or_default();
            let what = format!("agent {} {:?} {uid} epoch {}", agent(line.agent), line.event, line.epoch);
            scene.event_log.of_account(&line.account, what);
        }
        for fault in received.check(line, &Observed { granted: granted.as_deref(), reported }) {
            scene.event_log.violation(Some(&line.account), fault);
        }
    }
}

/// The complete lines that were written since the last read.
fn new_lines(log: &Path, read: &mut u64) -> String {
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
fn parsed(agent: usize, line: &str) -> Option<LogLine> {
    const EVENTS: [(&str, Event); 6] = [
        ("starting the account ", Event::Starting),
        ("the account is held ", Event::Held),
        ("the account is dropped ", Event::Released),
        // The answer to a drop, and with it the line above, is lost with the stream.
        ("nothing runs for the account any more ", Event::Released),
        ("the account failed: ", Event::Released),
        ("starting the agent", Event::AgentStarted),
    ];
    let at = line.split_whitespace().next()?.parse().ok()?;
    let event = EVENTS.iter().find(|(text, _)| line.contains(text))?.1;
    let field = |name: &str| {
        let value = line.split_once(&format!(" {name}="))?.1;
        Some(value.split_whitespace().next()?.trim_matches('"').to_owned())
    };
    let of = |name: &str| field(name).unwrap_or_default();
    let epoch = of("epoch").parse().unwrap_or_default();
    Some(LogLine { at, agent, event, account: of("account"), uid: of("uid"), epoch })
}

#[cfg(test)]
mod tests {
    use super::{AGENTS, Event, LogLine, Observed, ReceivedCommands, parsed};

    const NOBODY: Observed<'_> = Observed { granted: None, reported: [false; AGENTS] };
    const ALL: Observed<'_> = Observed { granted: None, reported: [true; AGENTS] };

    fn line(agent: usize, event: Event, epoch: i64) -> LogLine {
        let at = "2026-01-01T00:00:00Z".parse().expect("a time");
        LogLine { at, agent, event, account: "one".into(), uid: "u-1".into(), epoch }
    }

    #[test]
    fn agent_log_lines_are_parsed() {
        let text = "2026-01-01T00:00:00.000Z  INFO agent{agentId=east-0 zoneId=east}: kubesvc_agent::command_executor: \
                    starting the account account=one uid=u-1 epoch=3";
        assert_eq!(parsed(0, text), Some(line(0, Event::Starting, 3)));
        let held = text.replace("starting the account", "the account is held");
        assert_eq!(parsed(0, &held), Some(line(0, Event::Held, 3)));
        let dropped = text.replace("starting the account", "the account is dropped");
        assert_eq!(parsed(0, &dropped), Some(line(0, Event::Released, 3)));
        assert_eq!(parsed(0, "something else"), None);
    }

    #[test]
    fn two_zones_at_once_are_a_violation_and_one_after_the_other_is_not() {
        let mut received = ReceivedCommands::default();
        assert!(received.check(&line(0, Event::Held, 1), &ALL).is_empty());
        assert!(received.check(&line(1, Event::Held, 1), &ALL).is_empty(), "the same zone");
        assert_eq!(
            received.check(&line(2, Event::Starting, 3), &ALL).len(),
            2,
            "both of the first zone have it"
        );
        for (agent, event) in [(0, Event::Released), (1, Event::AgentStarted)] {
            assert!(received.check(&line(agent, event, 4), &ALL).is_empty());
        }
        assert!(received.check(&line(4, Event::Held, 5), &ALL).is_empty());
        assert!(received.check(&line(0, Event::Held, 7), &NOBODY).is_empty(), "the other one was given up");
    }

    #[test]
    fn epoch_sent_to_two_zones_is_a_violation() {
        let mut received = ReceivedCommands::default();
        assert!(received.check(&line(0, Event::Held, 1), &NOBODY).is_empty());
        assert_eq!(received.check(&line(2, Event::Held, 1), &NOBODY).len(), 1);
        let granted = Observed { granted: Some("west"), ..NOBODY };
        assert_eq!(received.check(&line(0, Event::Held, 2), &granted).len(), 1);
    }
}
