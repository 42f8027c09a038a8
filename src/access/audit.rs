//! Audit lines: who did what to which account, as one JSON object on a line of its own.
//!
//! Lines go to standard output or a file, whatever the level and format of the log is, with the log's first fields, so that one
//! parser reads both. They hold no header, query, body or token. A text is cut at 512 characters.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fs::{OpenOptions, Permissions};
use std::io::Write;
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use http::Method;
use nix::fcntl::OFlag;
use parking_lot::Mutex;
use serde::{Serialize, Serializer};

use super::Principal;
use kubesvc_core::requests::target::RequestPath;
use kubesvc_runtime::listen::connection_limits::ClientAddress;
use kubesvc_runtime::shutdown::spawn_named;

/// Maximum length of a text, in characters.
const MAX_TEXT: usize = 512;
/// Maximum number of groups in a line.
const MAX_GROUPS: usize = 16;
/// Minimum interval between two lines about callers of one address that are not authenticated, for one reason.
const STRANGER_INTERVAL: Duration = Duration::from_secs(1);
/// Maximum number of addresses and reasons whose lines are counted apart.
const MAX_STRANGERS: usize = 1024;

/// Mode of the file with audit lines.
const OWNER_ALONE: u32 = 0o600;
/// It is no link, and nothing that is waited for.
const FILE_FLAGS: OFlag = OFlag::O_NOFOLLOW.union(OFlag::O_NONBLOCK);

/// What happened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum AuditEvent {
    /// A write has ended.
    #[default]
    Write,
    /// A watch, a followed log or an upgraded connection has begun.
    StreamBegin,
    /// It has ended.
    StreamEnd,
    /// A call was refused.
    Refusal,
    /// A caller could not be identified.
    LoginFailure,
}

/// One line. What is `None` or empty is left out.
#[derive(Clone, Copy, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct AuditLine<'a> {
    #[serde(skip)]
    pub event: AuditEvent,
    /// Id of the request; the account's API server has it as Audit-ID.
    #[serde(skip_serializing_if = "str::is_empty", serialize_with = "cut")]
    pub request_id: &'a str,
    /// Id of a call of REST; its answer has it as Audit-ID.
    #[serde(skip_serializing_if = "str::is_empty", serialize_with = "cut")]
    pub audit_id: &'a str,
    /// Id of the operation that it belongs to.
    #[serde(skip_serializing_if = "str::is_empty", serialize_with = "cut")]
    pub operation_id: &'a str,
    #[serde(flatten, serialize_with = "write_principal")]
    pub principal: Option<&'a Principal>,
    /// The user for whom a caller acts that may say so: `X-SPINNAKER-USER`.
    #[serde(skip_serializing_if = "str::is_empty", serialize_with = "cut")]
    pub user: &'a str,
    /// The same of a caller whose word does not count.
    #[serde(skip_serializing_if = "str::is_empty", serialize_with = "cut")]
    pub claimed: &'a str,
    /// Address of a caller that is not authenticated.
    #[serde(skip_serializing_if = "str::is_empty", serialize_with = "cut")]
    pub address: &'a str,
    /// How many such refusals the line stands for; `None`: one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub count: Option<u64>,
    #[serde(skip_serializing_if = "str::is_empty", serialize_with = "cut")]
    pub account: &'a str,
    #[serde(skip_serializing_if = "str::is_empty", serialize_with = "cut")]
    pub uid: &'a str,
    /// The agent that was asked.
    #[serde(skip_serializing_if = "str::is_empty", serialize_with = "cut")]
    pub agent: &'a str,
    /// Verb of Kubernetes, or of an operation.
    #[serde(skip_serializing_if = "str::is_empty", serialize_with = "cut")]
    pub verb: &'a str,
    /// Kind of the object: plural and group, with its subresource.
    #[serde(skip_serializing_if = "str::is_empty", serialize_with = "cut")]
    pub resource: &'a str,
    /// Namespace of the object.
    #[serde(skip_serializing_if = "str::is_empty", serialize_with = "cut")]
    pub namespace: &'a str,
    /// Name of the object.
    #[serde(skip_serializing_if = "str::is_empty", serialize_with = "cut")]
    pub name: &'a str,
    /// Status that the caller got.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub code: Option<u16>,
    /// Bytes of the answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
    /// Time from the call to its end.
    #[serde(rename = "ms", skip_serializing_if = "Option::is_none", serialize_with = "write_milliseconds")]
    pub duration: Option<Duration>,
    /// Why it was refused, or how it ended.
    #[serde(skip_serializing_if = "str::is_empty", serialize_with = "cut")]
    pub reason: &'a str,
}

