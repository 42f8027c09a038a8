//! The types a setting may have: what is allowed, how it is read, and how it is said.

use std::fmt;

use super::table::fold;
use super::yaml::{MappingEntry, YamlNode, YamlValue, shown};
use crate::listen::connection_limits::Network;
use kubesvc_core::agent_policy::{MAX_SERVERS, ServerEntry};
use kubesvc_core::cron::CronSchedule;
use kubesvc_core::spec::{CustomResourceTreatment, SpinnakerKind};
use kubesvc_core::wire::ops::CustomResourceDefinition;

/// Maximum length of a role or kind, in characters; the same as in the account's object.
const MAX_ROLE_CHARS: usize = 255;
/// Maximum number of roles or kinds.
const MAX_ROLES: usize = 1000;

/// The type of a setting, with its bounds.
#[derive(Debug, Clone, Copy)]
pub(crate) enum SettingType {
    /// `true` or `false`.
    Flag,
    /// A whole number; `unit` reads after "a whole number", perhaps empty.
    Int { min: i64, max: i64, unit: &'static str },
    /// A number.
    Float { min: f64, max: f64 },
    /// A number of bytes, perhaps with a unit: `4MB`.
    Size { min: u64, max: u64 },
    /// Text on one line, of at most this many characters.
    Text { max: usize },
    /// As [`SettingType::Text`]; empty text counts as not set.
    Optional { max: usize },
    /// Lists of roles under READ and WRITE.
    Permissions,
    /// A list of `{kind, scope}`.
    CustomResourceDefinitions,
    /// A list of `{kubernetesKind, spinnakerKind, …}`.
    CustomResources,
    /// A host name or address to listen on, or `*`.
    Address,
    /// A host name or address to dial, and a port.
    HostPort,
    /// A Kubernetes namespace.
    Namespace,
    /// Where the database is; always secret.
    DatabaseUrl,
    /// Times that repeat, as a cron expression of six fields.
    Cron,
    /// One of these words, in any case.
    Choice(&'static [&'static str]),
    /// As [`SettingType::Choice`]; empty text counts as not set.
    OptionalChoice(&'static [&'static str]),
    /// A list of these, or one text with commas.
    List(ListItem),
    /// As [`SettingType::List`]; an empty list is not the same as none.
    OptionalList(ListItem),
    /// Anything; it is not looked at.
    Any,
}

/// What a list holds.
#[derive(Debug, Clone, Copy)]
pub(crate) enum ListItem {
    /// Text on one line.
    Text,
    /// A Kubernetes namespace.
    Namespace,
    /// A namespace, or `*` for all.
    NamespaceOrAll,
    /// A namespace, `.` for the operator's own, or `*` for all.
    NamespaceOwnOrAll,
    /// An absolute folder.
    Folder,
    /// An address or a network.
    Network,
    /// A host name, perhaps with a port.
    Host,
    /// An origin of web pages.
    Origin,
    /// A server: a host, a suffix or a network, with ports or without.
    Server,
    /// The name of a program, without a folder.
    Command,
    /// A class of requests to clusters.
    RequestClass,
}

/// A setting's value after its type has been checked.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum SettingValue {
    /// Not set, and without a default.
    Nothing,
    Flag(bool),
    Int(i64),
    Float(f64),
    Text(String),
    List(Vec<String>),
    Permissions(RolePermissions),
    CustomResourceDefinitions(Vec<CustomResourceDefinition>),
    CustomResources(Vec<CustomResourceTreatment>),
}

/// What stands where a setting's value cannot be taken, to end the sentence "… is".
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(crate) struct UnfitValue(pub(super) String);

impl SettingType {
    /// Reads a value.
    pub(crate) fn read(self, node: &YamlNode) -> Result<SettingValue, UnfitValue> {
        let parsed = match (&node.value, self) {
            (YamlValue::Null, _) => Some(SettingValue::Nothing),
            (_, Self::Any) => Some(SettingValue::Nothing),
            (_, Self::Permissions) => Some(SettingValue::Permissions(permissions(node)?)),
            (_, Self::CustomResourceDefinitions) => {
                Some(SettingValue::CustomResourceDefinitions(custom_resource_definitions(node)?))
            }
            (_, Self::CustomResources) => Some(SettingValue::CustomResources(custom_resources(node)?)),
            (YamlValue::Text(text), _) => self.parse(text),
            (YamlValue::List(items), Self::List(of) | Self::OptionalList(of)) => {
                let texts = items.iter().map(|item| match &item.value {
                    YamlValue::Text(text) => Ok(text.clone()),
                    _ => Err(UnfitValue(format!("a list with {} in line {}", say(item), item.line))),
                });
                of.list(texts.collect::<Result<_, _>>()?)
            }
            (YamlValue::List(_) | YamlValue::Map(_), _) => None,
        };
        parsed.ok_or_else(|| UnfitValue(say(node)))
    }

