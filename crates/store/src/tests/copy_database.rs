use tempfile::TempDir;

use crate::copy_database::{Copied, ForeignTableRow, copy};
use crate::tests::contract::row;
use crate::{IntentRow, PushedRow, StoreError, VendorTables, open, open_database};
use kubesvc_core::account_row::AccountRow;
use kubesvc_testkit::databases::{Kind, shared};

/// A complete foreign row.
fn other(name: &str) -> ForeignTableRow {
    let text = |value: &str| Some(value.to_owned());
    ForeignTableRow {
        texts: vec![
            text(name),
            text("ACTIVE"),
            text("zone ü"),
            text("theirs"),
            text("{}"),
            None,
            text("https://h"),
            None,
            text("AB"),
            None,
            text("[\"a\"]"),
            text("why"),
        ],
        numbers: vec![
            Some(1),
            Some(300_000),
            Some(7),
            Some(-1),
            None,
            Some(i64::MAX),
            Some(0),
            Some(2),
            Some(1_700_000_000_001),
        ],
    }
}

/// A row of an account registered in Clouddriver.
fn pushed(name: &str) -> PushedRow {
    PushedRow {
        name: name.to_owned(),
        account_uid: format!("uid-{name}"),
        state: "ADDED".to_owned(),
        body_version: 1,
        body_hash: Some("ab".repeat(32)),
        pushed_at: Some(1_700_000_000_000),
    }
}

fn intent(name: &str) -> IntentRow {
    IntentRow {
        name: name.to_owned(),
        verb: "PUT".to_owned(),
        body_hash: None,
        replica_id: "operator-0".to_owned(),
        started_at: 1_700_000_000_000,
        tries: 2,
    }
}

/// Copies back and forth between two databases.
async fn copies(from: &str, to: &str) {
    let rows: Vec<AccountRow> =
        (0..700).map(|at| row(&format!("row-{at:03}"), &format!("uid-{at}"))).collect();
    let others = vec![other("their-a"), other("their-b")];
    {
        let from = open_database(from, VendorTables::Refuse).await.expect("it opens");
        from.put_accounts(&rows).await.expect("written");
        assert!(from.put_namespaces("uid-7", &["a".to_owned(), "b".to_owned()]).await.expect("a list"));
        from.put_others(&others).await.expect("written");
        assert_eq!(from.others().await.expect("read"), others);
        from.put_pushed(None, &[pushed("row-000"), pushed("row-001")]).await.expect("written");
        from.begin_intents(&[intent("row-000")]).await.expect("written");
    }
    let mut seen = (0, 0);
    let copied = copy(from, to, false, |done, of| seen = (done, of)).await.expect("copied");
    let wanted = Copied { accounts: 700, namespaces: 1, others: 2, pushed: 2, ..Copied::default() };
    assert_eq!((copied, seen), (wanted, (702, 702)));
    {
        let to = open_database(to, VendorTables::Refuse).await.expect("it opens");
        assert_eq!(to.accounts().await.expect("the accounts").rows, rows);
        assert_eq!(
            to.namespaces("row-007").await.expect("a list"),
            Some(vec!["a".to_owned(), "b".to_owned()])
        );
        assert_eq!(to.others().await.expect("read"), others);
        assert_eq!(to.pushed().await.expect("read"), [pushed("row-000"), pushed("row-001")]);
        to.put_accounts(&[row("more", "uid-more")]).await.expect("written");
        assert_eq!(to.intents().await.expect("read"), [intent("row-000")]);
        to.put_pushed(None, &[pushed("more")]).await.expect("written");
        to.begin_intents(&[intent("more")]).await.expect("written");
    }
    let error = copy(from, to, false, |_, _| {}).await.expect_err("refused");
    assert!(
        matches!(&error, StoreError::Unfit(why) if why.contains("701 accounts") && why.contains("--overwrite"))
    );
    let copied = copy(from, to, true, |_, _| {}).await.expect("copied");
    let wanted = Copied {
        accounts: 700,
        namespaces: 1,
        others_there: 2,
        deleted: 701,
        pushed: 2,
        ..Copied::default()
    };
    assert_eq!(copied, wanted);
    let to = open(to, VendorTables::Refuse).await.expect("it opens");
    assert_eq!(to.accounts().await.expect("the accounts").rows, rows);
    assert_eq!(to.intents().await.expect("read"), [intent("row-000")]);
    assert_eq!(
        to.pushed().await.expect("read"),
        [pushed("row-000"), pushed("row-001")],
        "none of the target's own is left"
    );
}

#[tokio::test]
async fn a_target_that_knows_registered_accounts_alone_is_refused() {
    let ((from, _from), (to, _to)) = (sqlite(), sqlite());
    let target = open(&to, VendorTables::Refuse).await.expect("it opens");
    target.put_pushed(None, &[pushed("leaving")]).await.expect("written");
    drop(target);
    let error = copy(&from, &to, false, |_, _| {}).await.expect_err("refused");
    assert!(
        matches!(&error, StoreError::Unfit(why) if why.contains("1 accounts that kubesvc registered") && why.contains("--overwrite")),
        "{error}"
    );
    copy(&from, &to, true, |_, _| {}).await.expect("copied");
    let target = open(&to, VendorTables::Refuse).await.expect("it opens");
    assert_eq!(target.pushed().await.expect("read"), []);
}

fn sqlite() -> (String, TempDir) {
    let folder = tempfile::tempdir().expect("a folder");
    (format!("sqlite://{}/kubesvc.db", folder.path().display()), folder)
}

#[tokio::test]
async fn sqlite_is_copied_to_postgresql() {
    let (from, _folder) = sqlite();
    copies(&from, &shared(Kind::PostgreSql).await.fresh_database().await).await;
}

#[tokio::test]
async fn postgresql_is_copied_to_mariadb() {
    let (from, to) = (shared(Kind::PostgreSql).await, shared(Kind::MariaDb).await);
    copies(&from.fresh_database().await, &to.fresh_database().await).await;
}

#[tokio::test]
async fn mariadb_is_copied_to_sqlite() {
    let (to, _folder) = sqlite();
    copies(&shared(Kind::MariaDb).await.fresh_database().await, &to).await;
}

#[tokio::test]
async fn a_sqlite_file_in_use_is_not_copied() {
    let (from, _folder) = sqlite();
    let operator = open(&from, VendorTables::Refuse).await.expect("it opens");
    let (to, _folder) = sqlite();
    let error = copy(&from, &to, false, |_, _| {}).await.expect_err("in use");
    let why = error.to_string();
    assert!(matches!(error, StoreError::InUse { .. }), "{why}");
    assert!(why.contains("another process") && why.contains("end it first"), "{why}");
    drop(operator);
    assert_eq!(copy(&from, &to, false, |_, _| {}).await.expect("copied"), Copied::default());
}
