//! What can be read off an account's object as a whole: its name and marks, the zones that matter to it, and the tool
//! that manages it.

use std::borrow::Cow;

use sha2::{Digest, Sha256};

use super::{
    DesiredState, FINALIZER, GrantPhase, KubesvcAccount, KubesvcAccountStatus, ORIGIN_AGENT, ORIGIN_LABEL,
    State,
};
use crate::ids::ZoneId;

impl KubesvcAccount {
    /// Name of the account in Spinnaker.
    pub fn account_name(&self) -> &str {
        self.spec.account_name.as_deref().or(self.metadata.name.as_deref()).unwrap_or_default()
    }

    /// The object's uid; empty only before the API server has stored it.
    pub fn uid(&self) -> &str {
        self.metadata.uid.as_deref().unwrap_or_default()
    }

    /// The desired state.
    pub fn desired(&self) -> DesiredState {
        self.spec.state.unwrap_or_default()
    }

    /// The generation of the spec.
    pub fn generation(&self) -> i64 {
        self.metadata.generation.unwrap_or_default()
    }

    /// Whether its deletion was requested.
    pub fn is_being_deleted(&self) -> bool {
        self.metadata.deletion_timestamp.is_some()
    }

    /// Value of an annotation.
    pub fn annotation(&self, key: &str) -> Option<&str> {
        self.metadata.annotations.as_ref()?.get(key).map(String::as_str)
    }

    /// Value of a label.
    pub fn label(&self, key: &str) -> Option<&str> {
        self.metadata.labels.as_ref()?.get(key).map(String::as_str)
    }

    /// Whether it comes from an agent's own file, instead of being managed by people.
    pub fn is_static(&self) -> bool {
        self.label(ORIGIN_LABEL) == Some(ORIGIN_AGENT)
    }

    /// Whether the object has kubesvc's finalizer.
    pub fn has_finalizer(&self) -> bool {
        self.metadata.finalizers.as_ref().is_some_and(|all| all.iter().any(|one| one == FINALIZER))
    }

