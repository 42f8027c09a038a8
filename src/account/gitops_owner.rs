//! The tool that manages an object: changes to objects applied by a GitOps tool or Helm must be made there, or they
//! are reverted.

use super::KubesvcAccount;

/// The GitOps tool that manages an account, with the name of the tool's own object; `None` if there is none. Argo CD
/// and Flux take precedence over Helm: they also render charts, and they are the ones that would revert a change.
pub fn gitops_owner(account: &KubesvcAccount) -> Option<String> {
    let mark = |key: &str| account.annotation(key).or_else(|| account.label(key));
    // `NAMESPACE/NAME` if the tool records the namespace of its own object.
    let named = |name: &str, namespace: &str| match mark(namespace).filter(|one| !one.is_empty()) {
        Some(namespace) => format!("{namespace}/{name}"),
        None => name.to_owned(),
    };
    if let Some(tracking) = mark("argocd.argoproj.io/tracking-id") {
        let application = tracking.split(':').next().unwrap_or(tracking);
        return Some(format!("Argo CD application {application}"));
    }
    if let Some(name) = mark("kustomize.toolkit.fluxcd.io/name") {
        return Some(format!("Flux Kustomization {}", named(name, "kustomize.toolkit.fluxcd.io/namespace")));
    }
    if let Some(name) = mark("helm.toolkit.fluxcd.io/name") {
        return Some(format!("Flux HelmRelease {}", named(name, "helm.toolkit.fluxcd.io/namespace")));
    }
    if mark("app.kubernetes.io/managed-by") != Some("Helm") {
        return None;
    }
    Some(match mark("meta.helm.sh/release-name") {
        Some(name) => format!("Helm release {}", named(name, "meta.helm.sh/release-namespace")),
        None => "Helm".to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keeper_of(labels: &[(&str, &str)], annotations: &[(&str, &str)]) -> Option<String> {
        let owned = |pairs: &[(&str, &str)]| {
            Some(pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect())
        };
        let mut account = KubesvcAccount::new("a", Default::default());
        account.metadata.labels = owned(labels);
        account.metadata.annotations = owned(annotations);
        gitops_owner(&account)
    }

    const ARGO: (&str, &str) = ("argocd.argoproj.io/tracking-id", "fleet:kubesvc.io/KubesvcAccount:ns/a");
    const FLUX: (&str, &str) = ("kustomize.toolkit.fluxcd.io/name", "apps");
    const FLUX_HELM: (&str, &str) = ("helm.toolkit.fluxcd.io/name", "hr");
    const HELM: (&str, &str) = ("app.kubernetes.io/managed-by", "Helm");

    #[test]
    fn each_tool_is_known_by_its_mark() {
        assert_eq!(keeper_of(&[], &[ARGO]).as_deref(), Some("Argo CD application fleet"));
        assert_eq!(keeper_of(&[FLUX], &[]).as_deref(), Some("Flux Kustomization apps"));
        assert_eq!(keeper_of(&[FLUX_HELM], &[]).as_deref(), Some("Flux HelmRelease hr"));
        assert_eq!(keeper_of(&[HELM], &[]).as_deref(), Some("Helm"));
        let of_release = keeper_of(&[HELM], &[("meta.helm.sh/release-name", "accounts")]);
        assert_eq!(of_release.as_deref(), Some("Helm release accounts"));
        assert_eq!(keeper_of(&[("app.kubernetes.io/managed-by", "me")], &[]), None);
        assert_eq!(keeper_of(&[], &[]), None);
    }

    #[test]
    fn the_namespace_of_the_tools_own_object_is_shown_where_known() {
        let flux = keeper_of(&[FLUX, ("kustomize.toolkit.fluxcd.io/namespace", "flux-system")], &[]);
        assert_eq!(flux.as_deref(), Some("Flux Kustomization flux-system/apps"));
        let release = keeper_of(&[FLUX_HELM, ("helm.toolkit.fluxcd.io/namespace", "flux-system")], &[]);
        assert_eq!(release.as_deref(), Some("Flux HelmRelease flux-system/hr"));
        let annotations =
            [("meta.helm.sh/release-name", "accounts"), ("meta.helm.sh/release-namespace", "ops")];
        assert_eq!(keeper_of(&[HELM], &annotations).as_deref(), Some("Helm release ops/accounts"));
    }

    #[test]
    fn a_tool_that_renders_a_chart_goes_before_helm() {
        assert_eq!(keeper_of(&[HELM], &[ARGO]).as_deref(), Some("Argo CD application fleet"));
        assert_eq!(keeper_of(&[HELM, FLUX_HELM], &[]).as_deref(), Some("Flux HelmRelease hr"));
    }
}
