//! What a request may do at a cluster: the last word of the agent's owner, and the namespaces of the account.

use super::target::{Class, RequestPath};

/// Classes of requests that the agent's owner allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AllowedClasses {
    /// Requests that change nothing.
    pub read: bool,
    /// Requests that may change something.
    pub write: bool,
    /// Requests that connect to what runs in the cluster, or make tokens.
    pub connect: bool,
}

impl Default for AllowedClasses {
    fn default() -> Self {
        Self { read: true, write: true, connect: false }
    }
}

impl AllowedClasses {
    fn allows(self, class: Class) -> bool {
        match class {
            Class::Read => self.read,
            Class::Write => self.write,
            Class::Connect => self.connect,
        }
    }
}

/// The part of a cluster that an account is.
#[derive(Clone, Copy, Debug, Default)]
pub struct AccountBounds<'a> {
    /// The only namespaces; empty: all.
    pub namespaces: &'a [String],
    /// Namespaces that are left out.
    pub omit_namespaces: &'a [String],
    /// Whether cluster-wide kinds are left out.
    pub only_namespaced: bool,
}

/// Whether a request is allowed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Access {
    /// It is.
    Allowed,
    /// It is not, for this reason.
    Refused(String),
    /// It is, if the kind is cluster-wide: the cluster knows.
    IfClusterWide,
}

/// Judges a request.
pub fn judge(allowed: AllowedClasses, bounds: AccountBounds<'_>, class: Class, path: &RequestPath) -> Access {
    let refused = |why: String| Access::Refused(format!("policy: {why}"));
    if !allowed.allows(class) {
        let class = class.as_str();
        return refused(format!(
            "requests of class {class} are not in kubernetes.requests.allow of the agent"
        ));
    }
    let Some(resource) = &path.resource else { return Access::Allowed };
    if let Some(namespace) = &path.namespace {
        let is_listed = bounds.namespaces.is_empty() || bounds.namespaces.contains(namespace);
        if !is_listed || bounds.omit_namespaces.contains(namespace) {
            return refused(format!("namespace {namespace:?} is not one of the account's"));
        }
        let is_object = path.group.is_empty() && resource == "namespaces";
        if is_object && bounds.only_namespaced && class != Class::Read {
            return refused("the account has no cluster-wide kinds (onlyNamespacedResources)".to_owned());
        }
        return Access::Allowed;
    }
    if bounds.only_namespaced {
        let is_bounded = !bounds.namespaces.is_empty() || !bounds.omit_namespaces.is_empty();
        if path.name.is_some() || is_bounded || class != Class::Read {
            return refused(
                "the account has no cluster-wide kinds (onlyNamespacedResources); name a namespace"
                    .to_owned(),
            );
        }
        return Access::Allowed;
    }
    let is_bounded = !bounds.namespaces.is_empty() || !bounds.omit_namespaces.is_empty();
    if is_bounded && path.is_over_all() { Access::IfClusterWide } else { Access::Allowed }
}

/// The refusal of a list over all namespaces.
pub fn refuse_over_all(path: &RequestPath) -> String {
    let resource = path.resource.as_deref().unwrap_or_default();
    format!(
        "policy: {resource:?} of all namespaces are more than the account has; name one of its namespaces"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(bounds: AccountBounds<'_>, method: &str, target: &str) -> Access {
        let path = RequestPath::read(target.as_bytes()).expect(target);
        judge(AllowedClasses::default(), bounds, path.class(method), &path)
    }

    #[test]
    fn the_owner_has_the_last_word() {
        let path = RequestPath::read(b"/api/v1/namespaces/a/pods/p/exec").expect("a path");
        let judged = judge(AllowedClasses::default(), AccountBounds::default(), Class::Connect, &path);
        assert!(matches!(judged, Access::Refused(why) if why.starts_with("policy: ")));
        let reads = AllowedClasses { write: false, ..AllowedClasses::default() };
        assert!(matches!(judge(reads, AccountBounds::default(), Class::Write, &path), Access::Refused(_)));
    }

    #[test]
    fn an_account_of_some_namespaces_reaches_no_other() {
        let (only, omitted) = (["a".to_owned()], ["kube-system".to_owned()]);
        let bounds = AccountBounds { namespaces: &only, ..AccountBounds::default() };
        assert_eq!(judged(bounds, "GET", "/api/v1/namespaces/a/pods"), Access::Allowed);
        assert_eq!(judged(bounds, "GET", "/api/v1/namespaces/a"), Access::Allowed);
        assert_eq!(judged(bounds, "GET", "/version"), Access::Allowed);
        assert_eq!(judged(bounds, "GET", "/api/v1/nodes/n"), Access::Allowed);
        assert_eq!(judged(bounds, "GET", "/api/v1/pods"), Access::IfClusterWide);
        for target in ["/api/v1/namespaces/b/pods", "/api/v1/namespaces/b", "/api/v1/watch/namespaces/b/pods"]
        {
            assert!(matches!(judged(bounds, "GET", target), Access::Refused(_)), "{target}");
        }
        let bounds = AccountBounds { omit_namespaces: &omitted, ..AccountBounds::default() };
        assert!(matches!(judged(bounds, "GET", "/api/v1/namespaces/kube-system/pods"), Access::Refused(_)));
        assert_eq!(judged(bounds, "GET", "/api/v1/namespaces/a/pods"), Access::Allowed);
    }

    #[test]
    fn an_account_of_namespaced_kinds_reaches_no_cluster_wide_object() {
        let bounds = AccountBounds { only_namespaced: true, ..AccountBounds::default() };
        assert!(matches!(judged(bounds, "GET", "/api/v1/nodes/n"), Access::Refused(_)));
        assert!(matches!(judged(bounds, "POST", "/api/v1/namespaces"), Access::Refused(_)));
        assert!(matches!(judged(bounds, "DELETE", "/api/v1/namespaces/a"), Access::Refused(_)));
        assert_eq!(judged(bounds, "GET", "/api/v1/namespaces/a"), Access::Allowed);
    }
}
