//! Programs that log in for the owner's kubeconfigs, following client-go's rules for `ExecCredential`.
//!
//! A program must be listed in `kubernetes.execCommands`. It is found by its bare name in the agent's PATH,
//! and runs without a shell and without input, in a process group that is killed at the end. The credential
//! that it prints is cached until it expires or until an API server answers 401. Its standard output is never
//! logged or revealed. Its standard error goes to the agent's log, as client-go sends it to kubectl's own
//! standard error.

use std::collections::HashMap;
use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use jiff::Timestamp;
use moka::sync::Cache;
use secrecy::zeroize::Zeroizing;
use serde::Deserialize;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tokio::process::Command;
use tokio::sync::Mutex;

use crate::program_run::{self, RunError};
use crate::wire_failure::before_send;
use kubesvc_core::failure::truncate;
use kubesvc_core::wire::common::Failure;
use kubesvc_core::wire::common::failure::Class;
use kubesvc_runtime::telemetry::errors::chain;

/// Maximum size of a program's standard output, in bytes.
const MAX_OUTPUT_BYTES: u64 = 256 * 1024;
/// Maximum number of cached credentials.
const MAX_CACHED_CREDENTIALS: u64 = 1000;
/// API group of `ExecCredential`.
const API_GROUP: &str = "client.authentication.k8s.io/";

/// Cached credential of one program, while it is valid. Concurrent users wait for a single run.
type CredentialSlot = Arc<Mutex<Option<Arc<ExecCredential>>>>;

/// The allowed programs, and the credentials they have printed.
#[derive(Clone)]
pub struct Programs {
    commands: Arc<[String]>,
    path: Option<OsString>,
    kept: Cache<[u8; 32], CredentialSlot>,
}

impl Programs {
    /// Allows the programs with these names in the folders of a PATH.
    pub fn new(commands: Vec<String>, path: Option<OsString>) -> Self {
        Self { commands: commands.into(), path, kept: Cache::new(MAX_CACHED_CREDENTIALS) }
    }
}

impl Default for Programs {
    fn default() -> Self {
        Self::new(Vec::new(), None)
    }
}

impl fmt::Debug for Programs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Programs").field("commands", &self.commands).finish_non_exhaustive()
    }
}

/// The `exec` section of a kubeconfig user. Deliberately without `Debug`: the environment may contain
/// secrets.
pub(super) struct Exec {
    command: String,
    args: Vec<String>,
    env: Vec<(String, String)>,
    /// `client.authentication.k8s.io/v1` or `…/v1beta1`.
    api_version: String,
    /// The cluster as passed to the program, if the kubeconfig asks for that.
    cluster: Option<Value>,
}

/// A credential that a program printed. Deliberately without `Debug`.
pub(super) struct ExecCredential {
    pub(super) token: Option<Zeroizing<String>>,
    /// Certificate and key, PEM.
    pub(super) pair: Option<(String, Zeroizing<String>)>,
    expires: Option<Timestamp>,
}

