//! The `KubesvcIdentity` object: which credential identifies an agent, and what an agent with it may do. People or Git write
//! the spec.
#![expect(clippy::duplicated_attributes, reason = "each printer column has a name, a type and a path")]

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Agents with one kind of credential, and what they may do. Takes effect in the operator's namespace.
#[derive(CustomResource, KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[kube(
    group = "kubesvc.io",
    version = "v1alpha1",
    kind = "KubesvcIdentity",
    plural = "kubesvcidentities",
    shortname = "ksi",
    category = "spinnaker",
    namespaced,
    status = "KubesvcIdentityStatus",
    derive = "PartialEq",
    doc = "Which credential identifies an agent, and what an agent with it may do. Takes effect in the operator's namespace only, while the operator's `kubesvc.grpc.auth.mode` is `bound` (or `log`, which only counts).",
    printcolumn(name = "Zones", type_ = "string", json_path = ".spec.allow.zones"),
    printcolumn(
        name = "Ready",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Ready\")].status"
    ),
    printcolumn(name = "Suspended", type_ = "boolean", json_path = ".spec.suspended"),
    printcolumn(
        name = "Ambiguous",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Ambiguous\")].status"
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(
        name = "Message",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Ready\")].message",
        priority = "1"
    )
)]
#[serde(rename_all = "camelCase")]
pub struct KubesvcIdentitySpec {
    /// AgentCredential that identifies an agent: exactly one of its forms. A credential that matches two objects is refused.
    #[serde(rename = "match")]
    pub credential: CredentialMatch,
    /// What an agent with this credential may do.
    pub allow: Allowance,
    /// Refuses the agents, and cuts those that are connected, until it is set back.
    #[serde(default)]
    pub suspended: bool,
    /// Credentials that are refused although they match.
    #[serde(default)]
    pub revoked: Revocations,
}

/// A credential. Values are exact; `*` and `{name}` stand for one or more characters other than `/`, `:` and `,`.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("[has(self.uri), has(self.subject), has(self.fingerprints), has(self.serviceAccount), has(self.jwt), has(self.tokenSecret)].filter(x, x).size() == 1")
        .message("exactly one of uri, subject, fingerprints, serviceAccount, jwt and tokenSecret is needed"),
    validation = Rule::new("!has(self.issuer) || has(self.uri) || has(self.subject) || has(self.fingerprints)")
        .message("issuer belongs to uri, subject or fingerprints, which match certificates")
)]
pub struct CredentialMatch {
    /// URI in the subjectAltName of the agent's certificate, such as `spiffe://acme/agent/{zone}`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 2048))]
    pub uri: Option<String>,
    /// Attributes of the subject of the agent's certificate, such as `CN` and `O`, or an OID. Each has to be there once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 16))]
    pub subject: Option<BTreeMap<String, String>>,
    /// SHA-256 digests of certificates, in hexadecimal, with or without colons.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 100), inner(length(min = 64, max = 95)))]
    pub fingerprints: Option<Vec<String>>,
    /// Subject of the authority that signed the certificate, as RFC 4514 writes it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 4096))]
    pub issuer: Option<String>,
    /// Service account of the operator's cluster whose token the agent shows (`kubesvc.grpc.auth.bearer.tokenReview`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service_account: Option<ServiceAccountMatch>,
    /// Token of an issuer in `kubesvc.grpc.auth.bearer.issuers`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub jwt: Option<JwtMatch>,
    /// Secret of the object's namespace with a static token of at least 32 bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token_secret: Option<TokenSecret>,
}

/// A service account.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct ServiceAccountMatch {
    /// Namespace of the service account.
    #[schemars(length(min = 1, max = 253))]
    pub namespace: String,
    /// Name of the service account.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
}

/// Claims of a token.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct JwtMatch {
    /// Issuer of the token (`iss`), exactly as the setting names it.
    #[schemars(length(min = 1, max = 2048))]
    pub issuer: String,
    /// Subject of the token (`sub`), such as `system:serviceaccount:kubesvc:agent`.
    #[schemars(length(min = 1, max = 2048))]
    pub subject: String,
    /// Further claims that the token must have: texts, or lists that contain the text.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(length(max = 16))]
    pub claims: BTreeMap<String, String>,
}

/// An entry of a Secret.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[serde(rename_all = "camelCase")]
pub struct TokenSecret {
    /// Name of the Secret.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
    /// Key in the Secret's data.
    #[schemars(length(min = 1, max = 253))]
    pub key: String,
}

/// What an agent may do. `*` stands for any characters; `{name}` for what it stood for in `match`.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Allowance {
    /// Zones that the agent may claim.
    #[schemars(length(min = 1, max = 256), inner(length(min = 1, max = 255)))]
    pub zones: Vec<String>,
    /// Agent ids that the agent may claim. Default: all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 256), inner(length(min = 1, max = 255)))]
    pub agent_ids: Vec<String>,
    /// Accounts that the agent may hold, as NAMESPACE/NAME of their objects. Default: all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 1000), inner(length(min = 3, max = 507), regex(pattern = "^[^/]+/[^/]+$")))]
    pub accounts: Vec<String>,
    /// Whether accounts of the agent's own file are taken.
    #[serde(default = "enabled")]
    pub static_accounts: bool,
    /// Whether the agent may offer to take accounts that name no zone.
    #[serde(default)]
    pub offers: bool,
}

fn enabled() -> bool {
    true
}

impl Default for Allowance {
    fn default() -> Self {
        Self {
            zones: Vec::new(),
            agent_ids: Vec::new(),
            accounts: Vec::new(),
            static_accounts: true,
            offers: false,
        }
    }
}

/// Credentials that are refused although they match.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase", default)]
pub struct Revocations {
    /// SHA-256 digests of certificates, in hexadecimal, with or without colons.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 1000), inner(length(min = 64, max = 95)))]
    pub fingerprints: Vec<String>,
    /// Serial numbers of certificates, in hexadecimal, with or without colons.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 1000), inner(length(min = 1, max = 64)))]
    pub serials: Vec<String>,
    /// Ids of tokens (`jti`).
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 1000), inner(length(min = 1, max = 255)))]
    pub token_ids: Vec<String>,
    /// Refuses credentials that were issued before this time, and tokens that do not say when they were.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub issued_before: Option<Time>,
}

/// Written by the operator.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase", default)]
pub struct KubesvcIdentityStatus {
    /// Generation of the spec that the conditions are about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Ready is False while the object identifies nobody, as its message says. Ambiguous is True after an agent showed a credential that matches another object too.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
}
