//! Ids and keys.

use sha2::{Digest, Sha256};

use crate::cache::keys::{MAX_ID_CHARS, ScopeKey, application_id, cluster_id, object_id, rel_hash};

#[test]
fn ids_have_clouddrivers_form() {
    assert_eq!(
        object_id("replicaSet", "prod", "default", "web-v001"),
        "kubernetes.v2:infrastructure:replicaSet:prod:default:web-v001"
    );
    assert_eq!(
        object_id("clusterRole", "prod", "", "system:node"),
        "kubernetes.v2:infrastructure:clusterRole:prod::system;node"
    );
    assert_eq!(application_id("web"), "kubernetes.v2:logical:applications:web");
    assert_eq!(
        cluster_id("prod", "web", "deployment web"),
        "kubernetes.v2:logical:clusters:prod:web:deployment web"
    );
}

#[test]
fn a_long_id_is_cut_by_characters_and_ends_in_the_digest_of_the_whole() {
    let account = "😀".repeat(255);
    let id = object_id("pod", &account, &"n".repeat(63), &"x".repeat(253));
    let whole = format!("kubernetes.v2:infrastructure:pod:{account}:{}:{}", "n".repeat(63), "x".repeat(253));
    assert_eq!(id.chars().count(), MAX_ID_CHARS);
    let (kept, digest) = id.rsplit_once('~').expect("a digest");
    assert_eq!(kept, whole.chars().take(447).collect::<String>());
    assert_eq!(digest, hex::encode(Sha256::digest(&whole)));
}

#[test]
fn an_id_of_512_characters_is_whole() {
    let head = "kubernetes.v2:infrastructure:pod:a:n:".len();
    let longest = object_id("pod", "a", "n", &"é".repeat(512 - head));
    assert!(longest.ends_with('é') && longest.chars().count() == 512);
    let longer = object_id("pod", "a", "n", &"é".repeat(513 - head));
    assert!(longer.contains('~') && longer.chars().count() == 512);
}

#[test]
fn names_that_look_alike_have_ids_of_their_own() {
    let id = |name: &str| object_id("clusterRole", "prod", "", name);
    let semicolon = id("a;b");
    let forged = id(semicolon.rsplit(':').next().unwrap_or_default());
    let ids = [id("a:b"), semicolon, forged, id("A:b")];
    let distinct: std::collections::BTreeSet<_> = ids.iter().collect();
    assert_eq!(distinct.len(), ids.len(), "{ids:?}");
}

#[test]
fn a_relations_id_is_half_a_digest_of_its_ends() {
    let expected = &hex::encode(Sha256::digest("a\0b\0applications"))[..32];
    assert_eq!(rel_hash("a", "b", "applications"), expected);
    assert_ne!(rel_hash("a", "b", "clusters"), expected);
}

#[test]
fn scopes_are_written_and_read() {
    for (text, namespace, group, kind) in [
        (":.Pod", "", "", "Pod"),
        ("default:apps.Deployment", "default", "apps", "Deployment"),
        (":argoproj.io.Rollout", "", "argoproj.io", "Rollout"),
    ] {
        let key: ScopeKey = text.parse().expect("a scope");
        assert_eq!((key.namespace.as_str(), key.group.as_str(), key.kind.as_str()), (namespace, group, kind));
        assert_eq!(key.to_string(), text);
        assert_eq!(key.row_id("prod"), format!("prod:{text}"));
    }
}

#[test]
fn what_names_no_scope_is_refused_with_the_text() {
    let long = format!("{}:.Pod", "n".repeat(64));
    for bad in ["", "Pod", ":Pod", "a:b:c.Kind", ":apps.", "a:x.K\0", &long, &"x".repeat(2000)] {
        let error = bad.parse::<ScopeKey>().expect_err(bad).to_string();
        assert!(error.contains("names no scope") && error.len() < 700, "{error}");
    }
}
