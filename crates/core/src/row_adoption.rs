//! Converts a foreign row into the account's object.
//!
//! | of the row | becomes |
//! |---|---|
//! | `name` | the account's name |
//! | `definition` | the spec, read the way REST does; a kubeconfig in it goes into a Secret, and only there |
//! | `props` | the permissions, if the definition has none |
//! | `zone_id` | the zone |
//! | `status` | the desired state |

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use secrecy::zeroize::Zeroize as _;
use secrecy::{ExposeSecret, SecretString};
use serde_json::{Map, Value, json};

use super::account_row::ForeignRow;
use super::owned_secret::AGENT_KEY;
use super::spinnaker::{AccountInput, AgentSource, validate};
use super::{
    DesiredState, FINALIZER, KubesvcAccount, KubesvcAccountSpec, ORIGIN_LABEL, ORIGIN_MIGRATED, State,
    kubeconfig, object_names,
};

/// Maximum length of a definition, in bytes: enough for a kubeconfig and everything else in an account.
const MAX_DEFINITION_BYTES: usize = 1 << 20;

/// The result of adopting a row. Has no `Debug`, because it may hold a kubeconfig.
pub struct Adoption {
    /// The object, already with its finalizer, so that the operator need not write it again.
    pub object: KubesvcAccount,
    /// The kubeconfigs for the Secret that the object names, by key.
    pub kubeconfigs: BTreeMap<&'static str, SecretString>,
}

/// Why a row cannot become an account, and what to do. Of the definition it contains only names.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct AdoptionError(String);

/// Converts a row into an account whose object is in this namespace.
///
/// # Errors
/// The row describes no valid account: its texts are not JSON, a field is invalid, the credential is missing, or the
/// credential is refused.
pub fn adopt(row: &ForeignRow, namespace: &str) -> Result<Adoption, AdoptionError> {
    let mut given = given(row)?;
    if given.source.is_none()
        && let Some(AgentSource::Set(source)) = given.agent_source.take()
    {
        given.source = Some(source); // The only source in the row.
    }
    let object = object_names::object_name(&row.name);
    let mut spec = KubesvcAccountSpec::default();
    given.apply_to(&mut spec).map_err(unreadable)?;
    spec.account_name = (object != row.name).then(|| row.name.clone());
    spec.state = Some(desired(&row.status));
    if let Some(zone) = row.zone_id.as_ref().filter(|zone| !zone.is_empty()) {
        spec.zone_id = Some(zone.as_str().into());
    }
    if given.source.is_none() {
        return Err(AdoptionError(NO_CREDENTIAL.to_owned()));
    }
    given.put_contents_into(&mut spec, &object);
    let mut kubeconfigs = BTreeMap::new();
    for (key, contents) in given.contents() {
        let contents = decoded(contents.clone());
        let vetted = kubeconfig::vet(contents.expose_secret().as_bytes(), spec.context.as_deref())
            .and_then(|vetted| vetted.with_insecure(spec.insecure.unwrap_or_default()));
        let which = if key == AGENT_KEY { "kubeconfigAgent" } else { "kubeconfig" };
        vetted.map_err(|refusal| AdoptionError(format!("its {which} is refused: {refusal}")))?;
        kubeconfigs.insert(key, contents);
    }
    let problems = validate(&spec);
    if !problems.is_empty() {
        return Err(AdoptionError(problems.join("; ")));
    }
    let metadata = ObjectMeta {
        name: Some(object),
        namespace: Some(namespace.to_owned()),
        labels: Some([(ORIGIN_LABEL.to_owned(), ORIGIN_MIGRATED.to_owned())].into()),
        finalizers: Some(vec![FINALIZER.to_owned()]),
        ..ObjectMeta::default()
    };
    Ok(Adoption { object: KubesvcAccount { metadata, spec, status: None }, kubeconfigs })
}

const NO_CREDENTIAL: &str = "it has no credential: its definition names none of kubeconfigContents, kubeconfigFile and \
                             serviceAccount; declare the account as an object, and the row becomes its own";

