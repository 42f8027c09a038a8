//! The URL of a database. No message holds more of it than its scheme and its path: there may be a password in it.

use std::path::PathBuf;

use percent_encoding::percent_decode_str;

use super::StoreError;

/// What a URL names.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Database {
    /// A file of SQLite's.
    Sqlite(PathBuf),
}

const ALLOWED: &str = "kubesvc.database.url is sqlite://PATH, with an absolute path \
     (sqlite:///var/lib/kubesvc/kubesvc.db) or one from the working directory (sqlite://kubesvc.db)";

pub(super) fn parse(url: &str) -> Result<Database, StoreError> {
    let unfit = |why: &str| Err(StoreError::Unfit(format!("{why}: {ALLOWED}")));
    if url.trim().is_empty() {
        return unfit("the database has no URL");
    }
    let Some((scheme, rest)) = url.split_once("://") else {
        return unfit(if url.starts_with("sqlite:") {
            "the database's URL lacks the two slashes after sqlite:"
        } else {
            "the database's URL has no scheme"
        });
    };
    let scheme = scheme.to_ascii_lowercase();
    match scheme.as_str() {
        "sqlite" => {}
        "mysql" | "mariadb" | "postgres" | "postgresql" => {
            return unfit(&format!("only sqlite is built in so far, {scheme} is not"));
        }
        _ if scheme.starts_with("jdbc:") => return unfit("a JDBC URL is of no use here"),
        _ => return unfit("the database's URL has a scheme that kubesvc does not know"),
    }
    if rest.contains(['?', '#']) {
        return unfit(
            "sqlite:// takes no options; write %3F for a question mark and %23 for a # in the path",
        );
    }
    if rest.split('/').next().is_some_and(|first| first.contains('@')) {
        return unfit("sqlite:// takes no user and no password; write %40 for an @ in the path");
    }
    let Ok(path) = percent_decode_str(rest).decode_utf8() else {
        return unfit("the path of the database is no UTF-8");
    };
    match &*path {
        "" => unfit("the path of the database is empty"),
        ":memory:" => unfit("a database in memory would be lost with the process"),
        path if path.ends_with('/') => unfit("the path of the database names a folder"),
        path if path.contains('\0') => unfit("the path of the database holds a NUL"),
        path => Ok(Database::Sqlite(PathBuf::from(path))),
    }
}

#[cfg(test)]
mod tests {
    use super::{Database, parse};

    #[test]
    fn paths_are_absolute_or_from_the_working_directory() {
        for (url, path) in [
            ("sqlite:///var/lib/kubesvc.db", "/var/lib/kubesvc.db"),
            ("sqlite://kubesvc.db", "kubesvc.db"),
            ("sqlite://./data/kubesvc.db", "./data/kubesvc.db"),
            ("SQLite:///a%20b%3F%40/ü.db", "/a b?@/ü.db"),
            ("sqlite:///data/a@b.db", "/data/a@b.db"),
        ] {
            assert_eq!(parse(url).expect(url), Database::Sqlite(path.into()), "{url}");
        }
    }

    #[test]
    fn what_does_not_fit_is_said_without_the_password() {
        for (url, part) in [
            ("", "no URL"),
            ("kubesvc.db", "no scheme"),
            ("sqlite:kubesvc.db", "two slashes"),
            ("sqlite::memory:", "two slashes"),
            ("sqlite://:memory:", "in memory"),
            ("sqlite://", "empty"),
            ("sqlite:///var/", "folder"),
            ("sqlite://a.db?mode=rwc&key=hunter2", "no options"),
            ("sqlite://me:hunter2@host/a.db", "no user"),
            ("sqlite:///%FF.db", "UTF-8"),
            ("sqlite:///%00.db", "NUL"),
            ("mysql://me:hunter2@db:3306/kubesvc", "only sqlite is built in so far, mysql is not"),
            ("postgres://me:hunter2@db/kubesvc", "only sqlite is built in so far, postgres is not"),
            ("jdbc:mysql://db/kubesvc?password=hunter2", "JDBC"),
            ("hunter2://x", "does not know"),
        ] {
            let said = parse(url).expect_err(url).to_string();
            assert!(said.contains(part), "{url}: {said}");
            assert!(said.contains("sqlite://PATH"), "{url}: {said}");
            assert!(!said.contains("hunter2"), "{url}: {said}");
            assert!(!said.contains('\n'), "{url}: {said}");
        }
    }
}
