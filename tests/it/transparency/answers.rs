//! Answers as clients that are no kubectl see them: status, headers and body of requests in every form that API servers
//! know.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use http::Request;
use http_body_util::BodyExt as _;
use kube::Client;
use serde::Deserialize;

use super::lines::{Difference, Door, read};
use super::normal;
use super::ways::{Setting, Way};
use kubesvc_testkit::must;

/// File of the requests.
const FILE: &str = "requests";
/// Number of times that a read is made which differs: the API server may have taken in a new kind between its answers.
const MAX_READS: usize = 3;
/// Number of characters of a body that are compared.
const MAX_BODY: usize = 100_000;

/// The file of the requests.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Requests {
    /// Headers that are not compared, and why.
    not_compared: BTreeMap<String, String>,
    requests: Vec<Asked>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Asked {
    /// Method and path.
    ask: String,
    #[serde(default)]
    headers: BTreeMap<String, String>,
    #[serde(default)]
    body: String,
    differs: Option<Difference>,
}

/// Makes each request three ways. Returns how many there are, and what differs without a reason.
pub(super) async fn differences(setting: &Setting) -> (usize, String) {
    let file: Requests = read(FILE);
    let [own, first, second] = &setting.ways;
    let clients = [own.client().await, first.client().await, second.client().await];
    let mut differences = String::new();
    for asked in &file.requests {
        for time in 1..=MAX_READS {
            let (expected, first, second) = tokio::join!(
                answer(&clients[0], own, asked, &file),
                answer(&clients[1], first, asked, &file),
                answer(&clients[2], second, asked, &file)
            );
            let mut shown = String::new();
            for (door, found) in [(Door::Aggregated, first), (Door::Direct, second)] {
                let may_differ = asked.differs.as_ref().is_some_and(|one| one.ways.contains(&door));
                if (found == expected) == may_differ {
                    let Asked { ask, headers, .. } = asked;
                    let _ = writeln!(shown, "{ask} {headers:?}, {door:?}:\n- {expected}\n+ {found}");
                }
            }
            if shown.is_empty() || !asked.ask.starts_with("GET ") || time == MAX_READS {
                differences += &shown;
                break;
            }
        }
    }
    (file.requests.len(), differences)
}

async fn answer(client: &Client, way: &Way, asked: &Asked, file: &Requests) -> String {
    let (method, path) = asked.ask.split_once(' ').expect("a method and a path");
    let mut request = Request::builder().method(method).uri(way.fill(path));
    for (name, value) in &asked.headers {
        request = request.header(name, value);
    }
    let body = kube::client::Body::from(way.fill(&asked.body).into_bytes());
    let request = must(request.body(body).map_err(|e| e.to_string()));
    let response = match client.send(request).await {
        Ok(response) => response,
        Err(error) => return error.to_string(),
    };
    let (head, body) = response.into_parts();
    let headers = head.headers.iter().filter(|(name, _)| !file.not_compared.contains_key(name.as_str()));
    let mut headers: Vec<_> = headers
        .map(|(name, value)| format!("{name}: {}", String::from_utf8_lossy(value.as_bytes())))
        .collect();
    headers.sort();
    let body = match body.collect().await {
        Ok(body) => normal::text(way, &String::from_utf8_lossy(&body.to_bytes())),
        Err(error) => error.to_string(),
    };
    format!("{} {headers:?}\n{}", head.status, body.chars().take(MAX_BODY).collect::<String>())
}