/// Whether a text is base64 of more than one line.
fn is_encoded(text: &str) -> bool {
    let bytes: Vec<u8> = text.bytes().filter(|byte| !byte.is_ascii_whitespace()).collect();
    STANDARD.decode(bytes).is_ok_and(|plain| plain.contains(&b'\n'))
}

/// Decodes a kubeconfig that a row holds in base64. No kubeconfig is itself valid base64, since it contains a colon.
fn decoded(contents: SecretString) -> SecretString {
    let mut bytes: Vec<u8> =
        contents.expose_secret().bytes().filter(|byte| !byte.is_ascii_whitespace()).collect();
    let plain = STANDARD.decode(&bytes).ok().and_then(|plain| String::from_utf8(plain).ok());
    bytes.zeroize();
    plain.map_or(contents, SecretString::from)
}

/// Active for states that are active, or on the way there.
pub fn desired(status: &str) -> DesiredState {
    let active = [State::Active, State::Activating, State::Orphaned, State::ToMigrate];
    if active.iter().any(|state| state.as_str() == status) {
        DesiredState::Active
    } else {
        DesiredState::Inactive
    }
}

fn given(row: &ForeignRow) -> Result<AccountInput, AdoptionError> {
    let Some(definition) = row.definition.as_deref().filter(|text| !text.trim().is_empty()) else {
        return Err(AdoptionError(NO_CREDENTIAL.to_owned()));
    };
    let mut fields = object("definition", definition)?;
    match fields.get("name") {
        None | Some(Value::Null) => {
            fields.insert("name".to_owned(), json!(row.name));
        }
        Some(name) if *name == json!(row.name) => {}
        Some(_) => {
            return Err(AdoptionError("its definition is that of an account with another name".to_owned()));
        }
    }
    // The vendor also puts the kubeconfig itself, in base64, where a path is expected.
    if !fields.contains_key("kubeconfigContents")
        && let Some(Value::String(text)) = fields.get("kubeconfigFile")
        && is_encoded(text)
        && let Some(contents) = fields.remove("kubeconfigFile")
    {
        fields.insert("kubeconfigContents".to_owned(), contents);
    }
    // Permissions are never lost in the conversion.
    let silent = fields.get("permissions").is_none_or(Value::is_null);
    if let Some(props) = row.props.as_deref().filter(|text| silent && !text.trim().is_empty())
        && let Some(permissions) = object("props", props)?.remove("permissions")
    {
        fields.insert("permissions".to_owned(), permissions);
    }
    AccountInput::read(fields).map_err(unreadable)
}

fn object(column: &str, text: &str) -> Result<Map<String, Value>, AdoptionError> {
    if text.len() > MAX_DEFINITION_BYTES {
        return Err(AdoptionError(format!("its {column} is longer than {MAX_DEFINITION_BYTES} bytes")));
    }
    match serde_json::from_str(text) {
        Ok(Value::Object(fields)) => Ok(fields),
        Ok(_) => Err(AdoptionError(format!("its {column} is no object in JSON"))),
        Err(error) => Err(AdoptionError(format!(
            "its {column} is no JSON (line {}, column {})",
            error.line(),
            error.column()
        ))),
    }
}

