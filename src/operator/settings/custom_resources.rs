//! The type of `customResources`: what Spinnaker takes custom kinds for.

use kubesvc_core::spec::{CustomResourceTreatment, SpinnakerKind};
use kubesvc_runtime::config::{
    CustomType, FLAG, MappingEntry, SettingType, UnfitValue, YamlNode, YamlValue, fold, one_line, say, shown,
};
use serde_json::{Value, json};

/// Maximum number of kinds.
const MAX_KINDS: usize = 1000;
/// Maximum length of a kind, in characters; the same as in the account's object.
const MAX_KIND_CHARS: usize = 255;

/// A list of `{kubernetesKind, spinnakerKind, …}`.
pub(super) const CUSTOM_RESOURCES: SettingType = SettingType::Custom(&CustomType {
    allowed: "a list of {kubernetesKind: Kind.group, spinnakerKind, deployPriority, versioned, namespaced}",
    is_list: true,
    read: custom_resources,
    schema: || json!({ "type": ["array", "null"], "items": { "type": "object", "required": ["kubernetesKind"] } }),
});

fn custom_resources(node: &YamlNode) -> Result<Value, UnfitValue> {
    let YamlValue::List(items) = &node.value else { return Err(UnfitValue(say(node))) };
    if items.len() > MAX_KINDS {
        return Err(UnfitValue(say(node)));
    }
    let treatments = items.iter().map(custom_resource).collect::<Result<Vec<_>, _>>()?;
    Ok(json!(treatments))
}

fn custom_resource(item: &YamlNode) -> Result<CustomResourceTreatment, UnfitValue> {
    let wrong = |what: String, line: usize| Err(UnfitValue(format!("a list with {what} in line {line}")));
    let YamlValue::Map(entries) = &item.value else { return wrong(say(item), item.line) };
    let mut treatment = CustomResourceTreatment::default();
    for MappingEntry { key, line, node } in entries {
        let unfit = || wrong(format!("the {} {}", shown(key), say(node)), *line);
        let text = match &node.value {
            YamlValue::Null => continue,
            YamlValue::Text(text) => text.trim(),
            YamlValue::List(_) | YamlValue::Map(_) => return unfit(),
        };
        let flag = FLAG.parse(text).and_then(|flag| flag.as_bool());
        match (fold(key).as_str(), flag) {
            ("kuberneteskind", _) if one_line(text, MAX_KIND_CHARS) => {
                treatment.kubernetes_kind = text.to_owned();
            }
            ("spinnakerkind", _) => match spinnaker_kind(text) {
                Some(kind) => treatment.spinnaker_kind = Some(kind),
                None => return unfit(),
            },
            ("deploypriority", _) if is_priority(text) => treatment.deploy_priority = Some(text.to_owned()),
            ("versioned", Some(flag)) => treatment.versioned = Some(flag),
            ("namespaced", Some(flag)) => treatment.namespaced = Some(flag),
            ("kuberneteskind" | "deploypriority" | "versioned" | "namespaced", _) => return unfit(),
            _ => return wrong(format!("the key \"{}\"", shown(key)), *line),
        }
    }
    if treatment.kubernetes_kind.is_empty() {
        return wrong("an entry without a kubernetesKind".to_owned(), item.line);
    }
    Ok(treatment)
}

/// The class of this name, in any case.
fn spinnaker_kind(text: &str) -> Option<SpinnakerKind> {
    let kind = SpinnakerKind::NAMED.iter().find(|(name, _)| name.eq_ignore_ascii_case(text));
    kind.map(|(_, kind)| *kind)
}

/// Digits, as in an account's object.
fn is_priority(text: &str) -> bool {
    (1..=9).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit())
}
