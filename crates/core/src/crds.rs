//! The custom resource definitions, as printed by `kubesvc-operator crds` and stored in `crds/`.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, JSON, JSONSchemaProps, JSONSchemaPropsOrArray, JSONSchemaPropsOrBool,
};
use kube::CustomResourceExt;

use super::identity::KubesvcIdentity;
use super::{KubesvcAccount, KubesvcAgent, KubesvcMigration};

/// The definitions, each with its file name in `crds/`.
pub fn all() -> Vec<(&'static str, CustomResourceDefinition)> {
    let mut all = vec![
        ("kubesvcaccounts.yaml", unobserved_at_first(KubesvcAccount::crd())),
        ("kubesvcagents.yaml", KubesvcAgent::crd()),
        ("kubesvcidentities.yaml", KubesvcIdentity::crd()),
        ("kubesvcmigrations.yaml", unobserved_at_first(KubesvcMigration::crd())),
    ];
    for (_, crd) in &mut all {
        for version in &mut crd.spec.versions {
            let schema = version.schema.as_mut().and_then(|schema| schema.open_api_v3_schema.as_mut());
            schema.into_iter().for_each(use_known_formats);
        }
    }
    all
}

/// Replaces the formats of Rust's unsigned types by those of OpenAPI, since the API server warns about others at each
/// apply.
fn use_known_formats(schema: &mut JSONSchemaProps) {
    let bounds = match schema.format.as_deref() {
        Some("uint8") => Some(("int32", Some(f64::from(u8::MAX)))),
        Some("uint16") => Some(("int32", Some(f64::from(u16::MAX)))),
        Some("uint32") => Some(("int64", Some(f64::from(u32::MAX)))),
        Some("uint" | "uint64") => Some(("int64", None)),
        _ => None,
    };
    if let Some((format, most)) = bounds {
        schema.format = Some(format.to_owned());
        schema.minimum = schema.minimum.or(Some(0.0));
        schema.maximum = schema.maximum.or(most);
    }
    schema.properties.iter_mut().flatten().for_each(|(_, property)| use_known_formats(property));
    match &mut schema.items {
        Some(JSONSchemaPropsOrArray::Schema(items)) => use_known_formats(items),
        Some(JSONSchemaPropsOrArray::Schemas(all)) => all.iter_mut().for_each(use_known_formats),
        None => {}
    }
    if let Some(JSONSchemaPropsOrBool::Schema(values)) = &mut schema.additional_properties {
        use_known_formats(values);
    }
}

/// The definition of a kind whose status says whether it is processed. A new object's status starts with an
/// `observedGeneration` that no generation equals, so that kstatus, and with it Argo CD and Flux, sees it as in progress
/// until an operator has processed it.
fn unobserved_at_first(mut crd: CustomResourceDefinition) -> CustomResourceDefinition {
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
    fn unsigned_numbers_have_a_format_that_the_api_server_knows_and_their_bounds() {
        let unsigned =
            |format: &str| JSONSchemaProps { format: Some(format.to_owned()), ..Default::default() };
        let items = JSONSchemaPropsOrArray::Schema(Box::new(unsigned("uint32")));
        let list = JSONSchemaProps { items: Some(items), ..Default::default() };
        let values = JSONSchemaPropsOrBool::Schema(Box::new(unsigned("uint16")));
        let map = JSONSchemaProps { additional_properties: Some(values), ..Default::default() };
        let properties =
            [("list".to_owned(), list), ("map".to_owned(), map), ("n".to_owned(), unsigned("uint64"))];
        let mut schema = JSONSchemaProps { properties: Some(properties.into()), ..Default::default() };
        use_known_formats(&mut schema);
        let text = serde_json::to_string(&schema).expect("JSON");
        assert!(!text.contains("uint"), "{text}");
        let bounds = |text: &str, format: &str, most: &str| {
            text.contains(&format!("\"format\":\"{format}\",{most}\"minimum\":0.0"))
        };
        assert!(bounds(&text, "int64", "\"maximum\":4294967295.0,"), "{text}");
        assert!(bounds(&text, "int32", "\"maximum\":65535.0,"), "{text}");
        assert!(bounds(&text, "int64", ""), "{text}");
        for (file, crd) in all() {
            let text = serde_json::to_string(&crd).expect("JSON");
            assert!(!text.contains("\"uint"), "{file}");
        }
    }

    #[test]
    fn accounts_have_their_short_name_category_and_columns() {
        let names = KubesvcAccount::crd().spec.names;
        assert_eq!(names.short_names, Some(vec!["ksa".to_owned()]));
        assert_eq!(names.categories, Some(vec!["spinnaker".to_owned()]));
        let version = KubesvcAccount::crd().spec.versions.into_iter().next().expect("one version");
        let columns = version.additional_printer_columns.expect("columns");
        let shown: Vec<_> =
            columns.iter().map(|one| (one.name.as_str(), one.priority.unwrap_or(0))).collect();
        let expected = ["State", "Zone", "Agents", "Kube-Version", "Retries", "Age"].map(|name| (name, 0));
        assert_eq!(
            shown,
            [expected.as_slice(), &[("Cluster", 1), ("Spinnaker", 1), ("Message", 1)]].concat()
        );
    }
}