    /// Reads a value from an environment variable or a flag, or the text of a YAML scalar.
    pub(crate) fn parse(self, text: &str) -> Option<SettingValue> {
        let trimmed = text.trim();
        match self {
            Self::Flag => match trimmed.to_ascii_lowercase().as_str() {
                "true" | "yes" | "on" | "1" => Some(SettingValue::Flag(true)),
                "false" | "no" | "off" | "0" => Some(SettingValue::Flag(false)),
                _ => None,
            },
            Self::Int { min, max, .. } => {
                trimmed.parse().ok().filter(|n| (min..=max).contains(n)).map(SettingValue::Int)
            }
            Self::Float { min, max } => {
                trimmed.parse().ok().filter(|n| (min..=max).contains(n)).map(SettingValue::Float)
            }
            Self::Size { min, max } => {
                let bytes = data_size(trimmed).filter(|n| (min..=max).contains(n))?;
                i64::try_from(bytes).ok().map(SettingValue::Int)
            }
            Self::Text { max } => one_line(text, max).then(|| SettingValue::Text(text.to_owned())),
            Self::Optional { .. } if trimmed.is_empty() => Some(SettingValue::Nothing),
            Self::Optional { max } => one_line(text, max).then(|| SettingValue::Text(text.to_owned())),
            Self::Permissions | Self::CustomResourceDefinitions | Self::CustomResources => None,
            Self::Address => address(trimmed).then(|| SettingValue::Text(trimmed.to_owned())),
            Self::HostPort => host_and_port(trimmed).then(|| SettingValue::Text(trimmed.to_owned())),
            Self::Namespace => dns_label(trimmed).then(|| SettingValue::Text(trimmed.to_owned())),
            Self::Cron => {
                let schedule = trimmed.parse::<CronSchedule>().ok()?;
                Some(SettingValue::Text(schedule.to_string()))
            }
            Self::DatabaseUrl => {
                let known = ["sqlite://", "mysql://", "mariadb://", "postgres://", "postgresql://"];
                let good = one_line(trimmed, 4096) && known.iter().any(|scheme| trimmed.starts_with(scheme));
                good.then(|| SettingValue::Text(trimmed.to_owned()))
            }
            Self::OptionalChoice(_) if trimmed.is_empty() => Some(SettingValue::Nothing),
            Self::Choice(words) | Self::OptionalChoice(words) => {
                let word = words.iter().find(|w| w.eq_ignore_ascii_case(trimmed))?;
                Some(SettingValue::Text((*word).to_owned()))
            }
            Self::List(of) | Self::OptionalList(of) => {
                of.list(trimmed.split(',').map(|t| t.trim().to_owned()).filter(|t| !t.is_empty()).collect())
            }
            Self::Any => Some(SettingValue::Nothing),
        }
    }
}

impl ListItem {
    fn list(self, items: Vec<String>) -> Option<SettingValue> {
        let is_bounded = matches!(self, Self::Server | Self::Command);
        let fits = !is_bounded || items.len() <= MAX_SERVERS;
        (fits && items.iter().all(|item| self.takes(item))).then_some(SettingValue::List(items))
    }

    fn takes(self, item: &str) -> bool {
        match self {
            Self::Text => one_line(item, 4096),
            Self::Namespace => dns_label(item),
            Self::NamespaceOrAll => item == "*" || dns_label(item),
            Self::NamespaceOwnOrAll => matches!(item, "*" | ".") || dns_label(item),
            Self::Folder => item.starts_with('/') && one_line(item, 4096),
            Self::Network => item.parse::<Network>().is_ok(),
            Self::Host => is_host(item),
            Self::RequestClass => matches!(item, "read" | "write" | "connect"),
            Self::Origin => is_origin(item),
            Self::Server => item.parse::<ServerEntry>().is_ok(),
            Self::Command => one_line(item, 255) && !item.contains('/') && !matches!(item, "." | ".."),
        }
    }
}

