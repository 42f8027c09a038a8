//! The types a setting may have: what is allowed, how it is read, said, and described to editors.

use std::fmt;
use std::time::Duration;

use kubesvc_core::agent_policy::{MAX_SERVERS, ServerEntry};
use kubesvc_core::cron::CronSchedule;
use kubesvc_core::wire::MAX_TOKEN_BYTES;
use serde_json::{Value, json};

use super::yaml::{YamlNode, YamlValue, shown};
use crate::listen::connection_limits::Network;

/// The type of a setting, with its bounds.
#[derive(Debug, Clone, Copy)]
pub enum SettingType {
    /// `true` or `false`.
    Flag,
    /// A whole number: minimum, maximum, and what is counted.
    Int(i64, i64, Unit),
    /// A number: minimum and maximum.
    Float(f64, f64),
    /// A number of bytes, with or without a unit, as in `4MB`: minimum and maximum.
    Size(u64, u64),
    /// Text on one line, of at most this many characters.
    Text(usize),
    /// As [`SettingType::Text`]; empty text counts as not set.
    Optional(usize),
    /// Text of a certain form.
    Word(&'static Word),
    /// One of these words, in any case.
    Choice(&'static [&'static str]),
    /// As [`SettingType::Choice`]; empty text counts as not set.
    OptionalChoice(&'static [&'static str]),
    /// A list of these, or one text with commas.
    List(&'static Word),
    /// As [`SettingType::List`]; an empty list is not the same as none.
    OptionalList(&'static Word),
    /// A value of a shape of its own.
    Custom(&'static CustomType),
    /// Anything; it is not looked at.
    Any,
    /// As [`SettingType::Any`], and never shown.
    Secret,
    /// Text on one line, kept as it is and never shown; empty text counts as not set.
    Password,
    /// A bearer token, never shown: visible ASCII characters. White space around them does not count, and empty text counts
    /// as not set.
    Token,
}

/// Maximum length of a password.
const MAX_PASSWORD_CHARS: usize = 4096;

/// What a whole number counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// Things.
    None,
    /// Nanoseconds.
    Nanos,
    /// Milliseconds.
    Millis,
    /// Seconds.
    Seconds,
    /// TCP ports; 0: the system chooses a free one.
    Port,
    /// TCP ports; 0: none.
    PortOrNone,
}

/// The form of a text, or of the items of a list.
#[derive(Debug)]
pub struct Word {
    /// What is allowed, to end the sentence "must be …".
    pub allowed: &'static str,
    /// For editors, a pattern that takes at least what `fits` takes; empty: any scalar.
    pub pattern: &'static str,
    /// Whether a text has the form.
    pub fits: fn(&str) -> bool,
    /// Maximum number of items of a list.
    pub most: usize,
    /// Whether the text is never shown in messages.
    pub secret: bool,
    /// Whether one text is one item of a list, commas and all.
    pub keeps_commas: bool,
}

/// A shape that only one setting has.
#[derive(Debug)]
pub struct CustomType {
    /// What is allowed, to end the sentence "must be …".
    pub allowed: &'static str,
    /// Whether a value that is not set is an empty list.
    pub is_list: bool,
    /// The value, checked, as JSON that the setting's Rust type is deserialized from.
    pub read: fn(&YamlNode) -> Result<Value, UnfitValue>,
    /// Its JSON schema.
    pub schema: fn() -> Value,
}

/// What stands where a setting's value cannot be taken, to end the sentence "… is".
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct UnfitValue(pub String);

const fn word(allowed: &'static str, pattern: &'static str, fits: fn(&str) -> bool) -> Word {
    Word { allowed, pattern, fits, most: usize::MAX, secret: false, keeps_commas: false }
}

macro_rules! namespace {
    () => {
        "[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"
    };
}

/// `true` or `false`.
pub const FLAG: SettingType = SettingType::Flag;
/// Anything; it is not looked at.
pub const ANY: SettingType = SettingType::Any;
/// As [`ANY`], and never shown.
pub const SECRET: SettingType = SettingType::Secret;
/// A password, of at most 4096 characters; empty: none.
pub const PASSWORD: SettingType = SettingType::Password;
/// A bearer token; empty: none.
pub const TOKEN: SettingType = SettingType::Token;
/// A TCP port; 0: the system chooses a free one.
pub const PORT: SettingType = SettingType::Int(0, 65535, Unit::Port);
/// Text of at most 4096 characters.
pub const TEXT: SettingType = SettingType::Text(4096);
/// A host name or address to listen on, or `*`.
pub const ADDRESS: SettingType = SettingType::Word(&word(
    "an address, a host name, or * for all addresses",
    r"^(\*|\[?[0-9A-Za-z.:-]+\]?)$",
    address,
));
/// A host name or address to dial, and a port.
pub const HOST_PORT: SettingType = SettingType::Word(&word(
    "an address and a port, such as hub.example.com:9091",
    r"^(\[[0-9A-Fa-f:.]+\]|[0-9A-Za-z._-]+):[1-9][0-9]{0,4}$",
    host_and_port,
));
/// A Kubernetes namespace.
pub const NAMESPACE: SettingType = SettingType::Word(&word(
    "a namespace (at most 63 lower-case letters, digits and hyphens)",
    concat!("^", namespace!(), "$"),
    dns_label,
));
/// Where the database is.
pub const DATABASE_URL: SettingType = SettingType::Word(&Word {
    secret: true,
    keeps_commas: false,
    ..word(
        "an address that begins with sqlite://, mysql:// or postgres://",
        "^(sqlite|mysql|mariadb|postgres|postgresql)://",
        database_url,
    )
});
/// URL of an HTTP server, without user, query and fragment. Messages do not quote it: one that is refused may contain a
/// password.
pub const HTTP_URL: SettingType = SettingType::Word(&Word {
    secret: true,
    keeps_commas: false,
    ..word(
        "http://HOST:PORT or https://HOST:PORT, with a path or without, and without a user and a password, query and \
         fragment",
        r"^https?://[^@?#\s]+$",
        http_url,
    )
});
/// Times that repeat, as a cron expression of six fields.
pub const CRON: SettingType = SettingType::Word(&word(
    "six fields: second, minute, hour, day of the month, month, day of the week, such as 0 0 0 * * 0",
    r"^ *\S+( +\S+){5} *$",
    |text| text.parse::<CronSchedule>().is_ok(),
));

/// Items on one line each.
pub const TEXTS: &Word = &word("a list of texts", "", |text| one_line(text, 4096));
/// Texts, of which one that is given alone may have commas.
pub const TEXTS_WITH_COMMAS: &Word = &Word {
    keeps_commas: true,
    ..word("a list of texts; one text is one item, commas and all", "", |text| one_line(text, 4096))
};
/// Kubernetes namespaces.
pub const NAMESPACES: &Word = &word("a list of namespaces", concat!("^", namespace!(), "$"), dns_label);
/// Namespaces, or `*` for all.
pub const NAMESPACES_OR_ALL: &Word =
    &word("a list of namespaces, or [\"*\"] for all", concat!(r"^(\*|", namespace!(), ")$"), |text| {
        text == "*" || dns_label(text)
    });
/// Namespaces, `.` for the operator's own, or `*` for all.
pub const NAMESPACES_OWN_OR_ALL: &Word = &word(
    "a list of namespaces, [\".\"] for the operator's own, or [\"*\"] for all",
    concat!(r"^(\*|\.|", namespace!(), ")$"),
    |text| matches!(text, "*" | ".") || dns_label(text),
);
/// Absolute folders.
pub const FOLDERS: &Word =
    &word("a list of absolute folders", "^/", |text| text.starts_with('/') && one_line(text, 4096));
/// Addresses and networks.
pub const NETWORKS: &Word =
    &word("a list of addresses and networks, such as 10.0.0.0/8", "^[0-9A-Fa-f.:]+(/[0-9]{1,3})?$", |text| {
        text.parse::<Network>().is_ok()
    });
/// Host names, with or without a port.
pub const HOSTS: &Word = &word("a list of host names, each with or without a port", r"^[^@*\s/]+$", is_host);
/// Origins of web pages, as a browser says them: `SCHEME://HOST` or `SCHEME://HOST:PORT`.
pub const ORIGINS: &Word =
    &word("a list of origins, such as https://deck.example.com (no *)", r"^https?://[^@*\s/]+$", |text| {
        let host = text.strip_prefix("https://").or_else(|| text.strip_prefix("http://"));
        host.is_some_and(is_host)
    });
/// Servers: each a host, a suffix or a network, with ports or without.
pub const SERVERS: &Word = &Word {
    most: MAX_SERVERS,
    ..word(
        "a list of at most 1000 hosts, *.suffixes, addresses or CIDRs, each with :PORT, :FROM-TO or neither",
        r"^\S+$",
        |text| text.parse::<ServerEntry>().is_ok(),
    )
};
const _: () = assert!(MAX_SERVERS == 1000, "as the text above says");
/// Names of programs, without folders.
pub const COMMANDS: &Word = &Word {
    most: MAX_SERVERS,
    ..word("a list of names of programs, without folders", "^[^/]+$", |text| {
        one_line(text, 255) && !text.contains('/') && !matches!(text, "." | "..")
    })
};
/// Classes of requests to clusters.
pub const REQUEST_CLASSES: &Word =
    &word("a list of read, write and connect", "^(read|write|connect)$", |text| {
        matches!(text, "read" | "write" | "connect")
    });

/// An integer without a unit.
pub const fn count(min: i64, max: i64) -> SettingType {
    SettingType::Int(min, max, Unit::None)
}

/// A duration in milliseconds.
pub const fn millis(min: i64, max: i64) -> SettingType {
    SettingType::Int(min, max, Unit::Millis)
}

/// A duration in seconds.
pub const fn seconds(min: i64, max: i64) -> SettingType {
    SettingType::Int(min, max, Unit::Seconds)
}

impl SettingType {
    /// Whether the value is never shown in messages.
    pub fn is_secret(self) -> bool {
        matches!(self, Self::Secret | Self::Password | Self::Token | Self::Word(Word { secret: true, .. }))
    }

    /// Reads a value; `null` for one that counts as not set.
    pub fn read(self, node: &YamlNode) -> Result<Value, UnfitValue> {
        let parsed = match (&node.value, self) {
            (YamlValue::Null, _) | (_, Self::Any | Self::Secret) => Some(Value::Null),
            (_, Self::Custom(custom)) => Some((custom.read)(node)?),
            (YamlValue::Text(text), _) => self.parse(text),
            (YamlValue::List(items), Self::List(of) | Self::OptionalList(of)) => {
                let texts = items.iter().map(|item| match &item.value {
                    YamlValue::Text(text) => Ok(text.as_str()),
                    _ => Err(UnfitValue(format!("a list with {} in line {}", say(item), item.line))),
                });
                of.list(&texts.collect::<Result<Vec<_>, _>>()?)
            }
            (YamlValue::List(_) | YamlValue::Map(_), _) => None,
        };
        parsed.ok_or_else(|| UnfitValue(say(node)))
    }

    /// Reads a value from an environment variable or a flag, or the text of a YAML scalar.
    pub fn parse(self, text: &str) -> Option<Value> {
        let trimmed = text.trim();
        match self {
            Self::Any | Self::Secret => Some(Value::Null),
            Self::Optional(_) | Self::OptionalChoice(_) if trimmed.is_empty() => Some(Value::Null),
            Self::Password | Self::Token if text.is_empty() => Some(Value::Null),
            Self::Token => {
                let fits = (1..=MAX_TOKEN_BYTES).contains(&trimmed.len())
                    && trimmed.bytes().all(|byte| byte.is_ascii_graphic());
                fits.then(|| trimmed.into())
            }
            Self::Password => {
                let fits = !text.contains(char::is_control) && text.chars().count() <= MAX_PASSWORD_CHARS;
                fits.then(|| text.into())
            }
            Self::Flag => match trimmed.to_ascii_lowercase().as_str() {
                "true" | "yes" | "on" | "1" => Some(true.into()),
                "false" | "no" | "off" | "0" => Some(false.into()),
                _ => None,
            },
            Self::Int(min, max, _) => {
                trimmed.parse::<i64>().ok().filter(|n| (min..=max).contains(n)).map(Value::from)
            }
            Self::Float(min, max) => {
                trimmed.parse::<f64>().ok().filter(|n| (min..=max).contains(n)).map(Value::from)
            }
            Self::Size(min, max) => {
                let bytes = data_size(trimmed).filter(|n| (min..=max).contains(n))?;
                Some(bytes.into())
            }
            Self::Text(max) | Self::Optional(max) => one_line(text, max).then(|| text.into()),
            Self::Word(word) => (word.fits)(trimmed).then(|| trimmed.into()),
            Self::Choice(words) | Self::OptionalChoice(words) => {
                words.iter().find(|w| w.eq_ignore_ascii_case(trimmed)).map(|word| (*word).into())
            }
            Self::List(of) | Self::OptionalList(of) => {
                let parts: Vec<_> = match of.keeps_commas {
                    true => vec![trimmed],
                    false => trimmed.split(',').map(str::trim).collect(),
                };
                of.list(&parts.into_iter().filter(|item| !item.is_empty()).collect::<Vec<_>>())
            }
            Self::Custom(_) => None,
        }
    }

    /// The value of a default as a table has it: empty text is an empty list, or nothing.
    pub(super) fn default_value(self, default: &str) -> Value {
        match self {
            Self::List(_) => self.parse(default),
            Self::Custom(custom) => custom.is_list.then(|| Value::Array(Vec::new())),
            _ if default.is_empty() => None,
            _ => self.parse(default),
        }
        .unwrap_or_default()
    }

    /// The JSON schema of a value.
    pub(super) fn schema(self) -> Value {
        let choice = |words: &[&str], more: Option<&str>| {
            let words = words.iter().copied().chain(more).map(Value::from);
            json!({ "enum": words.chain([Value::Null]).collect::<Vec<_>>() })
        };
        match self {
            Self::Flag => json!({ "type": ["boolean", "null"] }),
            Self::Int(min, max, _) => {
                json!({ "type": ["integer", "null"], "minimum": min, "maximum": max })
            }
            Self::Float(min, max) => json!({ "type": ["number", "null"], "minimum": min, "maximum": max }),
            Self::Size(min, max) => json!({
                "type": ["integer", "string", "null"],
                "minimum": min,
                "maximum": max,
                "pattern": "^[0-9]+ *([KMGTkmgt]?[Bb])?$",
            }),
            Self::Text(max) => {
                json!({ "type": ["string", "number", "boolean", "null"], "minLength": 1, "maxLength": max })
            }
            Self::Optional(max) => {
                json!({ "type": ["string", "number", "boolean", "null"], "maxLength": max })
            }
            Self::Password => {
                json!({ "type": ["string", "number", "boolean", "null"], "maxLength": MAX_PASSWORD_CHARS })
            }
            Self::Token => {
                json!({ "type": ["string", "number", "boolean", "null"], "pattern": r"^\s*[!-~]*\s*$" })
            }
            Self::Word(word) => json!({ "type": ["string", "null"], "pattern": word.pattern }),
            Self::Choice(words) => choice(words, None),
            Self::OptionalChoice(words) => choice(words, Some("")),
            // One text with commas does as well.
            Self::List(of) | Self::OptionalList(of) => {
                let item = match of.pattern {
                    "" => json!({ "type": ["string", "number", "boolean"] }),
                    pattern => json!({ "type": "string", "pattern": pattern }),
                };
                json!({ "type": ["array", "string", "null"], "items": item })
            }
            Self::Custom(custom) => (custom.schema)(),
            Self::Any | Self::Secret => json!({}),
        }
    }
}

impl Word {
    fn list(&self, items: &[&str]) -> Option<Value> {
        let fits = items.len() <= self.most && items.iter().all(|item| (self.fits)(item));
        fits.then(|| items.into())
    }
}

impl Unit {
    /// This many of the unit. What is no time counts as seconds.
    pub(super) fn duration(self, count: u64) -> Duration {
        match self {
            Self::Nanos => Duration::from_nanos(count),
            Self::Millis => Duration::from_millis(count),
            _ => Duration::from_secs(count),
        }
    }

    fn text(self) -> &'static str {
        match self {
            Self::None => "",
            Self::Nanos => " of nanoseconds",
            Self::Millis => " of milliseconds",
            Self::Seconds => " of seconds",
            Self::Port => " (a port; 0 lets the system choose)",
            Self::PortOrNone => " (a port; 0: none)",
        }
    }
}