/// A program's credential, and whether the program was run for it just now.
#[derive(Clone)]
pub(super) struct Login {
    key: [u8; 32],
    pub(super) credential: Arc<ExecCredential>,
    pub(super) fresh: bool,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ExecDocument {
    command: Option<String>,
    args: Option<Vec<String>>,
    env: Option<Vec<ExecVariable>>,
    api_version: Option<String>,
    provide_cluster_info: Option<bool>,
    interactive_mode: Option<String>,
}

#[derive(Deserialize)]
struct ExecVariable {
    name: String,
    #[serde(default)]
    value: String,
}

impl Exec {
    /// Parses the `exec` section of a user and, for programs that receive it, the cluster; both as YAML.
    ///
    /// # Errors
    /// The section is invalid. The message contains no value from it.
    pub(super) fn read(exec: &str, cluster: &str) -> Result<Self, Failure> {
        let refuse = |problem: &str| {
            Err(before_send(Class::BadKubeconfig, format!("exec of the chosen user {problem}")))
        };
        let Ok(written) = serde_saphyr::from_str::<ExecDocument>(exec) else {
            return refuse("is none: it needs command and apiVersion, and args and env as lists");
        };
        let Some(command) = written.command.filter(|command| !command.is_empty()) else {
            return refuse("names no command");
        };
        let api_version = written.api_version.unwrap_or_default();
        let is_v1 = match api_version.strip_prefix(API_GROUP) {
            Some("v1") => true,
            Some("v1beta1") => false,
            _ => {
                return refuse(
                    "has no apiVersion that is known; use client.authentication.k8s.io/v1 or …/v1beta1",
                );
            }
        };
        match written.interactive_mode.as_deref() {
            Some("Never" | "IfAvailable") => {}
            None if !is_v1 => {}
            Some("Always") => return refuse("needs a person at a terminal (interactiveMode: Always)"),
            _ => return refuse("needs interactiveMode: Never or IfAvailable"),
        }
        let env: Vec<_> =
            written.env.unwrap_or_default().into_iter().map(|one| (one.name, one.value)).collect();
        let args = written.args.unwrap_or_default();
        let is_name = |name: &str| !name.is_empty() && !name.contains(['=', '\0']);
        if !env.iter().all(|(name, value)| is_name(name) && !value.contains('\0')) {
            return refuse("has a variable in env whose name is empty or holds =, or that holds a NUL");
        }
        if args.iter().any(|arg| arg.contains('\0')) {
            return refuse("has an argument that holds a NUL");
        }
        let cluster = match written.provide_cluster_info {
            Some(true) => Some(cluster_info(cluster)),
            _ => None,
        };
        Ok(Self { command, args, env, api_version, cluster })
    }

    /// The value of `KUBERNETES_EXEC_INFO`.
    fn info(&self) -> String {
        let mut spec = json!({"interactive": false});
        if let Some(cluster) = &self.cluster {
            spec["cluster"] = cluster.clone();
        }
        json!({"kind": "ExecCredential", "apiVersion": self.api_version, "spec": spec}).to_string()
    }

    fn key(&self) -> [u8; 32] {
        let env: Vec<_> = self.env.iter().map(|(name, value)| [name, value]).collect();
        Sha256::digest(json!([self.command, self.args, env, self.info()]).to_string()).into()
    }
}

/// A kubeconfig's cluster in the form of `ExecCredential`.
fn cluster_info(cluster: &str) -> Value {
    const PASSED_VARIABLES: [&str; 6] = [
        "server",
        "tls-server-name",
        "insecure-skip-tls-verify",
        "certificate-authority-data",
        "proxy-url",
        "disable-compression",
    ];
    let written: Value = serde_saphyr::from_str(cluster).unwrap_or_default();
    let mut cluster_info: serde_json::Map<String, Value> = PASSED_VARIABLES
        .iter()
        .filter_map(|key| Some(((*key).to_owned(), written.get(key).filter(|one| !one.is_null())?.clone())))
        .collect();
    let extensions = written.get("extensions").and_then(Value::as_array);
    let own =
        extensions.and_then(|all| all.iter().find(|one| one["name"] == "client.authentication.k8s.io/exec"));
    if let Some(config) = own.and_then(|one| one.get("extension")) {
        cluster_info.insert("config".to_owned(), config.clone());
    }
    Value::Object(cluster_info)
}

impl ExecCredential {
    /// Parses the output of a program.
    fn read(printed: &[u8], api_version: &str) -> Result<Self, &'static str> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct PrintedCredential {
            kind: String,
            api_version: String,
            status: Option<CredentialStatus>,
        }
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct CredentialStatus {
            #[serde(default)]
            token: Option<String>,
            #[serde(default)]
            client_certificate_data: Option<String>,
            #[serde(default)]
            client_key_data: Option<String>,
            #[serde(default)]
            expiration_timestamp: Option<Timestamp>,
        }
        let Ok(printed) = serde_json::from_slice::<PrintedCredential>(printed) else {
            return Err("has printed no ExecCredential");
        };
        if printed.kind != "ExecCredential" || printed.api_version != api_version {
            return Err("has printed another kind or apiVersion than the kubeconfig names");
        }
        let Some(status) = printed.status else {
            return Err("has printed an ExecCredential without a status");
        };
        let set = |text: Option<String>| text.filter(|text| !text.is_empty());
        let token = set(status.token).map(Zeroizing::new);
        let pair = match (set(status.client_certificate_data), set(status.client_key_data)) {
            (Some(certificate), Some(key)) => Some((certificate, Zeroizing::new(key))),
            (None, None) => None,
            _ => return Err("has printed only one of certificate and key"),
        };
        if token.is_none() && pair.is_none() {
            return Err("has printed neither a token nor certificate and key");
        }
        Ok(Self { token, pair, expires: status.expiration_timestamp })
    }

    fn is_good(&self, now: Timestamp) -> bool {
        self.expires.is_none_or(|expires| now <= expires)
    }
}

