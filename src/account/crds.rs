//! The custom resource definitions, as `kubesvc-operator crds` prints them and `crds/` holds them.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{CustomResourceDefinition, JSON};
use kube::CustomResourceExt;

use super::{KubesvcAccount, KubesvcAgent};

/// The two definitions, each with the name of its file in `crds/`.
pub fn all() -> [(&'static str, CustomResourceDefinition); 2] {
    [("kubesvcaccounts.yaml", account()), ("kubesvcagents.yaml", KubesvcAgent::crd())]
}

/// An account that no operator has seen yet must read as in progress to kstatus, so that Argo CD and Flux wait for
/// it: its status starts with an `observedGeneration` that no generation equals.
fn account() -> CustomResourceDefinition {
    let mut crd = KubesvcAccount::crd();
    let status = crd
        .spec
        .versions
        .first_mut()
        .and_then(|version| {
            version.schema.as_mut()?.open_api_v3_schema.as_mut()?.properties.as_mut()?.get_mut("status")
        })
        .expect("the derived schema has a status");
    status.default = Some(JSON(serde_json::json!({ "observedGeneration": -1 })));
    crd
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::JSONSchemaProps;
    use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
        JSONSchemaPropsOrArray, JSONSchemaPropsOrBool,
    };

    use super::*;

    fn undescribed(path: &str, schema: &JSONSchemaProps, found: &mut Vec<String>) {
        for (name, property) in schema.properties.iter().flatten() {
            let path = format!("{path}.{name}");
            if property.description.as_deref().unwrap_or_default().is_empty() {
                found.push(path.clone());
            }
            undescribed(&path, property, found);
        }
        if let Some(JSONSchemaPropsOrArray::Schema(items)) = &schema.items {
            undescribed(path, items, found);
        }
        if let Some(JSONSchemaPropsOrBool::Schema(values)) = &schema.additional_properties {
            undescribed(path, values, found);
        }
    }

    #[test]
    fn every_field_is_described() {
        for (file, crd) in all() {
            for version in crd.spec.versions {
                let schema = version.schema.and_then(|schema| schema.open_api_v3_schema).expect("a schema");
                let mut found = Vec::new();
                undescribed("", &schema, &mut found);
                assert_eq!(found, Vec::<String>::new(), "{file}");
                assert!(schema.description.is_some_and(|text| text.len() > 20), "{file}");
            }
        }
    }

    #[test]
    fn accounts_have_their_short_name_category_and_columns() {
        let names = account().spec.names;
        assert_eq!(names.short_names, Some(vec!["ksa".to_owned()]));
        assert_eq!(names.categories, Some(vec!["spinnaker".to_owned()]));
        let version = account().spec.versions.into_iter().next().expect("one version");
        let columns = version.additional_printer_columns.expect("columns");
        let shown: Vec<_> =
            columns.iter().map(|one| (one.name.as_str(), one.priority.unwrap_or(0))).collect();
        let expected = ["State", "Zone", "Agents", "Kube-Version", "Retries", "Age"].map(|name| (name, 0));
        assert_eq!(shown, [expected.as_slice(), &[("Message", 1)]].concat());
    }
}