/// What is allowed, to end the sentence "must be …".
impl fmt::Display for SettingType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Flag => f.write_str("true or false"),
            Self::Int(min, max, unit) => write!(f, "a whole number{} from {min} to {max}", unit.text()),
            Self::Float(min, max) => write!(f, "a number from {min} to {max}"),
            Self::Size(min, max) => write!(f, "a size such as 512KB or 4MB, from {min} to {max} bytes"),
            Self::Text(max) | Self::Optional(max) => {
                write!(f, "text on one line of at most {max} characters")
            }
            Self::Choice(words) => write!(f, "one of {}", words.join(", ")),
            Self::OptionalChoice(words) => write!(f, "one of {}, or empty", words.join(", ")),
            Self::Word(word) | Self::List(word) | Self::OptionalList(word) => f.write_str(word.allowed),
            Self::Custom(custom) => f.write_str(custom.allowed),
            Self::Any | Self::Secret => f.write_str("anything"),
            Self::Password => write!(f, "text on one line of at most {MAX_PASSWORD_CHARS} characters"),
            Self::Token => write!(f, "1 to {MAX_TOKEN_BYTES} visible ASCII characters"),
        }
    }
}

/// What stands there, to end the sentence "… is".
pub fn say(node: &YamlNode) -> String {
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

/// Whether the text is one line of at most `max` characters, and not blank.
pub fn one_line(text: &str, max: usize) -> bool {
    !text.trim().is_empty() && !text.contains(char::is_control) && text.chars().count() <= max
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

fn is_host(text: &str) -> bool {
    let authority = text.parse::<http::uri::Authority>();
    authority.is_ok_and(|one| !one.host().is_empty() && !text.contains(['@', '*']))
}

fn address(text: &str) -> bool {
    let bare = text.strip_prefix('[').and_then(|t| t.strip_suffix(']')).unwrap_or(text);
    let name = |t: &str| {
        (1..=253).contains(&t.len()) && t.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '-'))
    };
    text == "*" || bare.parse::<std::net::IpAddr>().is_ok() || name(text)
}

fn http_url(text: &str) -> bool {
    text.parse::<url::Url>().is_ok_and(|url| {
        matches!(url.scheme(), "http" | "https")
            && url.has_host()
            && url.username().is_empty()
            && url.password().is_none()
            && url.query().is_none()
            && url.fragment().is_none()
    })
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

fn database_url(text: &str) -> bool {
    let known = ["sqlite://", "mysql://", "mariadb://", "postgres://", "postgresql://"];
    one_line(text, 4096) && known.iter().any(|scheme| text.starts_with(scheme))
}

fn dns_label(text: &str) -> bool {
    (1..=63).contains(&text.len())
        && text.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-')
        && !text.starts_with('-')
        && !text.ends_with('-')
}