fn unreadable(problem: impl std::fmt::Display) -> AdoptionError {
    AdoptionError(format!("in its definition, {problem}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::owned_secret::{self, OWN_KEY};

    fn row(definition: &str) -> ForeignRow {
        ForeignRow {
            name: "prod".to_owned(),
            status: "ACTIVE".to_owned(),
            definition: Some(definition.to_owned()),
            ..ForeignRow::default()
        }
    }

    fn adopted(row: &ForeignRow) -> Adoption {
        adopt(row, "ns").unwrap_or_else(|why| unreachable!("{why}"))
    }

    fn why(row: &ForeignRow) -> String {
        adopt(row, "ns").err().map(|why| why.to_string()).unwrap_or_default()
    }

    fn kubeconfig(user: &str) -> String {
        format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: c\nclusters: [{{name: c, cluster: {{server: \
             'https://cluster.example:6443'}}}}]\nusers: [{{name: u, user: {user}}}]\ncontexts: [{{name: c, context: \
             {{cluster: c, user: u}}}}]\n"
        )
    }

    fn own(kubeconfigs: &BTreeMap<&'static str, SecretString>) -> Option<String> {
        kubeconfigs.get(OWN_KEY).map(|text| text.expose_secret().to_owned())
    }

    #[test]
    fn the_kubeconfig_for_agents_of_a_row_stands_beside_its_own_or_is_all_it_has() {
        let (one, other) = (kubeconfig("{token: own}"), kubeconfig("{token: agents}"));
        let both = json!({"kubeconfigContents": one, "kubeconfigAgent": other}).to_string();
        let Adoption { object, kubeconfigs } = adopted(&row(&both));
        assert_eq!(owned_secret::keys_named_by(&object), [OWN_KEY, AGENT_KEY].into());
        assert_eq!(kubeconfigs[AGENT_KEY].expose_secret(), other);
        let alone = adopted(&row(&json!({"kubeconfigAgent": other}).to_string()));
        assert_eq!((own(&alone.kubeconfigs), alone.object.spec.agent_kubeconfig), (Some(other), None));
        let bad = json!({"serviceAccount": true, "kubeconfigAgent": "s3cret: 1"}).to_string();
        let why = why(&row(&bad));
        assert!(why.contains("kubeconfigAgent is refused") && !why.contains("s3cret"), "{why}");
    }

    #[test]
    fn a_row_becomes_an_object_with_all_that_it_says() {
        let row = ForeignRow {
            name: "Old Prod".to_owned(),
            zone_id: Some("east".to_owned()),
            ..row(
                r#"{"name": "Old Prod", "type": "kubernetes", "kubeconfigFile": "encryptedFile:k8s!n:old!k:kubeconfig",
                    "zoneId": "west", "kinds": ["pod"], "permissions": {"READ": ["dev"]}, "cacheThreads": 4}"#,
            )
        };
        let Adoption { object, kubeconfigs } = adopted(&row);
        assert!(kubeconfigs.is_empty());
        assert_eq!(object.metadata.name, Some(object_names::object_name("Old Prod")));
        assert_eq!(object.metadata.namespace.as_deref(), Some("ns"));
        assert_eq!(object.label(ORIGIN_LABEL), Some("migrated"));
        assert!(object.has_finalizer());
        assert_eq!(object.account_name(), "Old Prod");
        let spec = &object.spec;
        assert_eq!(
            spec.zone_id.as_ref().map(crate::ids::ZoneId::as_str),
            Some("east"),
            "the row knows the zone that it is in"
        );
        assert_eq!(spec.kubeconfig.reference.as_deref(), Some("encryptedFile:k8s!n:old!k:kubeconfig"));
        assert_eq!(
            (spec.kinds.as_slice(), spec.permissions["READ"].as_slice()),
            (&["pod".to_owned()][..], &["dev".to_owned()][..])
        );
    }

    #[test]
    fn accounts_that_are_active_or_on_their_way_should_be_active() {
        for (status, wanted) in [
            ("ACTIVE", DesiredState::Active),
            ("ACTIVATING", DesiredState::Active),
            ("ORPHANED", DesiredState::Active),
            ("TO_MIGRATE", DesiredState::Active),
            ("INACTIVE", DesiredState::Inactive),
            ("FAILED", DesiredState::Inactive),
            ("DELETING", DesiredState::Inactive),
            ("", DesiredState::Inactive),
        ] {
            let row = ForeignRow { status: status.to_owned(), ..row(r#"{"serviceAccount": true}"#) };
            assert_eq!(adopted(&row).object.spec.state, Some(wanted), "{status:?}");
        }
    }

    #[test]
    fn a_kubeconfig_goes_beside_the_object_and_not_into_it() {
        let contents = kubeconfig("{token: t0ps3cret}");
        let Adoption { object, kubeconfigs } =
            adopted(&row(&json!({"kubeconfigContents": contents}).to_string()));
        assert_eq!(own(&kubeconfigs), Some(contents));
        assert!(owned_secret::is_named_by(&object));
        assert!(!format!("{object:?}").contains("t0ps3cret"));
    }

    #[test]
    fn a_kubeconfig_in_base64_is_decoded() {
        let contents = kubeconfig("{token: t0ps3cret}");
        let mut encoded = STANDARD.encode(&contents);
        encoded.insert(76, '\n');
        let Adoption { kubeconfigs, .. } = adopted(&row(&json!({"kubeconfigContents": encoded}).to_string()));
        assert_eq!(own(&kubeconfigs).as_ref(), Some(&contents));
        let Adoption { kubeconfigs, .. } =
            adopted(&row(&json!({"kubeconfigFile": STANDARD.encode(&contents)}).to_string()));
        assert_eq!(own(&kubeconfigs), Some(contents), "also where a path is expected");
        let why = why(&row(&json!({"kubeconfigContents": STANDARD.encode("s3cret: 1")}).to_string()));
        assert!(why.contains("kubeconfig is refused") && !why.contains("s3cret"), "{why}");
    }

    #[test]
    fn permissions_come_from_the_definition_or_else_from_the_props() {
        let of = |definition: &str, props: &str| {
            let row = ForeignRow { props: Some(props.to_owned()), ..row(definition) };
            adopt(&row, "ns").map(|adoption| adoption.object.spec.permissions.get("READ").cloned())
        };
        let props = r#"{"permissions": {"READ": ["ops"]}}"#;
        assert_eq!(of(r#"{"serviceAccount": true}"#, props), Ok(Some(vec!["ops".to_owned()])));
        let own = r#"{"serviceAccount": true, "permissions": {"READ": ["dev"]}}"#;
        assert_eq!(of(own, props), Ok(Some(vec!["dev".to_owned()])));
        let broken =
            of(r#"{"serviceAccount": true}"#, "{").expect_err("whom it was restricted to is not known");
        assert!(broken.to_string().contains("props is no JSON"), "{broken}");
    }

    #[test]
    fn a_row_that_tells_of_no_account_is_said_without_its_values() {
        let exec = json!({"kubeconfigContents": kubeconfig("{exec: {command: s3cret}}")}).to_string();
        for (row, part) in [
            (ForeignRow { definition: None, ..row("") }, "no credential"),
            (row(" "), "no credential"),
            (row("{}"), "no credential"),
            (row(r#"{"kubeconfigFile": "encrypted:noop!v:redacted"}"#), "no credential"),
            (row(r#"{"s3cret": "#), "no JSON (line 1"),
            (row("[1]"), "no object"),
            (row(&"x".repeat(MAX_DEFINITION_BYTES + 1)), "longer than"),
            (row(r#"{"name": "s3cret", "serviceAccount": true}"#), "another name"),
            (row(r#"{"serviceAccount": "s3cret"}"#), "serviceAccount must be true or false"),
            (row(r#"{"serviceAccount": true, "kubeconfigFile": "/s3cret"}"#), "exclude each other"),
            (row(r#"{"kubeconfigFile": "s3cret"}"#), "absolute path"),
            (row(r#"{"serviceAccount": true, "type": "s3cret"}"#), "type must be kubernetes"),
            (row(&exec), "exec runs a program"),
            (row(r#"{"kubeconfigContents": "s3cret"}"#), "kubeconfig is refused"),
            (ForeignRow { name: String::new(), ..row(r#"{"serviceAccount": true}"#) }, "name must be"),
            (ForeignRow { name: "a\nb".to_owned(), ..row(r#"{"serviceAccount": true}"#) }, "name must be"),
            (ForeignRow { zone_id: Some("a\nb".to_owned()), ..row(r#"{"serviceAccount": true}"#) }, "zoneId"),
        ] {
            let why = why(&row);
            assert!(why.contains(part) && !why.contains("s3cret"), "{why:?} lacks {part:?}");
        }
    }
}
