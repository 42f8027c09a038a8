//! What is cut out of a body, what is put in, and what counts for its hash.

use super::*;

/// A Pod with these further members of its metadata, and after it.
fn pod(metadata: &str, rest: &str) -> String {
    format!(
        r#"{{"kind":"Pod","apiVersion":"v1","metadata":{{"name":"web","namespace":"shop","uid":"u","resourceVersion":"7"{metadata}}}{rest}}}"#
    )
}

#[test]
fn body_without_anything_to_cut_stays_byte_for_byte() {
    let object = pod(r#","labels":{"a":"\u00e9"}"#, r#","spec":{ "n": 1.50e+3, "z":0, "a" :[1,2]}"#);
    assert_eq!(body(&scrubbed_event(pods(), &object)), object);
}

#[test]
fn managed_fields_self_link_and_last_applied_are_cut() {
    let plain = body(&scrubbed_event(pods(), pod("", "")));
    let cut = [
        r#","managedFields":[{"manager":"x"}]"#,
        r#","selfLink":"/api/v1","managedFields":null"#,
        r#","m\u0061nagedFields":{},"selfLink":[{}]"#,
    ];
    for metadata in cut {
        assert_eq!(body(&scrubbed_event(pods(), pod(metadata, ""))), plain);
    }
    let annotated = pod(
        r#","annotations":{"kubectl.kubernetes.io/last-applied-configuration":"{\"a\":\"}\"}","b":"c"}"#,
        "",
    );
    let expected = pod(r#","annotations":{"b":"c"}"#, "");
    assert_eq!(body(&scrubbed_event(pods(), annotated)), expected);
    let alone = pod(r#","annotations":{"kubectl.kubernetes.io\/last-applied-configuration":"x"}"#, "");
    assert_eq!(body(&scrubbed_event(pods(), alone)), pod(r#","annotations":{}"#, ""));
}

#[test]
fn member_is_cut_wherever_it_stands() {
    let metadata = |members: &[&str]| format!(r#"{{"metadata":{{{}}}}}"#, members.join(","));
    let kept = [r#""name":"web""#, r#""resourceVersion":"7""#];
    let expected = format!(r#"{{"kind":"Pod","apiVersion":"v1",{}"#, &metadata(&kept)[1..]);
    for mask in 0..8 {
        let mut members = Vec::new();
        for place in 0..3 {
            if mask >> place & 1 == 1 {
                members.extend([r#""managedFields":[1]"#, r#""selfLink":"x""#]);
            }
            members.extend(kept.get(place));
        }
        assert_eq!(body(&scrubbed_event(pods(), metadata(&members))), expected, "{members:?}");
    }
}

#[test]
fn secret_has_only_type_and_metadata() {
    let object = r#"{"data":{"p":"x"},"kind":"Secret","immutable":true,"apiVersion":"v1","metadata":{"name":"a","resourceVersion":"1"},"stringData":{},"type":"Opaque","d\u0061ta":1}"#;
    let expected = r#"{"kind":"Secret","apiVersion":"v1","metadata":{"name":"a","resourceVersion":"1"}}"#;
    assert_eq!(body(&scrubbed_event(secrets(), object)), expected);
}

#[test]
fn secret_has_only_short_annotations_of_spinnaker_helm_and_service_accounts() {
    let with = |annotations: &str| {
        format!(
            r#"{{"kind":"Secret","apiVersion":"v1","metadata":{{"name":"a","resourceVersion":"1","annotations":{{{annotations}}}}}}}"#
        )
    };
    let (short, long) = ("x".repeat(1024), "x".repeat(1025));
    let kept = format!(
        r#""moniker.spinnaker.io/application":"shop","meta.helm.sh/release-name":"{short}","kubernetes.io/service-account.name":"bot""#
    );
    let others = format!(
        r#""field.cattle.io/x":"S3CRET",{kept},"kapp.k14s.io/original":"S3CRET","caching.spinnaker.io/ignored":"{long}","artifact.spinnaker.io/x":7,"kubernetes.io/description":"d""#
    );
    let event = scrubbed_event(secrets(), with(&others));
    assert_eq!(body(&event), with(&kept));
    let all = ObjectRules { meta_keys: [String::new()].into(), ..secrets() };
    let sent =
        scrubbed_event(all, with(r#""kapp.k14s.io/original":"S3CRET","meta.helm.sh/release-name":"r""#));
    assert_eq!(sent.meta.keys().collect::<Vec<_>>(), ["meta.helm.sh/release-name"]);
    let pod = ObjectRules { is_secret: false, ..secrets() };
    assert_eq!(body(&scrubbed_event(pod, with(&others))), with(&others), "other kinds keep theirs");
}

#[test]
fn partial_metadata_gets_the_type_of_the_scope() {
    let object = r#"{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/v1","metadata":{"name":"a","resourceVersion":"1"}}"#;
    let expected = r#"{"kind":"Secret","apiVersion":"v1","metadata":{"name":"a","resourceVersion":"1"}}"#;
    assert_eq!(body(&scrubbed_event(secrets(), object)), expected);
    let last = r#"{"metadata":{"name":"a","resourceVersion":"1"},"apiVersion":"meta.k8s.io/v1","kind":"PartialObjectMetadata"}"#;
    assert_eq!(body(&scrubbed_event(secrets(), last)), expected);
}

#[test]
fn list_item_has_the_bytes_and_the_hash_of_the_object_in_a_watch() {
    let watched = pod("", r#","spec":{}"#);
    let listed = watched.replacen(r#""kind":"Pod","apiVersion":"v1","#, "", 1);
    let (watched, listed) = (scrubbed_event(pods(), &watched), scrubbed_event(pods(), &listed));
    assert_eq!((body(&watched), &watched.hash), (body(&listed), &listed.hash));
}

#[test]
fn only_the_missing_half_of_the_type_is_inserted() {
    let metadata = r#""metadata":{"name":"a","resourceVersion":"1"}"#;
    let object = format!(r#"{{"apiVersion":"v1",{metadata}}}"#);
    assert_eq!(
        body(&scrubbed_event(pods(), object)),
        format!(r#"{{"kind":"Pod","apiVersion":"v1",{metadata}}}"#)
    );
    let odd = ObjectRules { kind: "Po\"d".to_owned(), ..pods() };
    let body = body(&scrubbed_event(odd, format!("{{{metadata}}}")));
    assert_eq!(body, format!(r#"{{"kind":"Po\"d","apiVersion":"v1",{metadata}}}"#));
}

#[test]
fn crd_has_no_schemas() {
    let crd = |schema: &str| {
        format!(
            r#"{{"kind":"CustomResourceDefinition","apiVersion":"apiextensions.k8s.io/v1","metadata":{{"name":"a.b","resourceVersion":"1"}},"spec":{{"group":"b","versions":[{{"name":"v1"{schema},"served":true}},{{{}"name":"v2"}},{{}}],"schema":1}}}}"#,
            if schema.is_empty() { "" } else { r#""sch\u0065ma":{},"# }
        )
    };
    let rules = ObjectRules { is_crd: true, ..pods() };
    let object = crd(r#","schema":{"openAPIV3Schema":{"properties":{"data":{"type":"string"}}}}"#);
    assert_eq!(body(&scrubbed_event(rules.clone(), object)), crd(""));
    let odd = r#"{"metadata":{"name":"a.b","resourceVersion":"1"},"spec":{"versions":{"schema":1}}}"#;
    assert_eq!(
        outcome(&scrub(rules, odd)),
        "omitted: the body of Pod \"a.b\" in namespace \"\" is left out: spec.versions has another type than in Kubernetes"
    );
}

#[test]
fn hash_ignores_version_and_what_is_cut_and_nothing_else() {
    let hash = |object: String| scrubbed_event(pods(), object).hash;
    let plain = hash(pod("", r#","spec":{"a":1}"#));
    assert_eq!(plain.len(), 32);
    let later =
        pod("", r#","spec":{"a":1}"#).replacen(r#""resourceVersion":"7""#, r#""resourceVersion":"1234""#, 1);
    assert_eq!(hash(later), plain);
    assert_eq!(hash(pod(r#","managedFields":[1,2]"#, r#","spec":{"a":1}"#)), plain);
    assert_ne!(hash(pod("", r#","spec":{"a":2}"#)), plain);
    assert_ne!(hash(pod(r#","generation":2"#, r#","spec":{"a":1}"#)), plain);
    // The version of another object within the body counts.
    let nested = |version: &str| hash(pod("", &format!(r#","spec":{{"resourceVersion":"{version}"}}"#)));
    assert_ne!(nested("1"), nested("2"));
}