impl Programs {
    /// Checks that a program may be run and exists, without running it.
    pub(super) fn knows(&self, exec: &Exec) -> Result<(), Failure> {
        self.find(exec).map(drop)
    }

    /// Returns the credential of a program: the cached one, or that of a new run. Concurrent callers for one
    /// program wait for a single run.
    pub(super) async fn log_in(&self, exec: &Exec) -> Result<Login, Failure> {
        let program = self.find(exec)?;
        let key = exec.key();
        let slot = self.kept.get_with(key, Arc::default);
        let mut kept = slot.lock().await;
        if let Some(credential) = kept.as_ref().filter(|credential| credential.is_good(Timestamp::now())) {
            return Ok(Login { key, credential: Arc::clone(credential), fresh: false });
        }
        *kept = None;
        let credential = Arc::new(run(program, exec).await?);
        *kept = Some(Arc::clone(&credential));
        Ok(Login { key, credential, fresh: true })
    }

    /// Removes a credential that an API server has rejected from the cache.
    pub(super) async fn forget(&self, login: &Login) {
        let Some(slot) = self.kept.get(&login.key) else { return };
        let mut kept = slot.lock().await;
        if kept.as_ref().is_some_and(|kept| Arc::ptr_eq(kept, &login.credential)) {
            *kept = None;
        }
    }

    fn find(&self, exec: &Exec) -> Result<PathBuf, Failure> {
        let mut shown = exec.command.escape_debug().to_string();
        truncate(&mut shown, 64);
        if exec.command.contains('/') || !self.commands.contains(&exec.command) {
            let listed = if self.commands.is_empty() { "none".to_owned() } else { self.commands.join(", ") };
            let message = format!(
                "exec of the chosen user runs the command {shown}, which kubernetes.execCommands of the agent does not list \
                 (it lists {listed}); a command is a bare name, found in the agent's PATH"
            );
            return Err(before_send(Class::ExecForbidden, message));
        }
        program_run::in_path(&exec.command, self.path.as_deref()).ok_or_else(|| {
            let message = format!(
                "the program {shown}, with which the kubeconfig logs in, is not in the agent's PATH; install it beside the agent"
            );
            Failure { retryable: true, ..before_send(Class::BadReference, message) }
        })
    }
}

async fn run(program: PathBuf, exec: &Exec) -> Result<ExecCredential, Failure> {
    let name = &exec.command;
    let env: HashMap<_, _> = exec.env.iter().cloned().collect();
    let mut command = Command::new(program);
    command.args(&exec.args).envs(env).env("KUBERNETES_EXEC_INFO", exec.info());
    let failed = |class, what: &str| before_send(class, format!("the program {name} {what}"));
    let ended = program_run::run(&mut command, MAX_OUTPUT_BYTES).await;
    let output = ended.and_then(|ended| {
        log(name, &ended.errors);
        ended.output()
    });
    let output = output.map_err(|error| {
        let text = chain(&error);
        match error {
            RunError::Start(_) => failed(Class::BadReference, &text),
            RunError::Late => failed(Class::Timeout, &text),
            RunError::TooLong(_) => failed(Class::BadKubeconfig, &text),
            RunError::Wait(_) => failed(Class::Internal, &text),
            RunError::ExitCode(_) | RunError::Killed => {
                failed(Class::Unreachable, &format!("{text}; the agent's log has what it says"))
            }
        }
    })?;
    ExecCredential::read(&output, &exec.api_version).map_err(|problem| failed(Class::BadKubeconfig, problem))
}

fn log(name: &str, errors: &[u8]) {
    let text: String = String::from_utf8_lossy(errors).split(char::is_control).collect::<Vec<_>>().join(" ");
    if !text.trim().is_empty() {
        tracing::warn!(
            program = name,
            "the exec credential program wrote to standard error: {}",
            text.trim()
        );
    }
}

#[cfg(test)]
mod tests;
