//! Groups of settings: structs whose fields each declare their key, and are read by it.
//!
//! [`settings!`](crate::settings) writes the struct and its [`Group`]. The documentation of a field is the meaning of
//! its setting.

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;
use std::ops::Deref;
use std::path::PathBuf;
use std::time::Duration;

use kubesvc_core::identity::SubjectMatch;
use kubesvc_core::spec::CustomResourceTreatment;
use secrecy::{ExposeSecret as _, SecretString};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer};
use serde_json::Value;

use super::error::ConfigError;
use super::keys::fold;
use super::kind::{NETWORKS, SettingType, count};
use super::print::redact_url;
use super::row::{SettingRow, SettingUse};
use super::values::Values;
use crate::listen::connection_limits::AddressLimits;
use crate::tls::clients::ClientAuth;

/// A struct of settings.
pub trait Group: Sized {
    /// Declares its keys.
    fn declare(rows: &mut Rows<'_>);
    /// Builds it.
    ///
    /// # Errors
    /// Settings that do not go together.
    fn read(reader: &Reader<'_>) -> Result<Self, ConfigError>;
}

/// A part of a group of settings: where a value of type `T` comes from.
pub trait Source<T> {
    /// Declares its keys. `about` is the meaning of a single one.
    fn declare(&self, about: &'static str, rows: &mut Rows<'_>);
    /// Builds it.
    ///
    /// # Errors
    /// Settings that do not go together.
    fn read(&self, reader: &Reader<'_>) -> Result<T, ConfigError>;

    /// Converts what is read, or refuses it.
    fn read_as<U>(self, convert: fn(T, &Values) -> Result<U, ConfigError>) -> ReadAs<Self, T, U>
    where
        Self: Sized,
    {
        ReadAs { source: self, convert }
    }
}

/// The type of a setting in Rust.
pub trait FromSetting: DeserializeOwned {
    /// Converts a value that its type has checked.
    fn from_setting(value: &Value, _kind: SettingType) -> Option<Self> {
        serde_json::from_value(value.clone()).ok()
    }
}

impl FromSetting for bool {}
impl FromSetting for u16 {}
impl FromSetting for u32 {}
impl FromSetting for u64 {}
impl FromSetting for usize {}
impl FromSetting for f64 {}
impl FromSetting for String {}
impl FromSetting for PathBuf {}
impl FromSetting for CustomResourceTreatment {}
impl<T: FromSetting> FromSetting for Vec<T> {}
impl<T: FromSetting> FromSetting for Option<T> {}

impl FromSetting for Duration {
    fn from_setting(value: &Value, kind: SettingType) -> Option<Self> {
        let SettingType::Int(_, _, unit) = kind else { return None };
        Some(unit.duration(value.as_u64()?))
    }
}

/// `sqlite://PATH`, `mysql://…` or `postgres://…`. `Debug` omits its password.
#[derive(Clone, PartialEq, Eq, Deserialize)]
pub struct DatabaseUrl(String);

impl FromSetting for DatabaseUrl {}

impl Deref for DatabaseUrl {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for DatabaseUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&redact_url(&self.0))
    }
}

/// A password. `Debug` omits it.
#[derive(Clone, Debug)]
pub struct Password(SecretString);

impl Password {
    /// The password itself.
    pub fn secret(&self) -> &SecretString {
        &self.0
    }
}

impl PartialEq for Password {
    fn eq(&self, other: &Self) -> bool {
        self.0.expose_secret() == other.0.expose_secret()
    }
}

impl Eq for Password {}

impl<'de> Deserialize<'de> for Password {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer).map(|text| Self(text.into()))
    }
}

impl FromSetting for Password {}
impl FromSetting for ClientAuth {}
impl FromSetting for SubjectMatch {}

/// The rows of a group that is being declared.
pub struct Rows<'r> {
    group: String,
    rows: &'r mut Vec<SettingRow>,
}

impl<'r> Rows<'r> {
    pub(super) fn new(rows: &'r mut Vec<SettingRow>) -> Self {
        Self { group: String::new(), rows }
    }

    fn add(&mut self, key: &Key, about: &'static str) {
        let name = dotted(&self.group, key.name);
        let mut row = SettingRow::new(name, key.kind, SettingUse::Read(key.default), about);
        row.idle = key.idle;
        self.rows.push(row);
    }

