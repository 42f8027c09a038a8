//! From the rows of the vendor's table to accounts. Pure.

use std::collections::HashMap;

use kubesvc_core::account_row::ForeignRow;
use kubesvc_core::row_adoption::{Adoption, adopt};
use kubesvc_core::{DesiredState, KubesvcAccount, State};
use serde::Serialize;

/// What is done with a row.
pub(super) enum RowPlan {
    /// An account is created, INACTIVE.
    Create(Box<Adoption>),
    /// There is an account of that name.
    Exists(String),
    /// It is listed only, for this reason.
    Left(&'static str),
    /// It cannot be an account, for this reason.
    Refused(String),
}

/// What became of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum RowResult {
    /// An object was created, or would be.
    Created,
    /// An account of that name is left as it is.
    Exists,
    /// Not imported, as documented.
    Left,
    /// It cannot be an account.
    Refused,
    /// A request failed, so it may not have been created.
    Failed,
}

impl RowResult {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Created => "created",
            Self::Exists => "exists",
            Self::Left => "left",
            Self::Refused => "refused",
            Self::Failed => "failed",
        }
    }
}

/// A row, and what became of it.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct RowLine {
    pub(super) name: String,
    /// The status in the vendor's table.
    pub(super) status: String,
    /// The zone in the vendor's table.
    pub(super) zone_id: Option<String>,
    /// The state that the account is to have in the end; `None`: it is not imported.
    pub(super) desired_state: Option<&'static str>,
    pub(super) result: RowResult,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(super) reason: String,
}

const STATIC: &str = "static: it comes from its agent's own file";

/// The accounts that exist, by the name of the object and by their own.
pub(super) struct ExistingAccounts {
    by_object: HashMap<String, String>,
    by_account: HashMap<String, String>,
}

impl ExistingAccounts {
    pub(super) fn of<'a>(accounts: impl IntoIterator<Item = &'a KubesvcAccount>) -> Self {
        let pairs = accounts.into_iter().map(|account| {
            (account.metadata.name.clone().unwrap_or_default(), account.account_name().to_owned())
        });
        let by_object: HashMap<_, _> = pairs.collect();
        let by_account = by_object.iter().map(|(object, account)| (account.clone(), object.clone()));
        Self { by_account: by_account.collect(), by_object }
    }
}

/// Decides about a row, for an object in this namespace.
pub(super) fn plan(row: &ForeignRow, namespace: &str, existing: &ExistingAccounts) -> RowPlan {
    if row.is_dynamic != Some(true) {
        return RowPlan::Left(STATIC);
    }
    let is = |state: State| row.status == state.as_str();
    if is(State::Failed) || is(State::DeleteFailed) {
        return RowPlan::Left("it has failed: correct it, and declare it as an object");
    }
    if is(State::Deleting) {
        return RowPlan::Left("it is being deleted");
    }
    if let Some(object) = existing.by_account.get(&row.name) {
        return RowPlan::Exists(format!("ksa/{object} has that name, and is left as it is"));
    }
    let mut adoption = match adopt(row, namespace) {
        Ok(adoption) => adoption,
        Err(why) => return RowPlan::Refused(why.to_string()),
    };
    let object = adoption.object.metadata.name.as_deref().unwrap_or_default();
    if let Some(account) = existing.by_object.get(object) {
        return RowPlan::Refused(format!("ksa/{object} is already the account {account:?}"));
    }
    // The operator adds it, once there is one.
    adoption.object.metadata.finalizers = None;
    adoption.object.spec.state = Some(DesiredState::Inactive);
    RowPlan::Create(Box::new(adoption))
}

/// The state that a row asks for.
pub(super) fn desired(row: &ForeignRow) -> &'static str {
    match kubesvc_core::row_adoption::desired(&row.status) {
        DesiredState::Active => "ACTIVE",
        DesiredState::Inactive => "INACTIVE",
    }
}

#[cfg(test)]
mod tests {
    use secrecy::ExposeSecret;
    use serde_json::{Value, json};

    use super::*;

    fn row(name: &str, status: &str, definition: &Value) -> ForeignRow {
        ForeignRow {
            name: name.to_owned(),
            status: status.to_owned(),
            zone_id: Some("agent_spinnaker".to_owned()),
            definition: Some(definition.to_string()),
            props: None,
            is_dynamic: Some(true),
        }
    }

    fn kubeconfig(contexts: &[&str], user: &str) -> String {
        let contexts: Vec<_> = contexts
            .iter()
            .map(|name| format!("{{name: {name}, context: {{cluster: c, user: u}}}}"))
            .collect();
        format!(
            "apiVersion: v1\nkind: Config\nclusters: [{{name: c, cluster: {{server: 'https://c.example'}}}}]\n\
             users: [{{name: u, user: {user}}}]\ncontexts: [{}]\n",
            contexts.join(", ")
        )
    }