fn is_host(text: &str) -> bool {
    let authority = text.parse::<http::uri::Authority>();
    authority.is_ok_and(|one| !one.host().is_empty() && !text.contains(['@', '*']))
}

/// `SCHEME://HOST` or `SCHEME://HOST:PORT`, as a browser says it.
fn is_origin(text: &str) -> bool {
    let host = text.strip_prefix("https://").or_else(|| text.strip_prefix("http://"));
    host.is_some_and(is_host)
}

/// What is allowed, to end the sentence "must be …".
impl fmt::Display for SettingType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Flag => f.write_str("true or false"),
            Self::Int { min, max, unit: "" } => write!(f, "a whole number from {min} to {max}"),
            Self::Int { min, max, unit } => write!(f, "a whole number {unit} from {min} to {max}"),
            Self::Float { min, max } => write!(f, "a number from {min} to {max}"),
            Self::Size { min, max } => {
                write!(f, "a size such as 512KB or 4MB, from {min} to {max} bytes")
            }
            Self::Permissions => f.write_str("lists of roles under READ and WRITE"),
            Self::CustomResourceDefinitions => {
                f.write_str("a list of {kind: Kind.group, scope: Namespaced or Cluster}")
            }
            Self::CustomResources => f.write_str(
                "a list of {kubernetesKind: Kind.group, spinnakerKind, deployPriority, versioned, namespaced}",
            ),
            Self::Text { max } | Self::Optional { max } => {
                write!(f, "text on one line of at most {max} characters")
            }
            Self::Address => f.write_str("an address, a host name, or * for all addresses"),
            Self::HostPort => f.write_str("an address and a port, such as hub.example.com:9091"),
            Self::Namespace => f.write_str("a namespace (at most 63 lower-case letters, digits and hyphens)"),
            Self::DatabaseUrl => {
                f.write_str("an address that begins with sqlite://, mysql:// or postgres://")
            }
            Self::Cron => f.write_str(
                "six fields: second, minute, hour, day of the month, month, day of the week, such as 0 0 0 * * 0",
            ),
            Self::Choice(words) => write!(f, "one of {}", words.join(", ")),
            Self::OptionalChoice(words) => write!(f, "one of {}, or empty", words.join(", ")),
            Self::List(of) | Self::OptionalList(of) => of.fmt(f),
            Self::Any => f.write_str("anything"),
        }
    }
}

/// What is allowed, to end the sentence "must be …".
impl fmt::Display for ListItem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Text => "a list of texts",
            Self::Namespace => "a list of namespaces",
            Self::NamespaceOrAll => "a list of namespaces, or [\"*\"] for all",
            Self::NamespaceOwnOrAll => {
                "a list of namespaces, [\".\"] for the operator's own, or [\"*\"] for all"
            }
            Self::Folder => "a list of absolute folders",
            Self::Network => "a list of addresses and networks, such as 10.0.0.0/8",
            Self::RequestClass => "a list of read, write and connect",
            Self::Host => "a list of host names, each with or without a port",
            Self::Origin => "a list of origins, such as https://deck.example.com (no *)",
            Self::Server => {
                return write!(
                    f,
                    "a list of at most {MAX_SERVERS} hosts, *.suffixes, addresses or CIDRs, each with :PORT, :FROM-TO or neither"
                );
            }
            Self::Command => "a list of names of programs, without folders",
        })
    }
}

/// What stands there, to end the sentence "… is".
pub(crate) fn say(node: &YamlNode) -> String {
    match &node.value {
        YamlValue::Null => "nothing".into(),
        YamlValue::Text(text) => format!("\"{}\"", shown(text)),
        YamlValue::List(items) => format!("a list of {}", items.len()),
        YamlValue::Map(entries) => match entries.first() {
            Some(first) => format!("a group of settings (`{}` …)", shown(&first.key)),
            None => "an empty group of settings".into(),
        },
    }
}