impl<'a> AuditLine<'a> {
    /// A line with nothing but what happened in which request.
    pub fn new(event: AuditEvent, request_id: &'a str) -> Self {
        Self { event, request_id, ..Self::default() }
    }
}

/// The line as it is written.
#[derive(Serialize)]
struct WrittenLine<'a> {
    timestamp: String,
    level: &'static str,
    target: &'static str,
    message: AuditEvent,
    program: &'static str,
    #[serde(flatten)]
    line: &'a AuditLine<'a>,
}

/// The fields of a principal as they are written.
#[derive(Serialize)]
struct WrittenPrincipal<'a> {
    #[serde(skip_serializing_if = "str::is_empty", serialize_with = "cut")]
    principal: &'a str,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    groups: Vec<&'a str>,
    via: &'static str,
}

fn write_principal<S: Serializer>(principal: &Option<&Principal>, serializer: S) -> Result<S::Ok, S::Error> {
    let written = principal.map(|principal| WrittenPrincipal {
        principal: &principal.name,
        groups: principal.groups.iter().take(MAX_GROUPS).map(|group| shortened(group)).collect(),
        via: principal.via.as_str(),
    });
    written.serialize(serializer)
}

fn write_milliseconds<S: Serializer>(duration: &Option<Duration>, serializer: S) -> Result<S::Ok, S::Error> {
    duration.map(|duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)).serialize(serializer)
}

fn cut<S: Serializer>(text: &str, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(shortened(text))
}

fn shortened(text: &str) -> &str {
    text.char_indices().nth(MAX_TEXT).map_or(text, |(end, _)| &text[..end])
}

/// What lines about callers that are not authenticated are counted by.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct StrangerRefusal {
    /// `None`: callers of several addresses.
    address: Option<ClientAddress>,
    code: Option<u16>,
    reason: String,
}

impl StrangerRefusal {
    fn address_text(&self) -> String {
        self.address.map(|address| address.to_string()).unwrap_or_default()
    }
}

/// Refusals of which a line was written within the last second, with the number of those since. Addresses beyond
/// [`MAX_STRANGERS`] share one entry per code.
#[derive(Debug, Default)]
struct StrangerLines(HashMap<StrangerRefusal, u64>);

impl StrangerLines {
    /// Counts a refusal. Returns it as it is counted if its line is to be written now.
    fn count(&mut self, refusal: StrangerRefusal) -> Option<StrangerRefusal> {
        let is_known = self.0.contains_key(&refusal);
        let refusal = if is_known || self.0.len() < MAX_STRANGERS {
            refusal
        } else {
            StrangerRefusal { address: None, reason: String::new(), ..refusal }
        };
        match self.0.entry(refusal) {
            Entry::Occupied(mut counted) => {
                *counted.get_mut() += 1;
                None
            }
            Entry::Vacant(free) => {
                let refusal = free.key().clone();
                free.insert(0);
                Some(refusal)
            }
        }
    }

    /// Takes the number of refusals since the last line; `None`: there are none, and the entry is gone.
    fn take(&mut self, refusal: &StrangerRefusal) -> Option<u64> {
        let count = self.0.get_mut(refusal).map(std::mem::take).filter(|count| *count > 0);
        if count.is_none() {
            self.0.remove(refusal);
        }
        count
    }
}

/// Writes audit lines. Clones write to the same place.
#[derive(Clone)]
pub struct AuditLog {
    writer: Arc<Mutex<dyn Write + Send>>,
    strangers: Arc<Mutex<StrangerLines>>,
}

impl AuditLog {
    /// The log on standard output.
    pub fn to_stdout() -> Self {
        Self::to(std::io::stdout())
    }

    /// The log at the end of a file, which is made if it does not exist. Nobody but its owner may read it.
    ///
    /// # Errors
    /// It cannot be opened, or is a link.
    pub fn to_file(path: &Path) -> std::io::Result<Self> {
        let mut options = OpenOptions::new();
        options.create(true).append(true).mode(OWNER_ALONE).custom_flags(FILE_FLAGS.bits());
        let file = options.open(path)?;
        if !file.metadata()?.is_file() {
            return Err(std::io::Error::other("it is no file"));
        }
        // One that existed keeps its mode otherwise.
        file.set_permissions(Permissions::from_mode(OWNER_ALONE))?;
        Ok(Self::to(file))
    }