    fn below(&mut self, name: &str) -> Rows<'_> {
        Rows { group: dotted(&self.group, name), rows: self.rows }
    }
}

/// The values of a group that is being read.
pub struct Reader<'v> {
    values: &'v Values,
    /// Identity of the group.
    group: String,
}

impl<'v> Reader<'v> {
    pub(super) fn new(values: &'v Values) -> Self {
        Self { values, group: String::new() }
    }

    fn below(&self, name: &str) -> Self {
        Self { values: self.values, group: dotted(&self.group, name) }
    }
}

fn dotted(group: &str, name: &str) -> String {
    match (group, name) {
        ("", name) => name.to_owned(),
        (group, "") => group.to_owned(),
        (group, name) => format!("{group}.{name}"),
    }
}

/// One setting. In a group that is repeated, the default holds where the setting is missing, and is not printed.
#[derive(Clone, Copy, Debug)]
pub struct Key {
    name: &'static str,
    kind: SettingType,
    default: &'static str,
    idle: Option<&'static str>,
}

/// The setting of this name, type, and default as it would be written; empty: not set.
pub const fn key(name: &'static str, kind: SettingType, default: &'static str) -> Key {
    Key { name, kind, default, idle: None }
}

impl Key {
    /// Marks a setting that is read and passed on but has no effect, for this reason.
    pub const fn idle(self, why: &'static str) -> Self {
        Self { idle: Some(why), ..self }
    }
}

impl<T: FromSetting> Source<T> for Key {
    fn declare(&self, about: &'static str, rows: &mut Rows<'_>) {
        rows.add(self, about);
    }

    fn read(&self, reader: &Reader<'_>) -> Result<T, ConfigError> {
        let id = dotted(&reader.group, &fold(self.name));
        let default;
        let value = match reader.values.slots.get(&id) {
            Some(slot) => &slot.value,
            None => {
                default = self.kind.default_value(self.default);
                &default
            }
        };
        Ok(T::from_setting(value, self.kind).ok_or_else(|| reader.values.mismatch(&id, self.kind))?)
    }
}

/// See [`Source::read_as`].
pub struct ReadAs<S, T, U> {
    source: S,
    convert: fn(T, &Values) -> Result<U, ConfigError>,
}

impl<S: Source<T>, T, U> Source<U> for ReadAs<S, T, U> {
    fn declare(&self, about: &'static str, rows: &mut Rows<'_>) {
        self.source.declare(about, rows);
    }

    fn read(&self, reader: &Reader<'_>) -> Result<U, ConfigError> {
        (self.convert)(self.source.read(reader)?, reader.values)
    }
}