/// A size as Spring's `DataSize` writes it: bytes, or B, KB, MB, GB, TB in steps of 1024.
fn data_size(text: &str) -> Option<u64> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let shift = match unit.trim_start().to_ascii_uppercase().as_str() {
        "" | "B" => 0,
        "KB" => 10,
        "MB" => 20,
        "GB" => 30,
        "TB" => 40,
        _ => return None,
    };
    number.parse::<u64>().ok()?.checked_mul(1 << shift)
}

fn one_line(text: &str, max: usize) -> bool {
    !text.trim().is_empty() && !text.contains(char::is_control) && text.chars().count() <= max
}

fn address(text: &str) -> bool {
    let bare = text.strip_prefix('[').and_then(|t| t.strip_suffix(']')).unwrap_or(text);
    let name = |t: &str| {
        (1..=253).contains(&t.len()) && t.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '-'))
    };
    text == "*" || bare.parse::<std::net::IpAddr>().is_ok() || name(text)
}

fn host_and_port(text: &str) -> bool {
    let authority = text.parse::<http::uri::Authority>();
    authority.is_ok_and(|one| {
        !one.host().is_empty()
            && one.port_u16().is_some_and(|port| port != 0)
            && !text.contains('@')
            && one_line(text, 1024)
    })
}

fn dns_label(text: &str) -> bool {
    (1..=63).contains(&text.len())
        && text.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-')
        && !text.starts_with('-')
        && !text.ends_with('-')
}

/// Roles as written: `007` stays `007`, and blanks are kept.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RolePermissions {
    /// Who may see the account.
    pub read: Vec<String>,
    /// Who may change it.
    pub write: Vec<String>,
}

/// Parses `{READ: [..], WRITE: [..]}`, or a list of such mappings. The error describes what was found.
fn permissions(node: &YamlNode) -> Result<RolePermissions, UnfitValue> {
    let mut found = RolePermissions::default();
    match &node.value {
        YamlValue::Map(entries) => take_permissions(entries, &mut found)?,
        YamlValue::List(items) => {
            for item in items {
                match &item.value {
                    YamlValue::Map(entries) => take_permissions(entries, &mut found)?,
                    _ => return Err(UnfitValue(format!("a list with {} in line {}", say(item), item.line))),
                }
            }
        }
        YamlValue::Null | YamlValue::Text(_) => return Err(UnfitValue(say(node))),
    }
    Ok(found)
}

fn take_permissions(entries: &[MappingEntry], found: &mut RolePermissions) -> Result<(), UnfitValue> {
    let unfit = |what: String| Err(UnfitValue(format!("something with {what}")));
    for MappingEntry { key, line, node } in entries {
        let roles = match fold(key).as_str() {
            "read" => &mut found.read,
            "write" => &mut found.write,
            _ => return unfit(format!("the key \"{}\" in line {line}", shown(key))),
        };
        let items = match &node.value {
            YamlValue::Null => continue,
            YamlValue::List(items) => items,
            _ => return unfit(format!("{} under {} in line {line}", say(node), shown(key))),
        };
        for item in items {
            match &item.value {
                YamlValue::Text(role) if one_line(role, MAX_ROLE_CHARS) && !role.contains("${") => {
                    if !roles.contains(role) {
                        roles.push(role.clone());
                    }
                }
                _ => {
                    let (read, key) = (say(item), shown(key));
                    return unfit(format!("the role {read} under {key} in line {}", item.line));
                }
            }
        }
        if roles.len() > MAX_ROLES {
            return unfit(format!("more than {MAX_ROLES} roles under {}", shown(key)));
        }
    }
    Ok(())
}

/// Parses a list of `{kind, scope}`. The error describes what was found.
fn custom_resource_definitions(node: &YamlNode) -> Result<Vec<CustomResourceDefinition>, UnfitValue> {
    let YamlValue::List(items) = &node.value else { return Err(UnfitValue(say(node))) };
    if items.len() > MAX_ROLES {
        return Err(UnfitValue(say(node)));
    }
    items.iter().map(custom_resource_definition).collect()
}

