//! Clouddriver's table on real servers, read by a user with SELECT alone.

use std::collections::HashMap;

use sqlx::{AssertSqlSafe, Connection as _, MySqlConnection, PgConnection};

use crate::{
    ClouddriverBody, ClouddriverDatabase, ClouddriverRow, ClouddriverScan, ClouddriverTableError,
    check_clouddriver_url, scan_clouddriver_accounts,
};
use kubesvc_testkit::databases::{Kind, Server, shared};
use kubesvc_testkit::must;

const PASSWORD: &str = "hunter2/@";

/// A database with Clouddriver's table, and a user who may only read it.
struct Clouddriver {
    server: &'static Server,
    url: String,
    name: String,
    reader: ClouddriverDatabase,
}

impl Clouddriver {
    /// `body` is the type of that column.
    async fn new(kind: Kind, body: &str) -> Self {
        let server = shared(kind).await;
        let url = server.fresh_database().await;
        let name = url.rsplit('/').next().expect("a name").to_owned();
        let user = format!("r{}", &name[2..]);
        // As Clouddriver's changelog makes it.
        let table = format!(
            "CREATE TABLE accounts (id varchar(255) PRIMARY KEY, type varchar(50) NOT NULL, body {body} NOT NULL, \
             created_at bigint NOT NULL, last_modified_at bigint NOT NULL, last_modified_by varchar(255) NOT NULL)"
        );
        let grant = match kind {
            Kind::MariaDb => format!(
                "CREATE USER {user}@'%' IDENTIFIED BY '{PASSWORD}'; GRANT SELECT ON {name}.accounts TO {user}@'%'"
            ),
            Kind::PostgreSql => {
                format!("CREATE USER {user} PASSWORD '{PASSWORD}'; GRANT SELECT ON accounts TO {user}")
            }
        };
        let collation = match kind {
            Kind::MariaDb => " CHARACTER SET utf8mb4 COLLATE utf8mb4_unicode_ci",
            Kind::PostgreSql => "",
        };
        let scheme = url.split("://").next().expect("a scheme");
        let reader = ClouddriverDatabase {
            url: format!("{scheme}://{user}@127.0.0.1:{}/{name}", server.port()),
            password: Some(PASSWORD.into()),
            authority: None,
        };
        let clouddriver = Self { server, url: url.clone(), name, reader };
        clouddriver
            .by_hand(&format!("{table}{collation}; CREATE INDEX accounts_type_index ON accounts (type)"))
            .await;
        clouddriver.by_hand(&grant).await;
        clouddriver
    }

    async fn by_hand(&self, sql: &str) {
        must(self.server.execute(&self.name, sql).await);
    }

    async fn put(&self, id: &str, kind: &str, body: &str, time: i64) {
        self.by_hand(&format!(
            "INSERT INTO accounts VALUES ('{id}', '{kind}', '{body}', 1, {time}, 'anonymous')"
        ))
        .await;
    }

    /// Everything in the table, as one text.
    async fn digest(&self) -> String {
        let sql = |text: &str, list: &str| {
            format!("SELECT coalesce({list}, '') FROM (SELECT {text} AS line FROM accounts) AS listed")
        };
        let columns = ["id", "type", "body", "created_at", "last_modified_at", "last_modified_by"];
        match self.server.kind() {
            Kind::MariaDb => {
                let text = format!("MD5(CONCAT_WS('|', {}))", columns.join(", "));
                let mut connection = MySqlConnection::connect(&self.url).await.expect("a connection");
                let sql = AssertSqlSafe(sql(&text, "GROUP_CONCAT(line ORDER BY line)"));
                sqlx::query_scalar(sql).fetch_one(&mut connection).await.expect("a digest")
            }
            Kind::PostgreSql => {
                let text = format!("md5(concat_ws('|', {}))", columns.join(", "));
                let mut connection = PgConnection::connect(&self.url).await.expect("a connection");
                let sql = AssertSqlSafe(sql(&text, "string_agg(line, ',' ORDER BY line)"));
                sqlx::query_scalar(sql).fetch_one(&mut connection).await.expect("a digest")
            }
        }
    }

