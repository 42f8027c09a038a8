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
pub enum AccessDecision {
    /// It is.
    Allowed,
    /// It is not, for this reason.
    Refused(String),
    /// It is, if the kind is cluster-wide: the cluster knows.
    IfClusterWide,
}

/// Judges a request with this method. `is_upgrade`: it asks for an upgrade of the connection.
///
/// A path without a namespace is that of a cluster-wide kind, or of all namespaces: the path does not say which. An account
/// without cluster-wide kinds has `namespaces` and so neither.
pub fn judge(
    allowed: AllowedClasses,
    bounds: AccountBounds<'_>,
    (method, is_upgrade): (&str, bool),
    path: &RequestPath,
) -> AccessDecision {
    let class = if is_upgrade { path.class_of_upgrade(method) } else { path.class(method) };
    let refused = |why: String| AccessDecision::Refused(format!("policy: {why}"));
    if !allowed.allows(class) {
        let class = class.as_str();
        return refused(format!(
            "requests of class {class} are not in kubernetes.requests.allow of the agent"
        ));
    }
    let is_bounded = !bounds.namespaces.is_empty() || !bounds.omit_namespaces.is_empty();
    let Some(resource) = &path.resource else {
        if is_bounded && path.is_of_server() {
            return refused(
                "what is at this path names objects of namespaces that are not the account's".into(),
            );
        }
        return AccessDecision::Allowed;
    };
    if let Some(namespace) = &path.namespace {
        let is_listed = bounds.namespaces.is_empty() || bounds.namespaces.contains(namespace);
        if !is_listed || bounds.omit_namespaces.contains(namespace) {
            return refused(format!("namespace {namespace:?} is not one of the account's"));
        }
        let is_object = path.group.is_empty() && resource == "namespaces";
        if is_object && bounds.only_namespaced && class != Class::Read {
            return refused("the account has no cluster-wide kinds (onlyNamespacedResources)".to_owned());
        }
        return AccessDecision::Allowed;
    }
    // A question about rights, such as that of `kubectl auth can-i`: of no kind that anybody has objects of.
    if path.is_review(method) {
        return AccessDecision::Allowed;
    }
    if bounds.only_namespaced {
        return refused(
            "the account has no cluster-wide kinds (onlyNamespacedResources); name a namespace".to_owned(),
        );
    }
    if is_bounded && path.is_over_all() { AccessDecision::IfClusterWide } else { AccessDecision::Allowed }
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

    fn judged(bounds: AccountBounds<'_>, method: &str, target: &str) -> AccessDecision {
        let path = RequestPath::read(target.as_bytes()).expect(target);
        judge(AllowedClasses::default(), bounds, (method, false), &path)
    }

    #[test]
    fn the_owner_has_the_last_word() {
        let path = RequestPath::read(b"/api/v1/namespaces/a/pods/p/exec").expect("a path");
        let judged = judge(AllowedClasses::default(), AccountBounds::default(), ("GET", false), &path);
        assert!(matches!(judged, AccessDecision::Refused(why) if why.starts_with("policy: ")));
        let reads = AllowedClasses { write: false, ..AllowedClasses::default() };
        let path = RequestPath::read(b"/api/v1/namespaces/a/pods/p").expect("a path");
        assert_eq!(judge(reads, AccountBounds::default(), ("GET", false), &path), AccessDecision::Allowed);
        assert!(matches!(
            judge(reads, AccountBounds::default(), ("PUT", false), &path),
            AccessDecision::Refused(_)
        ));
    }

    #[test]
    fn an_upgrade_needs_what_connecting_needs() {
        let judged = |target: &str, allowed| {
            let path = RequestPath::read(target.as_bytes()).expect(target);
            judge(allowed, AccountBounds::default(), ("GET", true), &path)
        };
        let console = "/apis/subresources.kubevirt.io/v1/namespaces/a/virtualmachineinstances/v/console";
        assert!(matches!(judged(console, AllowedClasses::default()), AccessDecision::Refused(_)));
        let all = AllowedClasses { connect: true, ..AllowedClasses::default() };
        assert_eq!(judged(console, all), AccessDecision::Allowed);
        assert_eq!(judged("/api/v1/pods?watch=1", AllowedClasses::default()), AccessDecision::Allowed);
    }

    #[test]
    fn what_tells_of_all_namespaces_is_not_for_an_account_of_some() {
        let named = ["a".to_owned()];
        let only = AccountBounds { namespaces: &named, ..AccountBounds::default() };
        let omitting = AccountBounds { omit_namespaces: &named, ..AccountBounds::default() };
        for bounds in [only, omitting] {
            for target in ["/metrics", "/metrics/slis", "/logs", "/logs/kube-apiserver.log", "/debug/pprof/"]
            {
                assert!(matches!(judged(bounds, "GET", target), AccessDecision::Refused(_)), "{target}");
                assert_eq!(
                    judged(AccountBounds::default(), "GET", target),
                    AccessDecision::Allowed,
                    "{target}"
                );
            }
            for target in
                ["/apis/example.org/v1/watch/widgets/w", "/api/v1/watch/pods", "/api/v1/watch/pods/p"]
            {
                assert_eq!(judged(bounds, "GET", target), AccessDecision::IfClusterWide, "{target}");
            }
            for target in ["/version", "/livez", "/openapi/v3", "/apis", "/api/v1"] {
                assert_eq!(judged(bounds, "GET", target), AccessDecision::Allowed, "{target}");
            }
        }
    }

    #[test]
    fn an_account_of_some_namespaces_reaches_no_other() {
        let (only, omitted) = (["a".to_owned()], ["kube-system".to_owned()]);
        let bounds = AccountBounds { namespaces: &only, ..AccountBounds::default() };
        assert_eq!(judged(bounds, "GET", "/api/v1/namespaces/a/pods"), AccessDecision::Allowed);
        assert_eq!(judged(bounds, "GET", "/api/v1/namespaces/a"), AccessDecision::Allowed);
        assert_eq!(judged(bounds, "GET", "/version"), AccessDecision::Allowed);
        assert_eq!(judged(bounds, "GET", "/api/v1/nodes/n"), AccessDecision::Allowed);
        assert_eq!(judged(bounds, "GET", "/api/v1/pods"), AccessDecision::IfClusterWide);
        for target in ["/api/v1/namespaces/b/pods", "/api/v1/namespaces/b", "/api/v1/watch/namespaces/b/pods"]
        {
            assert!(matches!(judged(bounds, "GET", target), AccessDecision::Refused(_)), "{target}");
        }
        let bounds = AccountBounds { omit_namespaces: &omitted, ..AccountBounds::default() };
        assert!(matches!(
            judged(bounds, "GET", "/api/v1/namespaces/kube-system/pods"),
            AccessDecision::Refused(_)
        ));
        assert_eq!(judged(bounds, "GET", "/api/v1/namespaces/a/pods"), AccessDecision::Allowed);
    }

    #[test]
    fn an_account_of_namespaced_kinds_reaches_no_cluster_wide_object() {
        let only = ["a".to_owned()];
        for namespaces in [&[][..], &only] {
            let bounds = AccountBounds { namespaces, only_namespaced: true, ..AccountBounds::default() };
            for (method, target) in [
                ("GET", "/api/v1/nodes/n"),
                ("GET", "/api/v1/nodes"),
                ("GET", "/api/v1/nodes?watch=1"),
                ("GET", "/api/v1/namespaces"),
                ("GET", "/apis/rbac.authorization.k8s.io/v1/clusterroles"),
                ("POST", "/api/v1/namespaces"),
                ("DELETE", "/api/v1/namespaces/a"),
            ] {
                let access = judged(bounds, method, target);
                assert!(matches!(access, AccessDecision::Refused(_)), "{method} {target} {namespaces:?}");
            }
            for target in ["/api/v1/namespaces/a", "/api/v1/namespaces/a/pods", "/version", "/apis/apps/v1"] {
                assert_eq!(judged(bounds, "GET", target), AccessDecision::Allowed, "{target} {namespaces:?}");
            }
        }
    }

    #[test]
    fn a_question_about_rights_may_be_asked_whatever_part_of_the_cluster_the_account_is() {
        let only = ["a".to_owned()];
        let reviews = "/apis/authorization.k8s.io/v1";
        for only_namespaced in [false, true] {
            let bounds = AccountBounds { namespaces: &only, only_namespaced, ..AccountBounds::default() };
            for review in ["selfsubjectaccessreviews", "selfsubjectrulesreviews", "subjectaccessreviews"] {
                assert_eq!(
                    judged(bounds, "POST", &format!("{reviews}/{review}")),
                    AccessDecision::Allowed,
                    "{review}"
                );
            }
            let other = format!("{reviews}/namespaces/b/localsubjectaccessreviews");
            assert!(matches!(judged(bounds, "POST", &other), AccessDecision::Refused(_)));
            assert_ne!(judged(bounds, "POST", "/apis/example.org/v1/reviews"), AccessDecision::Allowed);
        }
    }
}