    fn planned(row: &ForeignRow) -> RowPlan {
        plan(row, "spin", &ExistingAccounts::of(&[]))
    }

    fn reason(plan: RowPlan) -> String {
        match plan {
            RowPlan::Create(_) => "created".to_owned(),
            RowPlan::Left(why) => why.to_owned(),
            RowPlan::Exists(why) | RowPlan::Refused(why) => why,
        }
    }

    #[test]
    fn dynamic_rows_become_inactive_accounts_and_their_state_is_told() {
        let contents = format!("current-context: a\n{}", kubeconfig(&["a", "b"], "{token: t0ps3cret}"));
        for (status, wanted) in [
            ("ACTIVE", "ACTIVE"),
            ("ORPHANED", "ACTIVE"),
            ("ACTIVATING", "ACTIVE"),
            ("TO_MIGRATE", "ACTIVE"),
            ("INACTIVE", "INACTIVE"),
            ("TO_DEACTIVATE", "INACTIVE"),
        ] {
            let row = row("Prod 1", status, &json!({"kubeconfigContents": contents, "namespaces": ["a"]}));
            let RowPlan::Create(adoption) = planned(&row) else { unreachable!("{}", reason(planned(&row))) };
            let object = &adoption.object;
            assert_eq!(object.spec.state, Some(DesiredState::Inactive), "{status}");
            assert_eq!(desired(&row), wanted, "{status}");
            assert!(!object.has_finalizer());
            assert_eq!(
                object.spec.zone_id.as_ref().map(kubesvc_core::ZoneId::as_str),
                Some("agent_spinnaker")
            );
            assert_eq!(
                (object.account_name(), object.metadata.namespace.as_deref()),
                ("Prod 1", Some("spin"))
            );
            assert!(!serde_json::to_string(object).expect("JSON").contains("t0ps3cret"));
            let kept: Vec<_> = adoption.kubeconfigs.values().map(ExposeSecret::expose_secret).collect();
            assert_eq!(kept, [contents.as_str()]);
        }
    }

    #[test]
    fn rows_that_are_no_accounts_are_left_with_the_reason() {
        let good = json!({"serviceAccount": true});
        let of = |dynamic| ForeignRow { is_dynamic: dynamic, ..row("a", "ACTIVE", &good) };
        for dynamic in [Some(false), None] {
            assert_eq!(reason(planned(&of(dynamic))), STATIC);
        }
        for (status, part) in
            [("FAILED", "has failed"), ("DELETE_FAILED", "has failed"), ("DELETING", "being deleted")]
        {
            assert!(reason(planned(&row("a", status, &good))).contains(part), "{status}");
        }
    }

    #[test]
    fn refused_credentials_are_named_without_their_values() {
        let contents = |text: String| json!({ "kubeconfigContents": text });
        let at = |user: &str| format!("current-context: a\n{}", kubeconfig(&["a"], user));
        for (definition, part) in [
            (contents("czNjcmV0=".to_owned()), "refused"),
            (contents("s3cret: ]".to_owned()), "refused"),
            (contents(at("{exec: {command: s3cret}}")), "exec"),
            (contents(at("{client-certificate: /s3cret, client-key: /s3cret}")), "client-certificate"),
            (contents(at("{tokenFile: /s3cret}")), "tokenFile"),
            (contents(kubeconfig(&["a", "b"], "{token: s3cret}")), "context"),
            (json!({"kubeconfigFile": "s3cret"}), "absolute path"),
            (json!({}), "no credential"),
        ] {
            let why = reason(planned(&row("a", "ACTIVE", &definition)));
            assert!(why.contains(part) && !why.contains("s3cret"), "{why:?} lacks {part:?}");
        }
        let broken =
            ForeignRow { definition: Some("{\"s3cret\": ".to_owned()), ..row("a", "ACTIVE", &json!({})) };
        let why = reason(planned(&broken));
        assert!(why.contains("no JSON") && !why.contains("s3cret"), "{why}");
    }

    #[test]
    fn accounts_that_exist_are_left_as_they_are() {
        let spec =
            kubesvc_core::KubesvcAccountSpec { account_name: Some("Taken".to_owned()), ..Default::default() };
        let existing = [KubesvcAccount::new("other", spec), KubesvcAccount::new("prod", Default::default())];
        let existing = ExistingAccounts::of(&existing);
        let of = |name: &str| plan(&row(name, "ACTIVE", &json!({"serviceAccount": true})), "spin", &existing);
        for name in ["Taken", "prod"] {
            assert!(matches!(of(name), RowPlan::Exists(_)), "{name}");
        }
        assert!(reason(of("other")).contains("is already the account \"Taken\""));
        assert_eq!(reason(of("new")), "created");
    }
}
