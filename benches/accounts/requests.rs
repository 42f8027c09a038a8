//! Requests to an API server, as counted by the server itself.

use std::{collections::BTreeMap, time::Duration};

use kube::Client;

/// The server's counter of answered requests.
const COUNTER: &str = "apiserver_request_total{";
/// Delay after which an answered request is certainly counted.
const MOMENT: Duration = Duration::from_secs(2);

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Kind {
    verb: String,
    group: String,
    resource: String,
    subresource: String,
    code: u16,
}

/// Number of requests by kind.
#[derive(Debug, Clone, Default)]
pub(crate) struct Requests(BTreeMap<Kind, u64>);

/// Writes of KubesvcAccounts, including status writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct AccountWrites {
    /// Answered with 2xx.
    pub(crate) done: u64,
    /// Answered with 409.
    pub(crate) conflicts: u64,
    /// Answered with any other status.
    pub(crate) refused: u64,
}

impl Requests {
    /// Reads all requests since the API server started.
    pub(crate) async fn now(client: &Client) -> Result<Self, String> {
        let problem = |e: String| format!("/metrics of the API server: {e}");
        let request = http::Request::get("/metrics").body(Vec::new()).map_err(|e| problem(e.to_string()))?;
        let text = client.request_text(request).await.map_err(|e| problem(e.to_string()))?;
        let mut all = BTreeMap::new();
        for line in text.lines().filter_map(|line| line.strip_prefix(COUNTER)) {
            let (kind, count) = parse(line).ok_or_else(|| problem(format!("unexpected: {line}")))?;
            *all.entry(kind).or_default() += count;
        }
        Ok(Self(all))
    }

    /// Returns the requests since `before`, after waiting until those answered by now are counted.
    pub(crate) async fn since(before: &Self, client: &Client) -> Result<Self, String> {
        tokio::time::sleep(MOMENT).await;
        let now = Self::now(client).await?;
        let difference = |(kind, count): (Kind, u64)| {
            let count = count - before.0.get(&kind).copied().unwrap_or_default();
            (count > 0).then_some((kind, count))
        };
        Ok(Self(now.0.into_iter().filter_map(difference).collect()))
    }

    /// Counts the writes of accounts.
    pub(crate) fn account_writes(&self) -> AccountWrites {
        let count = |wanted: &dyn Fn(u16) -> bool| {
            self.0
                .iter()
                .filter(|(kind, _)| kind.is_write() && kind.resource == "kubesvcaccounts")
                .filter(|(kind, _)| wanted(kind.code))
                .map(|(_, count)| count)
                .sum()
        };
        AccountWrites {
            done: count(&|code| (200..300).contains(&code)),
            conflicts: count(&|code| code == 409),
            refused: count(&|code| code >= 300 && code != 409),
        }
    }

    /// Counts the writes of other kubesvc-related objects: Events and KubesvcAgents.
    pub(crate) fn other_writes(&self) -> u64 {
        let others = ["events", "kubesvcagents"];
        let counts =
            self.0.iter().filter(|(kind, _)| kind.is_write() && others.contains(&kind.resource.as_str()));
        counts.map(|(_, count)| count).sum()
    }

    /// Counts the writes of KubesvcAgents.
    pub(crate) fn agent_writes(&self) -> u64 {
        let agents = self.0.iter().filter(|(kind, _)| kind.is_write() && kind.resource == "kubesvcagents");
        agents.map(|(_, count)| count).sum()
    }

    /// Lists the writes by kind, separated by semicolons, to diagnose unexpected ones.
    pub(crate) fn shown(&self) -> String {
        let lines = self.0.iter().filter(|(kind, _)| kind.is_write());
        let line = |(kind, count): (&Kind, &u64)| {
            let Kind { verb, group, resource, subresource, code } = kind;
            format!("{count} × {verb} {resource}.{group} {subresource}: {code}")
        };
        lines.map(line).collect::<Vec<_>>().join("; ")
    }
}

impl Kind {
    fn is_write(&self) -> bool {
        ["POST", "PUT", "PATCH", "APPLY", "DELETE", "DELETECOLLECTION"].contains(&self.verb.as_str())
    }
}

/// Parses a line of the counter without its name: `label="value",…} 12`.
fn parse(line: &str) -> Option<(Kind, u64)> {
    let (labels, count) = line.rsplit_once("} ")?;
    let label = |name: &str| {
        let value = labels.split("\",").find_map(|pair| pair.strip_prefix(name)?.strip_prefix("=\""));
        value.map(|value| value.trim_end_matches('"').to_owned())
    };
    let kind = Kind {
        verb: label("verb")?,
        group: label("group")?,
        resource: label("resource")?,
        subresource: label("subresource")?,
        // 0: the client did not wait for the answer.
        code: label("code")?.parse().unwrap_or_default(),
    };
    let count = count.trim().parse::<f64>().ok()?;
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a count")]
    Some((kind, count as u64))
}