/// See [`group()`].
pub struct GroupAt<G>(&'static str, PhantomData<G>);

/// The settings of another struct, below this name; empty: in the same group.
pub const fn group<G: Group>(name: &'static str) -> GroupAt<G> {
    GroupAt(name, PhantomData)
}

impl<G: Group> Source<G> for GroupAt<G> {
    fn declare(&self, _: &'static str, rows: &mut Rows<'_>) {
        G::declare(&mut rows.below(self.0));
    }

    fn read(&self, reader: &Reader<'_>) -> Result<G, ConfigError> {
        G::read(&reader.below(&fold(self.0)))
    }
}

/// See [`list()`].
pub struct ListAt<G>(&'static str, usize, PhantomData<G>);

/// A list of groups, of which at most this many are read.
pub const fn list<G: Group>(name: &'static str, most: usize) -> ListAt<G> {
    ListAt(name, most, PhantomData)
}

impl<G: Group> Source<Vec<G>> for ListAt<G> {
    fn declare(&self, _: &'static str, rows: &mut Rows<'_>) {
        G::declare(&mut rows.below(&format!("{}[]", self.0)));
    }

    fn read(&self, reader: &Reader<'_>) -> Result<Vec<G>, ConfigError> {
        let list = reader.below(&fold(self.0));
        let len = list.values.listed(&list.group).map_or(0, |listed| listed.len).min(self.1);
        let entry = |index| Reader { values: list.values, group: format!("{}[{index}]", list.group) };
        (0..len).map(|index| G::read(&entry(index))).collect()
    }
}

/// See [`named()`].
pub struct NamedAt<G>(&'static str, PhantomData<G>);

/// Groups whose names are chosen by the user.
pub const fn named<G: Group>(name: &'static str) -> NamedAt<G> {
    NamedAt(name, PhantomData)
}

impl<G: Group> Source<BTreeMap<String, G>> for NamedAt<G> {
    fn declare(&self, _: &'static str, rows: &mut Rows<'_>) {
        G::declare(&mut rows.below(&format!("{}.*", self.0)));
    }

    fn read(&self, reader: &Reader<'_>) -> Result<BTreeMap<String, G>, ConfigError> {
        let all = reader.below(&fold(self.0));
        let names = all.values.named_groups(&all.group).into_keys();
        names.map(|name| Ok((name.to_owned(), G::read(&all.below(name))?))).collect()
    }
}

/// See [`names()`].
#[derive(Clone, Copy, Debug)]
pub struct NamesAt(Key);

/// Texts whose names are chosen by the user; `name` ends in `.*`.
pub const fn names(name: &'static str, kind: SettingType) -> NamesAt {
    NamesAt(key(name, kind, ""))
}

impl Source<BTreeMap<String, String>> for NamesAt {
    fn declare(&self, about: &'static str, rows: &mut Rows<'_>) {
        rows.add(&self.0, about);
    }

    fn read(&self, reader: &Reader<'_>) -> Result<BTreeMap<String, String>, ConfigError> {
        let prefix = dotted(&reader.group, fold(self.0.name).trim_end_matches('*'));
        let below = reader.values.slots.range(prefix.clone()..);
        let named = below.map_while(|(id, slot)| Some((id.strip_prefix(&prefix)?, slot.value.as_str()?)));
        Ok(named.map(|(name, text)| (name.to_owned(), text.to_owned())).collect())
    }
}

/// Limits on open connections from one address: their group, the default of `perAddress`, and its meaning.
#[derive(Clone, Copy, Debug)]
pub struct LimitsAt(pub &'static str, pub &'static str, pub &'static str);

const PER_ADDRESS: SettingType = count(0, 1_000_000);

impl Source<AddressLimits> for LimitsAt {
    fn declare(&self, _: &'static str, rows: &mut Rows<'_>) {
        let mut rows = rows.below(self.0);
        rows.add(&key("perAddress", PER_ADDRESS, self.1), self.2);
        let exempt = key("exempt", SettingType::List(NETWORKS), "");
        rows.add(&exempt, "networks for which that bound does not count");
    }

    fn read(&self, reader: &Reader<'_>) -> Result<AddressLimits, ConfigError> {
        let reader = reader.below(&fold(self.0));
        let exempt: Vec<String> = key("exempt", SettingType::List(NETWORKS), "").read(&reader)?;
        Ok(AddressLimits {
            per_address: key("perAddress", PER_ADDRESS, self.1).read(&reader)?,
            exempt: parsed(exempt, reader.values)?,
        })
    }
}

/// Parses texts. Each was checked when it was read.
pub fn parsed<T: std::str::FromStr, C: FromIterator<T>>(
    texts: Vec<String>,
    _: &Values,
) -> Result<C, ConfigError> {
    Ok(texts.into_iter().filter_map(|text| text.parse().ok()).collect())
}

/// Structs of settings. Each field has a [`Source`], and is documented by the meaning of its setting.
#[macro_export]
macro_rules! settings {
    ($(
        $(#[$meta:meta])*
        $vis:vis struct $name:ident {
            $($(#[doc = $about:literal])+ $field:ident: $type:ty = $source:expr;)*
        }
    )+) => {$(
        $(#[$meta])*
        #[derive(Clone, Debug, PartialEq)]
        $vis struct $name {
            $($(#[doc = $about])+ pub $field: $type,)*
        }

        impl $crate::config::Group for $name {
            fn declare(rows: &mut $crate::config::Rows<'_>) {
                $($crate::config::Source::<$type>::declare(&$source, concat!($($about),+).trim_start(), rows);)*
            }

            fn read(reader: &$crate::config::Reader<'_>) -> Result<Self, $crate::config::ConfigError> {
                Ok(Self { $($field: $crate::config::Source::<$type>::read(&$source, reader)?,)* })
            }
        }
    )+};
}