    async fn scan(&self, known: &HashMap<String, i64>) -> ClouddriverScan {
        scan_clouddriver_accounts(&self.reader, known).await.expect("it may be read")
    }
}

fn text(row: &ClouddriverRow) -> &str {
    match &row.body {
        ClouddriverBody::Text(text) => text,
        ClouddriverBody::Known => "(known)",
        ClouddriverBody::Missing => "(missing)",
        ClouddriverBody::TooLarge => "(too large)",
    }
}

fn times(scan: &ClouddriverScan) -> HashMap<String, i64> {
    scan.rows.iter().map(|row| (row.id.clone(), row.last_modified_at)).collect()
}

/// A scan reads ids and times, and bodies of changed rows only; it writes nothing.
async fn scan_reads_bodies_of_changed_rows_only(kind: Kind, body: &str) {
    let clouddriver = Clouddriver::new(kind, body).await;
    for (id, kind, time) in
        [("b", "kubernetes", 5), ("a", "kubernetes", 5), ("", "kubernetes", 5), ("aws", "aws", 5)]
    {
        clouddriver.put(id, kind, &format!(r#"{{"name":"{id}"}}"#), time).await;
    }
    let before = clouddriver.digest().await;
    let first = clouddriver.scan(&HashMap::new()).await;
    assert_eq!(first.rows.iter().map(|row| row.id.as_str()).collect::<Vec<_>>(), ["", "a", "b"]);
    assert_eq!(text(&first.rows[1]).replace(' ', ""), r#"{"name":"a"}"#);
    assert_eq!(first.unread, None);
    let again = clouddriver.scan(&times(&first)).await;
    assert!(again.rows.iter().all(|row| row.body == ClouddriverBody::Known));
    assert_eq!(clouddriver.digest().await, before, "a scan writes nothing");
    clouddriver.by_hand(r#"UPDATE accounts SET body = '{"x":1}', last_modified_at = 6 WHERE id = 'b'; DELETE FROM accounts WHERE id = 'a'"#).await;
    let changed = clouddriver.scan(&times(&first)).await;
    let shown: Vec<_> = changed
        .rows
        .iter()
        .map(|row| (row.id.as_str(), row.last_modified_at, text(row).replace(' ', "")))
        .collect();
    assert_eq!(shown, [("", 5, "(known)".to_owned()), ("b", 6, r#"{"x":1}"#.to_owned())]);
}

/// More rows than a page has, and one body that is too large.
async fn all_pages_are_read_and_bodies_are_bounded(kind: Kind) {
    let clouddriver = Clouddriver::new(kind, "text").await;
    let clouddriver = match kind {
        Kind::MariaDb => {
            clouddriver.by_hand("ALTER TABLE accounts MODIFY body longtext NOT NULL").await;
            clouddriver
        }
        Kind::PostgreSql => clouddriver,
    };
    for chunk in (0..2500).collect::<Vec<_>>().chunks(500) {
        let rows: Vec<_> =
            chunk.iter().map(|n| format!("('n{n:04}', 'kubernetes', '{{}}', 1, 1, 'x')")).collect();
        clouddriver.by_hand(&format!("INSERT INTO accounts VALUES {}", rows.join(","))).await;
    }
    let large = "repeat('x', 1048577)";
    clouddriver.by_hand(&format!("UPDATE accounts SET body = {large} WHERE id = 'n1000'")).await;
    let scan = clouddriver.scan(&HashMap::new()).await;
    assert_eq!((scan.rows.len(), scan.unread), (2500, None));
    assert!(scan.rows.windows(2).all(|pair| pair[0].id < pair[1].id));
    let large: Vec<_> = scan
        .rows
        .iter()
        .filter(|row| row.body == ClouddriverBody::TooLarge)
        .map(|row| row.id.as_str())
        .collect();
    assert_eq!(large, ["n1000"]);
}

/// What is wrong is said with its remedy, and without a password.
async fn problems_are_named_without_the_password(kind: Kind) {
    let clouddriver = Clouddriver::new(kind, "text").await;
    let error = async |database: &ClouddriverDatabase| {
        let scan = scan_clouddriver_accounts(database, &HashMap::new()).await;
        let error = scan.err().expect("it cannot be read");
        let whole = format!("{error} {error:?}");
        assert!(!whole.contains("hunter2"), "{whole}");
        error
    };
    let wrong = ClouddriverDatabase { password: Some("hunter2-wrong".into()), ..clouddriver.reader.clone() };
    assert!(matches!(error(&wrong).await, ClouddriverTableError::Login { .. }));
    let gone = ClouddriverDatabase {
        url: clouddriver.reader.url.replace("127.0.0.1:", "127.0.0.1:1"),
        ..clouddriver.reader.clone()
    };
    let said = error(&gone).await;
    assert!(matches!(said, ClouddriverTableError::Unavailable { .. } | ClouddriverTableError::Url), "{said}");
    let authority =
        ClouddriverDatabase { authority: Some("/nowhere/ca.pem".into()), ..clouddriver.reader.clone() };
    assert!(matches!(error(&authority).await, ClouddriverTableError::Unavailable { .. }));
    let user = clouddriver
        .reader
        .url
        .split_once("://")
        .and_then(|(_, rest)| rest.split_once('@'))
        .expect("a user")
        .0;
    let (revoke, grant) = match kind {
        Kind::MariaDb => (
            format!(
                "REVOKE SELECT ON {}.accounts FROM {user}@'%'; GRANT CREATE ON {}.other TO {user}@'%'",
                clouddriver.name, clouddriver.name
            ),
            "DROP TABLE accounts".to_owned(),
        ),
        Kind::PostgreSql => {
            (format!("REVOKE SELECT ON accounts FROM {user}"), "DROP TABLE accounts".to_owned())
        }
    };
    clouddriver.by_hand(&revoke).await;
    assert!(matches!(error(&clouddriver.reader).await, ClouddriverTableError::Denied { .. }));
    clouddriver.by_hand(&grant).await;
    if kind == Kind::MariaDb {
        clouddriver.by_hand(&format!("GRANT SELECT ON {}.* TO {user}@'%'", clouddriver.name)).await;
    }
    let said = error(&clouddriver.reader).await;
    assert!(matches!(said, ClouddriverTableError::NoTable { .. }), "{said:?}");
}

macro_rules! stories {
    ($kind:expr, $module:ident, $($body:literal: $story:ident),+) => {
        mod $module {
            use super::*;

            $(#[tokio::test]
            async fn $story() {
                scan_reads_bodies_of_changed_rows_only($kind, $body).await;
            })+

            #[tokio::test]
            async fn all_pages_are_read_and_bodies_are_bounded() {
                super::all_pages_are_read_and_bodies_are_bounded($kind).await;
            }

            #[tokio::test]
            async fn problems_are_named_without_the_password() {
                super::problems_are_named_without_the_password($kind).await;
            }
        }
    };
}

stories!(
    Kind::MariaDb, mariadb,
    "json": bodies_in_json_are_read_once, "longtext": bodies_in_text_are_read_once
);
stories!(
    Kind::PostgreSql, postgresql,
    "json": bodies_in_json_are_read_once, "jsonb": bodies_in_jsonb_are_read_once, "text": bodies_in_text_are_read_once
);

#[test]
fn url_has_no_password_and_names_a_server() {
    for url in
        ["mysql://u@h/d", "mariadb://u@h:3307/d?ssl-ca=/ca.pem", "postgres://u@h/d?sslmode=verify-full"]
    {
        check_clouddriver_url(url).expect(url);
    }
    for url in [
        "",
        "sqlite://x.db",
        "mysql://u:hunter2@h/d",
        "jdbc:mysql://h/d",
        "mysql://h/d",
        "postgres://u@h/d?x=hunter2",
    ] {
        let said = check_clouddriver_url(url).expect_err(url).to_string();
        assert!(said.contains("passwordFile") && !said.contains("hunter2"), "{said}");
    }
}
