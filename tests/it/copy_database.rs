//! `kubesvc-operator copy-database`, as a person runs it.

use std::process::{Command, Output};

use kubesvc_testkit::databases::{Kind, shared};
use kubesvc_testkit::{folder::Folder, must};

fn copy(arguments: &[&str]) -> (i32, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kubesvc-operator"));
    let ran = command.arg("copy-database").args(arguments).env_remove("KUBESVC_COPY_FROM").output();
    let Output { status, stdout, stderr } = must(ran.map_err(|error| error.to_string()));
    (status.code().unwrap_or(-1), String::from_utf8_lossy(&[stdout, stderr].concat()).into_owned())
}

#[tokio::test]
async fn accounts_are_copied_and_a_second_copy_needs_overwrite() {
    let folder = must(Folder::new("copy"));
    let from = shared(Kind::PostgreSql).await;
    let url = from.fresh_database().await;
    let to = format!("sqlite://{}", folder.file("kubesvc.db").display());
    let (code, said) = copy(&["--from", &url, "--to", &to]);
    assert_eq!((code, said.starts_with("Copied 0 accounts")), (0, true), "{said}");
    let name = url.rsplit('/').next().unwrap_or_default();
    let insert = "INSERT INTO kubesvc_accounts (name, uid, status, definition, props, max_watch_age_seconds) VALUES \
                  ('one', 'uid-1', 'ACTIVE', '{}', '{}', 1), ('theirs', NULL, 'ACTIVE', NULL, NULL, NULL)";
    must(from.execute(name, insert).await);
    let (code, said) = copy(&["--from", &url, "--to", &to]);
    assert_eq!(code, 0, "{said}");
    assert_eq!(
        said.trim(),
        "Copied 1 accounts, 0 of them with a list of namespaces, and 1 rows that are not kubesvc's."
    );
    let (code, said) = copy(&["--from", &url, "--to", &to]);
    assert_eq!((code, said.contains("--overwrite")), (1, true), "{said}");
    let (code, said) = copy(&["--from", &url, "--to", &to, "--overwrite"]);
    assert_eq!((code, said.contains("1 accounts that the target held")), (0, true), "{said}");
}

#[test]
fn copy_error_is_one_line_without_password() {
    let good = "sqlite:///no/such/folder/kubesvc.db";
    for (arguments, code, part) in [
        (
            vec!["--from", "postgres://me:hunter2@h", "--to", good],
            2,
            "--from: the database's URL has no name",
        ),
        (vec!["--from", good, "--to", "oracle://me:hunter2@h/d"], 2, "--to: the database's URL has a scheme"),
        (vec!["--from", good, "--to", good], 2, "the same database"),
        (vec!["--from", good, "--to", "mysql://me:hunter2@127.0.0.1:1/d"], 1, "/no/such/folder"),
        (vec!["--to", good], 2, "--from"),
    ] {
        let (ended, said) = copy(&arguments);
        assert_eq!(ended, code, "{arguments:?}: {said}");
        assert!(said.contains(part), "{arguments:?}: {said}");
        assert!(!said.contains("hunter2"), "{arguments:?}: {said}");
    }
    let (code, said) = copy(&["--help"]);
    assert!(code == 0 && said.contains("Stop the operator first") && said.contains("--overwrite"), "{said}");
}