    /// The status, or its default if absent.
    pub fn status_or_default(&self) -> Cow<'_, KubesvcAccountStatus> {
        match &self.status {
            Some(status) => Cow::Borrowed(status),
            None => Cow::Owned(KubesvcAccountStatus::default()),
        }
    }

    /// The zones relevant to the account: of its grant, of its spec, and, if the spec names none, of its last grant.
    pub fn zones(&self) -> Vec<ZoneId> {
        let status = self.status_or_default();
        let pinned = self.spec.zone_id.as_ref();
        let last = if pinned.is_none() { status.zone_id.as_ref() } else { None };
        let mut zones = Vec::with_capacity(2);
        for zone in [status.granted_zone(), pinned, last].into_iter().flatten() {
            if !zones.iter().any(|one| one == zone) {
                zones.push(zone.to_owned());
            }
        }
        zones
    }

    /// Whether any zone with agents may matter to the account: it is pinned to none, and is granted to none or has
    /// trouble in the current one.
    pub fn takes_any_zone(&self) -> bool {
        let status = self.status_or_default();
        let may_leave = matches!(status.state(), State::Activating | State::Orphaned | State::Failed);
        self.spec.zone_id.is_none() && (status.granted_zone().is_none() || may_leave)
    }

    /// Whether the account is looking for a zone by asking every agent.
    pub fn needs_zone_probe(&self) -> bool {
        let status = self.status_or_default();
        status.state() == State::ToMigrate
            && status.phase() == GrantPhase::None
            && self.desired() == DesiredState::Active
            && self.spec.zone_id.is_none()
            && !self.is_being_deleted()
    }

    /// An id of the account's current probe round; `None` if it does not probe. A new round starts, and answers of
    /// earlier ones no longer count, with each new spec, new credential, failed attempt and requested retry, and each
    /// time that probing begins.
    pub fn probe_round(&self) -> Option<String> {
        if !self.needs_zone_probe() {
            return None;
        }
        let status = self.status_or_default();
        // Stored objects have a resolution of one second.
        let since = status.last_transition_time.as_ref().map(|time| time.0.as_second());
        let texts =
            [&status.credential_version, &status.retry_handled].map(|text| text.as_deref().unwrap_or("-"));
        let mut digest = Sha256::new();
        for number in
            [self.generation(), status.epoch.0, status.failed_count.into(), since.unwrap_or_default()]
        {
            digest.update(number.to_be_bytes());
        }
        texts.iter().for_each(|text| digest.update(Sha256::digest(text)));
        Some(hex::encode(&digest.finalize()[..8]))
    }

    /// The GitOps tool that manages the object, with the name of the tool's own object; `None` if there is none. Changes
    /// must be made there, or they are reverted. Argo CD and Flux take precedence over Helm: they also render charts, and
    /// they are the ones that would revert a change.
    pub fn gitops_owner(&self) -> Option<String> {
        let mark = |key: &str| self.annotation(key).or_else(|| self.label(key));
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
            return Some(format!(
                "Flux Kustomization {}",
                named(name, "kustomize.toolkit.fluxcd.io/namespace")
            ));
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
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owner_of(labels: &[(&str, &str)], annotations: &[(&str, &str)]) -> Option<String> {
        let owned = |pairs: &[(&str, &str)]| {
            Some(pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect())
        };
        let mut account = KubesvcAccount::new("a", Default::default());
        account.metadata.labels = owned(labels);
        account.metadata.annotations = owned(annotations);
        account.gitops_owner()
    }

    const ARGO: (&str, &str) = ("argocd.argoproj.io/tracking-id", "fleet:kubesvc.io/KubesvcAccount:ns/a");
    const FLUX: (&str, &str) = ("kustomize.toolkit.fluxcd.io/name", "apps");
    const FLUX_HELM: (&str, &str) = ("helm.toolkit.fluxcd.io/name", "hr");
    const HELM: (&str, &str) = ("app.kubernetes.io/managed-by", "Helm");

    #[test]
    fn each_tool_is_known_by_its_mark() {
        assert_eq!(owner_of(&[], &[ARGO]).as_deref(), Some("Argo CD application fleet"));
        assert_eq!(owner_of(&[FLUX], &[]).as_deref(), Some("Flux Kustomization apps"));
        assert_eq!(owner_of(&[FLUX_HELM], &[]).as_deref(), Some("Flux HelmRelease hr"));
        assert_eq!(owner_of(&[HELM], &[]).as_deref(), Some("Helm"));
        let of_release = owner_of(&[HELM], &[("meta.helm.sh/release-name", "accounts")]);
        assert_eq!(of_release.as_deref(), Some("Helm release accounts"));
        assert_eq!(owner_of(&[("app.kubernetes.io/managed-by", "me")], &[]), None);
        assert_eq!(owner_of(&[], &[]), None);
    }

    #[test]
    fn the_namespace_of_the_tools_own_object_is_shown_where_known() {
        let flux = owner_of(&[FLUX, ("kustomize.toolkit.fluxcd.io/namespace", "flux-system")], &[]);
        assert_eq!(flux.as_deref(), Some("Flux Kustomization flux-system/apps"));
        let release = owner_of(&[FLUX_HELM, ("helm.toolkit.fluxcd.io/namespace", "flux-system")], &[]);
        assert_eq!(release.as_deref(), Some("Flux HelmRelease flux-system/hr"));
        let annotations =
            [("meta.helm.sh/release-name", "accounts"), ("meta.helm.sh/release-namespace", "ops")];
        assert_eq!(owner_of(&[HELM], &annotations).as_deref(), Some("Helm release ops/accounts"));
    }

    #[test]
    fn a_tool_that_renders_a_chart_goes_before_helm() {
        assert_eq!(owner_of(&[HELM], &[ARGO]).as_deref(), Some("Argo CD application fleet"));
        assert_eq!(owner_of(&[HELM, FLUX_HELM], &[]).as_deref(), Some("Flux HelmRelease hr"));
    }
}
