//! The writes that an API server received, from its audit log.

use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::Path;

use serde_json::Value;

/// A write and its answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuditedWrite {
    /// `create`, `update`, `patch`, `delete` or `deletecollection`.
    pub verb: String,
    /// API group; empty for the core group.
    pub group: String,
    /// Plural resource name.
    pub resource: String,
    /// Subresource, such as `status`; usually empty.
    pub subresource: String,
    /// Namespace; empty for cluster-scoped objects.
    pub namespace: String,
    /// Name; empty for a create with a generated name and for a deletecollection.
    pub name: String,
    /// HTTP status of the answer.
    pub code: u16,
    /// User that sent the request.
    pub user: String,
    /// User agent of the request.
    pub user_agent: String,
    /// Path and query, including field manager and dry run.
    pub uri: String,
    /// Time at which the API server received it, in RFC 3339 with microseconds.
    pub received: String,
    /// Id of the request, as its sender gave it in `Audit-ID`.
    pub audit_id: String,
}

/// Records only writes, except those of the API server itself and reviews (`SelfSubjectAccessReview` and so on),
/// which are queries in the form of a create.
pub const POLICY: &str = r#"apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived, ResponseStarted]
rules:
- level: None
  users: ["system:apiserver"]
- level: None
  resources: [{group: authentication.k8s.io}, {group: authorization.k8s.io}]
- level: Metadata
  verbs: [create, update, patch, delete, deletecollection]
- level: None
"#;

/// Length of a log in bytes; 0 if there is none.
pub fn length(log: &Path) -> Result<u64, String> {
    match std::fs::metadata(log) {
        Ok(file) => Ok(file.len()),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(0),
        Err(e) => Err(format!("audit log {}: {e}", log.display())),
    }
}

/// Reads the complete lines of a log that begin at this byte or later.
pub fn read(log: &Path, from: u64) -> Result<Vec<AuditedWrite>, String> {
    let problem = |e: String| format!("audit log {}: {e}", log.display());
    if length(log)? <= from {
        return Ok(Vec::new());
    }
    let mut text = String::new();
    let read = File::open(log).and_then(|mut file| {
        file.seek(SeekFrom::Start(from))?;
        file.read_to_string(&mut text)
    });
    read.map_err(|e| problem(e.to_string()))?;
    text.split_inclusive('\n')
        .filter(|line| line.ends_with('\n'))
        .map(|line| serde_json::from_str(line).map(|event| parse(&event)).map_err(|e| problem(e.to_string())))
        .collect()
}

fn parse(event: &Value) -> AuditedWrite {
    let text = |pointer: &str| event.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned();
    AuditedWrite {
        verb: text("/verb"),
        group: text("/objectRef/apiGroup"),
        resource: text("/objectRef/resource"),
        subresource: text("/objectRef/subresource"),
        namespace: text("/objectRef/namespace"),
        name: text("/objectRef/name"),
        code: event
            .pointer("/responseStatus/code")
            .and_then(Value::as_u64)
            .and_then(|code| u16::try_from(code).ok())
            .unwrap_or_default(),
        user: text("/user/username"),
        user_agent: text("/userAgent"),
        uri: text("/requestURI"),
        received: text("/requestReceivedTimestamp"),
        audit_id: text("/auditID"),
    }
}
