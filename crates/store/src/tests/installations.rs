//! A database belongs to one installation, on every database.

use crate::tests::contract::row;
use kubesvc_core::Installation;

use crate::{InstallationClaim, OpenOptions, StoreError, VendorTables, open};
use kubesvc_testkit::must;

fn installation(uid: &str) -> Installation {
    Installation { namespace: format!("namespace-{uid}"), uid: uid.to_owned() }
}

fn as_installation(uid: &str, replaces: bool) -> OpenOptions {
    OpenOptions {
        vendor: VendorTables::Refuse,
        claim: Some(InstallationClaim { by: installation(uid), replaces }),
    }
}

/// Returns the owner that keeps another installation out.
async fn kept_out(url: &str, uid: &str) -> Option<Installation> {
    match open(url, as_installation(uid, false)).await {
        Ok(_) => None,
        Err(StoreError::Claimed { owner, .. }) => Some(owner),
        Err(error) => must(Err(error.in_full())),
    }
}

/// Plays two installations on the database of a URL.
pub(super) async fn database_belongs_to_the_installation_that_opened_it_first(url: &str) {
    // An older version has left rows and no owner.
    let store = open(url, VendorTables::Refuse).await.expect("it opens");
    store.put_accounts(&[row("one", "uid-1")]).await.expect("written");
    drop(store);
    for _ in 0..2 {
        assert_eq!(kept_out(url, "first").await, None);
    }
    assert_eq!(kept_out(url, "second").await, Some(installation("first")));
    assert!(kept_out(url, "first").await.is_none(), "the refusal has changed nothing");

    let store = open(url, as_installation("second", true)).await.expect("it is claimed");
    assert_eq!(store.accounts().await.expect("the accounts").rows, [row("one", "uid-1")]);
    drop(store);
    assert_eq!(kept_out(url, "second").await, None);
    assert_eq!(kept_out(url, "first").await, Some(installation("second")));
}