    /// A log into this writer.
    pub fn to(writer: impl Write + Send + 'static) -> Self {
        Self { writer: Arc::new(Mutex::new(writer)), strangers: Arc::default() }
    }

    /// Writes that a caller was refused that is not authenticated: the first time at once, then one line a second for its
    /// address and the reason, with their number. Anybody who reaches the port can cause such lines.
    pub fn refuse_stranger(&self, address: Option<ClientAddress>, line: &AuditLine<'_>) {
        let refusal = StrangerRefusal { address, code: line.code, reason: line.reason.to_owned() };
        let event = line.event;
        let Some(refusal) = self.strangers.lock().count(refusal) else { return };
        self.write(&AuditLine { address: &refusal.address_text(), ..*line });
        let log = self.clone();
        let counting = async move {
            loop {
                tokio::time::sleep(STRANGER_INTERVAL).await;
                let Some(count) = log.strangers.lock().take(&refusal) else { return };
                let StrangerRefusal { code, reason, .. } = &refusal;
                let line = AuditLine::new(event, "");
                let address = refusal.address_text();
                log.write(&AuditLine { code: *code, reason, address: &address, count: Some(count), ..line });
            }
        };
        drop(spawn_named("lines about callers that are not authenticated", counting).detach());
    }

    /// Writes a line. One that cannot be written is lost, as a line of the log would be.
    pub fn write(&self, line: &AuditLine<'_>) {
        let written = WrittenLine {
            timestamp: jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%S%.3fZ").to_string(),
            level: "INFO",
            target: "audit",
            message: line.event,
            program: "kubesvc-operator",
            line,
        };
        if let Ok(mut text) = serde_json::to_vec(&written) {
            text.push(b'\n');
            let mut writer = self.writer.lock();
            let _ = writer.write_all(&text).and_then(|()| writer.flush());
        }
    }
}

/// What a request to an account does to what, as the lines about it name that.
#[derive(Clone, Debug)]
pub struct AuditedRequest {
    verb: &'static str,
    resource: String,
    namespace: String,
    name: String,
}

impl AuditedRequest {
    /// The names of a request.
    pub fn of(method: &Method, path: &RequestPath) -> Self {
        Self {
            verb: verb_of(method, path),
            resource: resource_of(path),
            namespace: path.namespace.clone().unwrap_or_default(),
            name: path.name.clone().unwrap_or_default(),
        }
    }

    /// A line about the request, with nothing else.
    pub fn line<'a>(&'a self, event: AuditEvent, request_id: &'a str) -> AuditLine<'a> {
        let Self { verb, resource, namespace, name } = self;
        AuditLine { verb, resource, namespace, name, ..AuditLine::new(event, request_id) }
    }
}

/// The verb that RBAC of the account's cluster has for a request.
fn verb_of(method: &Method, path: &RequestPath) -> &'static str {
    match *method {
        Method::GET | Method::HEAD if path.watches_objects("GET") => "watch",
        Method::GET | Method::HEAD if path.resource.is_some() && path.name.is_none() => "list",
        Method::GET | Method::HEAD => "get",
        Method::POST => "create",
        Method::PUT => "update",
        Method::PATCH => "patch",
        Method::DELETE if path.name.is_none() => "deletecollection",
        Method::DELETE => "delete",
        _ => "",
    }
}

