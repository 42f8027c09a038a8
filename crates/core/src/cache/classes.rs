//! Spinnaker's class of each kind: Clouddriver's table, overridden by the `customResources` of the settings and of the
//! account.

use std::collections::BTreeMap;

use super::findings::{Finding, Setting};
use super::kind_names::{KindSelector, MAX_ITEMS, quoted};
use super::native;
use crate::spec::{CustomResourceTreatment, SpinnakerKind};

/// Version of the mapping from events to rows: kinds, ids, applications and relations. A change of any of these needs a
/// new version, so that every body is sent again and the rows are rebuilt.
const MAPPING_VERSION: &str = "1";

/// The classes of kinds for one account.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KindClasses {
    /// Deviations from Clouddriver's table, by [`kind_name`](native::kind_name) in lower case.
    custom: BTreeMap<String, SpinnakerKind>,
}

impl KindClasses {
    /// Reads custom resources. Later lists, and later items of a list, override earlier ones: the operator's for all
    /// accounts, the operator's for this account, the account's own.
    pub fn read(lists: &[(Setting, &[CustomResourceTreatment])]) -> (Self, Vec<Finding>) {
        let (mut custom, mut findings) = (BTreeMap::new(), Vec::new());
        for (setting, list) in lists {
            let setting = *setting;
            if list.len() > MAX_ITEMS {
                findings.push(Finding::TooMany { setting, count: list.len(), max: MAX_ITEMS });
            }
            for treatment in list.iter().take(MAX_ITEMS) {
                match custom_name(setting, &treatment.kubernetes_kind) {
                    Ok(name) => {
                        custom.insert(name, treatment.spinnaker_kind.unwrap_or_default());
                    }
                    Err(finding) => findings.push(finding),
                }
            }
        }
        custom.retain(|name, class| native::class_of(name) != *class);
        (Self { custom }, findings)
    }

    /// The class of a kind, by its [`kind_name`](native::kind_name).
    pub fn class_of(&self, kind_name: &str) -> SpinnakerKind {
        if self.custom.is_empty() {
            return native::class_of(kind_name);
        }
        let custom = self.custom.get(&kind_name.to_ascii_lowercase());
        custom.copied().unwrap_or_else(|| native::class_of(kind_name))
    }

    /// The operator's part of a row's shape on the wire: a version, and each kind whose class differs from
    /// Clouddriver's table.
    pub fn mapping(&self) -> String {
        let mut mapping = MAPPING_VERSION.to_owned();
        for (name, class) in &self.custom {
            mapping.extend([";", name, "=", class.name()]);
        }
        mapping
    }
}

/// Version of a mapping, and its class of a kind; empty for the class of Clouddriver's table.
pub(super) fn mapping_of<'a>(mapping: &'a str, kind_name: &str) -> (&'a str, &'a str) {
    let mut items = mapping.split(';');
    let version = items.next().unwrap_or_default();
    let class =
        items.filter_map(|item| item.split_once('=')).find(|(name, _)| name.eq_ignore_ascii_case(kind_name));
    (version, class.map_or("", |(_, class)| class))
}

/// Whether kinds of this class belong to an application in Spinnaker.
pub(super) fn has_application(class: SpinnakerKind) -> bool {
    matches!(class, SpinnakerKind::LoadBalancers | SpinnakerKind::SecurityGroups) || has_cluster(class)
}

/// Whether kinds of this class belong to a cluster in Spinnaker.
pub(super) fn has_cluster(class: SpinnakerKind) -> bool {
    matches!(class, SpinnakerKind::ServerGroups | SpinnakerKind::ServerGroupManagers)
}

fn custom_name(setting: Setting, text: &str) -> Result<String, Finding> {
    let name = KindSelector::parse(text).ok_or_else(|| Finding::NotAKind { setting, text: quoted(text) })?;
    let group = name.group().unwrap_or_default();
    if group.is_empty() && native::native_kind(name.kind()).is_none() {
        return Err(Finding::NoGroup { setting, text: quoted(text) });
    }
    Ok(native::kind_name(group, name.kind()).to_ascii_lowercase())
}
