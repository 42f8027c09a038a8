//! Relations of a row: to its owners, application and cluster.

use sha2::{Digest, Sha256};

use super::classes::{has_application, has_cluster};
use super::keys::{MAX_GROUP_CHARS, MAX_KIND_CHARS, MAX_NAME_CHARS, application_id, cluster_id, object_id};
use super::moniker::Moniker;
use super::native::kind_name;
use crate::spec::SpinnakerKind;
use crate::wire::events::OwnerReference;

/// Maximum number of owners of one object that become relations.
pub const MAX_OWNERS: usize = 100;
/// Type of an application in relations.
pub const APPLICATIONS: &str = "applications";
/// Type of a cluster in relations.
pub(crate) const CLUSTERS: &str = "clusters";

/// A row of `kubesvc_cache_rel` without the id of the row that it belongs to.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Relation {
    /// Id of the target, which may have no row.
    pub to_id: String,
    /// Type of the row: its kind.
    pub from_type: String,
    /// Type of the target: a kind, `applications` or `clusters`.
    pub to_type: String,
}

/// All relations of a row.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Relations {
    /// Ordered by id, without duplicates.
    pub relations: Vec<Relation>,
    /// Digest of the relations, 32 hex digits: they are written only when it changes.
    pub digest: String,
    /// Number of owners without a relation: beyond 100, or with an invalid name.
    pub owners_left_out: usize,
}

/// Input of [`Self::relations`].
#[derive(Clone, Copy, Debug)]
pub struct RelatedObject<'a> {
    /// The account.
    pub account: &'a str,
    /// The object's kind, by [`kind_name`].
    pub kind_name: &'a str,
    /// Spinnaker's class of the kind.
    pub class: SpinnakerKind,
    /// The object's namespace; empty if it is cluster-scoped.
    pub namespace: &'a str,
    /// Owners of the object.
    pub owners: &'a [OwnerReference],
    /// Moniker of the object.
    pub moniker: &'a Moniker,
}

impl RelatedObject<'_> {
    /// Relations of the object. An owner of a cluster-scoped kind has an empty namespace in its id; every other owner
    /// is in the object's namespace.
    pub fn relations(&self) -> Relations {
        let valid: Vec<_> = self.owners.iter().filter(|owner| is_valid(owner)).take(MAX_OWNERS).collect();
        let mut relations: Vec<_> = valid.iter().map(|owner| self.owned_by(owner)).collect();
        let moniker = self.moniker;
        if let Some(application) = moniker.application.as_deref().filter(|_| has_application(self.class)) {
            relations.push(self.related_to(application_id(application), APPLICATIONS.to_owned()));
            if let Some(cluster) = moniker.cluster.as_deref().filter(|_| has_cluster(self.class)) {
                relations.push(
                    self.related_to(cluster_id(self.account, application, cluster), CLUSTERS.to_owned()),
                );
            }
        }
        relations.sort();
        relations.dedup();
        let owners_left_out = self.owners.len() - valid.len();
        Relations { digest: digest(self.kind_name, &relations), relations, owners_left_out }
    }

    fn owned_by(&self, owner: &OwnerReference) -> Relation {
        let kind = kind_name(&owner.group, &owner.kind);
        let namespace = if owner.cluster_scoped { "" } else { self.namespace };
        self.related_to(object_id(&kind, self.account, namespace, &owner.name), kind)
    }

    fn related_to(&self, to_id: String, to_type: String) -> Relation {
        Relation { to_id, from_type: self.kind_name.to_owned(), to_type }
    }
}

fn is_valid(owner: &OwnerReference) -> bool {
    let fits =
        |text: &str, max: usize| text.chars().nth(max).is_none() && !text.chars().any(char::is_control);
    !owner.name.is_empty()
        && !owner.kind.is_empty()
        && fits(&owner.name, MAX_NAME_CHARS)
        && fits(&owner.kind, MAX_KIND_CHARS)
        && fits(&owner.group, MAX_GROUP_CHARS)
}

fn digest(kind_name: &str, relations: &[Relation]) -> String {
    let mut hash = Sha256::new();
    hash.update(kind_name);
    for relation in relations {
        for part in [&relation.to_id, &relation.to_type] {
            hash.update([0]);
            hash.update(part);
        }
    }
    hex::encode(&hash.finalize()[..16])
}