/// What a request is about, as RBAC of the account's cluster has it: `deployments.apps/scale`.
fn resource_of(path: &RequestPath) -> String {
    let Some(resource) = &path.resource else { return String::new() };
    let group = if path.group.is_empty() { String::new() } else { format!(".{}", path.group) };
    let subresource = path.subresource.as_ref().map(|name| format!("/{name}")).unwrap_or_default();
    format!("{resource}{group}{subresource}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(address: &str) -> StrangerRefusal {
        let address = address.parse().ok().map(ClientAddress::of);
        StrangerRefusal { address, code: Some(401), reason: "no token".to_owned() }
    }

    #[test]
    fn addresses_beyond_the_bound_are_counted_together() {
        let mut lines = StrangerLines::default();
        for number in 0..MAX_STRANGERS * 2 {
            let address = std::net::Ipv4Addr::from_bits(u32::try_from(number).expect("a small number"));
            lines.count(refusal(&address.to_string()));
        }
        assert_eq!(lines.0.len(), MAX_STRANGERS + 1);
        let shared = StrangerRefusal { reason: String::new(), ..refusal("") };
        assert_eq!(lines.take(&shared), Some(MAX_STRANGERS as u64 - 1));
        assert_eq!(lines.take(&shared), None);
        assert_eq!(lines.0.len(), MAX_STRANGERS);
    }

    #[tokio::test(start_paused = true)]
    async fn callers_that_are_not_known_have_one_line_a_second_with_their_number() {
        #[derive(Clone, Default)]
        struct Lines(Arc<Mutex<Vec<u8>>>);
        impl Write for Lines {
            fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
                self.0.lock().write(bytes)
            }
            fn flush(&mut self) -> std::io::Result<()> {
                Ok(())
            }
        }
        let lines = Lines::default();
        let log = AuditLog::to(lines.clone());
        let line = AuditLine {
            code: Some(401),
            reason: "no token",
            ..AuditLine::new(AuditEvent::Refusal, "01J00000000000000000000000")
        };
        let address = |text: &str| text.parse().ok().map(ClientAddress::of);
        for _ in 0..1000 {
            log.refuse_stranger(address("192.0.2.1"), &line);
        }
        log.refuse_stranger(address("192.0.2.2"), &line);
        log.refuse_stranger(address("192.0.2.1"), &AuditLine { reason: "another", ..line });
        tokio::time::sleep(STRANGER_INTERVAL * 3).await;
        let text = String::from_utf8(lines.0.lock().clone()).expect("text");
        let written: Vec<serde_json::Value> =
            text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
        let shown = |line: &serde_json::Value| (line["address"].clone(), line["count"].as_u64());
        let shown: Vec<_> = written.iter().map(shown).collect();
        let of = |address: &str, count| (serde_json::Value::from(address), count);
        assert_eq!(
            shown,
            [of("192.0.2.1", None), of("192.0.2.2", None), of("192.0.2.1", None), of("192.0.2.1", Some(999))]
        );
        assert!(log.strangers.lock().0.is_empty(), "nothing is kept of them");
    }

    #[test]
    fn a_file_is_its_owners_alone_and_goes_on_where_it_ended() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("audit.log");
        std::fs::write(&path, "{}\n").expect("written");
        std::fs::set_permissions(&path, Permissions::from_mode(0o644)).expect("changed");
        for id in ["01", "02"] {
            let log = AuditLog::to_file(&path).expect("a file");
            log.write(&AuditLine::new(AuditEvent::Write, id));
        }
        let mode = std::fs::metadata(&path).expect("it is there").permissions().mode();
        assert_eq!(mode & 0o777, OWNER_ALONE);
        let text = std::fs::read_to_string(&path).expect("text");
        assert_eq!(text.lines().count(), 3, "{text}");
        let link = folder.path().join("link");
        std::os::unix::fs::symlink(&path, &link).expect("a link");
        for bad in [link.as_path(), folder.path(), &folder.path().join("no/audit.log")] {
            assert!(AuditLog::to_file(bad).is_err(), "{}", bad.display());
        }
    }

    #[test]
    fn verbs_and_resources_are_those_of_the_clusters_own_rbac() {
        let of = |method: Method, target: &str| {
            let path = RequestPath::read(target.as_bytes()).expect("a path");
            (verb_of(&method, &path), resource_of(&path))
        };
        assert_eq!(of(Method::GET, "/api/v1/pods?watch=1"), ("watch", "pods".to_owned()));
        assert_eq!(of(Method::GET, "/api/v1/pods"), ("list", "pods".to_owned()));
        let pod = "/api/v1/namespaces/ns/pods/web?watch=1";
        assert_eq!(of(Method::GET, pod), ("get", "pods".to_owned()));
        let scale = "/apis/apps/v1/namespaces/ns/deployments/web/scale";
        assert_eq!(of(Method::PATCH, scale), ("patch", "deployments.apps/scale".to_owned()));
        assert_eq!(of(Method::DELETE, "/api/v1/namespaces/a/pods"), ("deletecollection", "pods".to_owned()));
        assert_eq!(of(Method::GET, "/version"), ("get", String::new()));
    }
}
