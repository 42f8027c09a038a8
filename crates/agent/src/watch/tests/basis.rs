//! How a list differs from the rows that the hub has.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::super::basis::{Basis, BasisKey, BasisMatch};
use super::*;

impl Basis {
    fn len(&self) -> usize {
        self.starts.len()
    }

    /// Memory of the basis, in bytes.
    fn memory_bytes(&self) -> usize {
        self.rows.capacity() + self.starts.capacity() * 4 + self.seen.capacity() * 8
    }
}

const UUID: &str = "0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0";

fn identity(namespace: &str, name: &str, uid: &str, version: &str) -> ObjectIdentity {
    ObjectIdentity {
        namespace: namespace.to_owned(),
        name: name.to_owned(),
        uid: uid.to_owned(),
        resource_version: version.to_owned(),
    }
}

fn basis(rows: &[[&str; 4]]) -> Basis {
    let mut basis = Basis::default();
    for [namespace, name, uid, version] in rows {
        basis.push(namespace, name, uid, version).unwrap();
    }
    basis
}

#[test]
fn equal_changed_new_and_gone_objects_are_told_apart() {
    let mut basis = basis(&[
        ["b", "x", UUID, "5"],
        ["a", "x", UUID, "5"],
        ["", "x", "odd", "v5"],
        ["a", "gone", UUID, "05"],
        ["a", "other", UUID, "5"],
    ]);
    assert_eq!(basis.take(&identity("a", "x", UUID, "5")), BasisMatch::Equal);
    assert_eq!(basis.take(&identity("b", "x", UUID, "6")), BasisMatch::Changed);
    assert_eq!(basis.take(&identity("", "x", "odd", "v5")), BasisMatch::Equal);
    assert_eq!(basis.take(&identity("a", "other", "another", "5")), BasisMatch::Changed);
    assert_eq!(basis.take(&identity("a", "y", UUID, "5")), BasisMatch::New);
    assert_eq!(basis.take(&identity("c", "x", UUID, "5")), BasisMatch::New);
    let gone = BasisKey {
        namespace: "a".to_owned(),
        name: "gone".to_owned(),
        uid: UUID.to_owned(),
        resource_version: "05".to_owned(),
    };
    assert_eq!(basis.leftover().collect::<Vec<_>>(), [gone]);
}

#[test]
fn row_without_uid_or_version_is_never_equal() {
    let mut basis = basis(&[["a", "x", "", "5"], ["a", "y", UUID, ""]]);
    assert_eq!(basis.take(&identity("a", "x", "", "5")), BasisMatch::Changed);
    assert_eq!(basis.take(&identity("a", "y", UUID, "")), BasisMatch::Changed);
}

#[test]
fn row_that_came_twice_is_not_left_over() {
    let mut basis = basis(&[["a", "x", UUID, "5"], ["a", "x", UUID, "5"]]);
    basis.take(&identity("a", "x", UUID, "5"));
    assert_eq!((basis.len(), basis.leftover().next()), (1, None));
}

#[test]
fn texts_that_look_alike_are_different() {
    let upper = UUID.to_uppercase();
    for (one, other) in [
        ("5", "05"),
        ("5", "+5"),
        ("0", "00"),
        (UUID, upper.as_str()),
        ("18446744073709551615", "18446744073709551616"),
    ] {
        let mut basis = basis(&[["a", "x", one, one]]);
        assert_eq!(basis.take(&identity("a", "x", other, other)), BasisMatch::Changed, "{one} {other}");
        assert_eq!(basis.take(&identity("a", "x", one, one)), BasisMatch::Equal, "{one}");
    }
}

#[test]
fn row_takes_about_80_bytes() {
    let mut basis = Basis::default();
    for index in 0..10_000 {
        let uid = format!("0f1e2d3c-4b5a-6978-8796-a5b4{index:08}");
        basis
            .push(
                "a-namespace-of-shop",
                &format!("a-deployment-of-shop-7d9c5b6f4-{index:05}"),
                &uid,
                "123456789",
            )
            .unwrap();
    }
    basis.take(&identity("a", "x", "", ""));
    assert!(basis.memory_bytes() / basis.len() < 160, "{}", basis.memory_bytes() / basis.len());
}

#[test]
fn rows_that_are_left_over_take_no_memory_beside_the_basis() {
    let mut basis = Basis::default();
    for index in 0..10_000 {
        basis.push("shop", &format!("object-{index:05}"), UUID, "123456789").unwrap();
    }
    basis.take(&identity("shop", "object-00007", UUID, "123456789"));
    let reserved = basis.memory_bytes();
    let mut leftover = basis.leftover();
    assert_eq!((leftover.len(), leftover.basis.memory_bytes()), (9_999, reserved));
    assert_eq!(leftover.by_ref().take(8).last().unwrap().name, "object-00008");
    assert_eq!((leftover.len(), leftover.basis.memory_bytes()), (9_991, reserved));
}

proptest! {
    #[test]
    fn basis_is_a_map_with_less_memory(
        rows in prop::collection::btree_map(("[a-c]{0,2}", "[a-c]{1,3}"), ("[0-9a-f]{0,3}", "[0-9]{1,3}"), 0..30),
        objects in prop::collection::btree_map(("[a-c]{0,2}", "[a-c]{1,3}"), ("[0-9a-f]{0,3}", "[0-9]{1,3}"), 0..30),
    ) {
        let mut basis = Basis::default();
        for ((namespace, name), (uid, version)) in rows.iter().rev() {
            basis.push(namespace, name, uid, version).unwrap();
        }
        for ((namespace, name), (uid, version)) in &objects {
            let expected = match rows.get(&(namespace.clone(), name.clone())) {
                None => BasisMatch::New,
                Some(row) if row == &(uid.clone(), version.clone()) && !uid.is_empty() => BasisMatch::Equal,
                Some(_) => BasisMatch::Changed,
            };
            prop_assert_eq!(basis.take(&identity(namespace, name, uid, version)), expected);
        }
        let leftover = basis.leftover();
        let promised = leftover.len();
        let mut leftover: Vec<_> = leftover.collect();
        prop_assert_eq!(leftover.len(), promised);
        leftover.sort();
        let expected: BTreeMap<_, _> = rows.into_iter().filter(|(key, _)| !objects.contains_key(key)).collect();
        let expected: Vec<BasisKey> = expected.into_iter().map(|((namespace, name), (uid, resource_version))| {
            BasisKey { namespace, name, uid, resource_version }
        }).collect();
        prop_assert_eq!(leftover, expected);
    }
}