fn custom_resource_definition(item: &YamlNode) -> Result<CustomResourceDefinition, UnfitValue> {
    let wrong = |what: String, line: usize| Err(UnfitValue(format!("a list with {what} in line {line}")));
    let YamlValue::Map(entries) = &item.value else { return wrong(say(item), item.line) };
    let (mut kind, mut cluster_scoped) = (None, false);
    for MappingEntry { key, line, node } in entries {
        match (fold(key).as_str(), &node.value) {
            ("kind", YamlValue::Text(text)) if one_line(text, MAX_ROLE_CHARS) => {
                kind = Some(text.trim().to_owned());
            }
            ("scope", YamlValue::Null) => {}
            ("scope", YamlValue::Text(text)) if text.trim().eq_ignore_ascii_case("cluster") => {
                cluster_scoped = true;
            }
            ("scope", YamlValue::Text(text)) if text.trim().eq_ignore_ascii_case("namespaced") => {}
            ("kind" | "scope", _) => return wrong(format!("the {} {}", shown(key), say(node)), *line),
            _ => return wrong(format!("the key \"{}\"", shown(key)), *line),
        }
    }
    match kind {
        Some(kind) => Ok(CustomResourceDefinition { kind, cluster_scoped }),
        None => wrong("an entry without a kind".to_owned(), item.line),
    }
}

/// Parses a list of custom resources. The error describes what was found.
fn custom_resources(node: &YamlNode) -> Result<Vec<CustomResourceTreatment>, UnfitValue> {
    let YamlValue::List(items) = &node.value else { return Err(UnfitValue(say(node))) };
    if items.len() > MAX_ROLES {
        return Err(UnfitValue(say(node)));
    }
    items.iter().map(custom_resource).collect()
}

fn custom_resource(item: &YamlNode) -> Result<CustomResourceTreatment, UnfitValue> {
    let wrong = |what: String, line: usize| Err(UnfitValue(format!("a list with {what} in line {line}")));
    let YamlValue::Map(entries) = &item.value else { return wrong(say(item), item.line) };
    let mut treatment = CustomResourceTreatment::default();
    for MappingEntry { key, line, node } in entries {
        let unfit = || wrong(format!("the {} {}", shown(key), say(node)), *line);
        let text = match &node.value {
            YamlValue::Null => continue,
            YamlValue::Text(text) => text.trim(),
            YamlValue::List(_) | YamlValue::Map(_) => return unfit(),
        };
        let flag = SettingType::Flag.parse(text);
        match (fold(key).as_str(), flag) {
            ("kuberneteskind", _) if one_line(text, MAX_ROLE_CHARS) => {
                treatment.kubernetes_kind = text.to_owned();
            }
            ("spinnakerkind", _) => match spinnaker_kind(text) {
                Some(kind) => treatment.spinnaker_kind = Some(kind),
                None => return unfit(),
            },
            ("deploypriority", _) if is_priority(text) => treatment.deploy_priority = Some(text.to_owned()),
            ("versioned", Some(SettingValue::Flag(flag))) => treatment.versioned = Some(flag),
            ("namespaced", Some(SettingValue::Flag(flag))) => treatment.namespaced = Some(flag),
            ("kuberneteskind" | "deploypriority" | "versioned" | "namespaced", _) => return unfit(),
            _ => return wrong(format!("the key \"{}\"", shown(key)), *line),
        }
    }
    if treatment.kubernetes_kind.is_empty() {
        return wrong("an entry without a kubernetesKind".to_owned(), item.line);
    }
    Ok(treatment)
}

/// The class of this name, in any case.
fn spinnaker_kind(text: &str) -> Option<SpinnakerKind> {
    let kind = SPINNAKER_KINDS.iter().find(|(name, _)| name.eq_ignore_ascii_case(text));
    kind.map(|(_, kind)| *kind)
}

/// The classes, as settings name them.
pub(super) const SPINNAKER_KINDS: [(&str, SpinnakerKind); 7] = [
    ("instances", SpinnakerKind::Instances),
    ("configs", SpinnakerKind::Configs),
    ("serverGroups", SpinnakerKind::ServerGroups),
    ("loadBalancers", SpinnakerKind::LoadBalancers),
    ("securityGroups", SpinnakerKind::SecurityGroups),
    ("serverGroupManagers", SpinnakerKind::ServerGroupManagers),
    ("unclassified", SpinnakerKind::Unclassified),
];

/// Digits, as in an account's object.
fn is_priority(text: &str) -> bool {
    (1..=9).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit())
}
