//! Who keeps an object: what a GitOps tool has applied is changed there, or the tool would set it back.

use crate::account::KubesvcAccount;

/// The GitOps tool that keeps an account, and what it calls it; absent where there is none.
pub(super) fn keeper(account: &KubesvcAccount) -> Option<String> {
    let mark = |key: &str| account.annotation(key).or_else(|| account.label(key));
    if let Some(tracking) = mark("argocd.argoproj.io/tracking-id") {
        let application = tracking.split(':').next().unwrap_or(tracking);
        return Some(format!("Argo CD application {application}"));
    }
    if let Some(kustomization) = mark("kustomize.toolkit.fluxcd.io/name") {
        return Some(format!("Flux Kustomization {kustomization}"));
    }
    if let Some(release) = mark("helm.toolkit.fluxcd.io/name") {
        return Some(format!("Flux HelmRelease {release}"));
    }
    (mark("app.kubernetes.io/managed-by") == Some("Helm")).then(|| {
        format!("Helm release {}", mark("meta.helm.sh/release-name").unwrap_or("of an unknown name"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn account(labels: &[(&str, &str)], annotations: &[(&str, &str)]) -> KubesvcAccount {
        let owned = |pairs: &[(&str, &str)]| {
            Some(pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect())
        };
        let mut account = KubesvcAccount::new("a", Default::default());
        account.metadata.labels = owned(labels);
        account.metadata.annotations = owned(annotations);
        account
    }

    #[test]
    fn each_tool_is_known_by_its_mark() {
        let argo =
            account(&[], &[("argocd.argoproj.io/tracking-id", "fleet:kubesvc.io/KubesvcAccount:ns/a")]);
        assert_eq!(keeper(&argo).as_deref(), Some("Argo CD application fleet"));
        let flux = account(&[("kustomize.toolkit.fluxcd.io/name", "apps")], &[]);
        assert_eq!(keeper(&flux).as_deref(), Some("Flux Kustomization apps"));
        let helm = account(&[("helm.toolkit.fluxcd.io/name", "hr")], &[]);
        assert_eq!(keeper(&helm).as_deref(), Some("Flux HelmRelease hr"));
        let plain = account(
            &[("app.kubernetes.io/managed-by", "Helm")],
            &[("meta.helm.sh/release-name", "accounts")],
        );
        assert_eq!(keeper(&plain).as_deref(), Some("Helm release accounts"));
        assert_eq!(keeper(&account(&[("app.kubernetes.io/managed-by", "me")], &[])), None);
    }
}
