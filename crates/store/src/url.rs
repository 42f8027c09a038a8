//! Database URLs. Error messages contain only the scheme, host, path and parameter names of a URL, since it may hold
//! a password.

use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;

use percent_encoding::percent_decode_str;
use secrecy::SecretString;
use url::Url;

use super::{DatabaseExposure, StoreError};

/// A parsed database URL.
#[derive(Debug)]
pub(super) enum DatabaseLocation {
    /// A SQLite file.
    Sqlite(PathBuf),
    /// A database on a MySQL or MariaDB server.
    MySql(ServerAddress),
    Postgres(ServerAddress),
}

/// A database on a server.
pub(super) struct ServerAddress {
    pub(super) host: String,
    pub(super) port: u16,
    pub(super) user: String,
    pub(super) password: Option<SecretString>,
    pub(super) database: String,
    /// The TLS mode, spelled as the database spells it.
    pub(super) tls_mode: Option<String>,
    /// PEM files: the trusted CA, the client certificate and its key.
    pub(super) authority: Option<String>,
    pub(super) certificate: Option<String>,
    pub(super) key: Option<String>,
}

/// Without user and password, for messages.
impl fmt::Display for ServerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} on {}:{}", self.database, self.host, self.port)
    }
}

impl fmt::Debug for ServerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

const ALLOWED: &str = "kubesvc.database.url is sqlite://PATH, with an absolute path \
     (sqlite:///var/lib/kubesvc/kubesvc.db) or one from the working directory (sqlite://kubesvc.db), \
     mysql://USER:PASSWORD@HOST:PORT/DATABASE or postgres://USER:PASSWORD@HOST:PORT/DATABASE";

const MYSQL_MODES: &[&str] = &["DISABLED", "PREFERRED", "REQUIRED", "VERIFY_CA", "VERIFY_IDENTITY"];
const POSTGRES_MODES: &[&str] = &["disable", "allow", "prefer", "require", "verify-ca", "verify-full"];

fn unfit<T>(why: impl fmt::Display) -> Result<T, StoreError> {
    Err(StoreError::Unfit(format!("{why}: {ALLOWED}")))
}

pub(super) fn parse(url: &str) -> Result<DatabaseLocation, StoreError> {
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
        "sqlite" => file(rest).map(DatabaseLocation::Sqlite),
        "mysql" | "mariadb" => server(url, 3306, MYSQL_MODES).map(DatabaseLocation::MySql),
        "postgres" | "postgresql" => server(url, 5432, POSTGRES_MODES).map(DatabaseLocation::Postgres),
        _ if scheme.starts_with("jdbc:") => unfit("a JDBC URL is of no use here"),
        _ => unfit("the database's URL has a scheme that kubesvc does not know"),
    }
}

fn file(rest: &str) -> Result<PathBuf, StoreError> {
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
        path => Ok(PathBuf::from(path)),
    }
}

fn server(url: &str, default_port: u16, modes: &[&str]) -> Result<ServerAddress, StoreError> {
    let Ok(url) = Url::parse(url.trim()) else {
        return unfit(
            "the database's URL cannot be read; in a password write %40 for @, %3A for :, %2F for /, %3F for ?, %23 \
             for # and %25 for %",
        );
    };
    let text = |part: &str, what: &str| match percent_decode_str(part).decode_utf8() {
        Ok(text) if !text.contains(char::is_control) => Ok(text.into_owned()),
        _ => unfit(format_args!("the {what} in the database's URL is no UTF-8 or holds control characters")),
    };
    let host = url.host_str().unwrap_or_default();
    let host = text(host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host), "host")?;
    let user = text(url.username(), "user")?;
    let database = text(url.path().trim_start_matches('/'), "name of the database")?;
    for (part, what) in [(&host, "host"), (&user, "user"), (&database, "name of a database after the host")] {
        if part.is_empty() {
            return unfit(format_args!("the database's URL has no {what}"));
        }
    }
    if database.contains('/') {
        return unfit("the path of the database's URL is one name");
    }
    if url.fragment().is_some() {
        return unfit("the database's URL has a #; write %23 for it");
    }
    let password =
        url.password().map(|password| text(password, "password")).transpose()?.map(SecretString::from);
    let port = url.port().unwrap_or(default_port);
    let (tls_mode, authority, certificate, key) = (None, None, None, None);
    let mut address =
        ServerAddress { host, port, user, password, database, tls_mode, authority, certificate, key };
    for (name, value) in url.query_pairs() {
        address.set(&name, value.into_owned(), modes)?;
    }
    if address.authority.is_some() && address.tls_mode.is_none() {
        // A configured CA means that the server shall be verified; the driver's default would only encrypt.
        address.tls_mode = modes.last().map(|strictest| (*strictest).to_owned());
    }
    Ok(address)
}

/// Returns what an attacker between kubesvc and its database can do. `None` for a file, a server on this machine, and
/// a connection that verifies the server.
pub(super) fn exposure(database: &DatabaseLocation) -> Option<DatabaseExposure> {
    let (DatabaseLocation::MySql(address) | DatabaseLocation::Postgres(address)) = database else {
        return None;
    };
    if address.is_on_this_machine() {
        return None;
    }
    let mode = address.tls_mode.as_deref().unwrap_or_default();
    let mode = mode.to_ascii_lowercase().replace('-', "_");
    let (may_be_plaintext, what) = match mode.as_str() {
        "verify_ca" | "verify_full" | "verify_identity" => return None,
        // The driver does not upgrade a connection with `allow`.
        "disable" | "disabled" | "allow" => {
            (true, "is in plain text: its password and rows can be read on the way")
        }
        "require" | "required" => (
            false,
            "is encrypted, but the server's certificate is not verified: anybody on the way can pose as it",
        ),
        _ => (true, "may be in plain text, where the server or anybody on the way says so"),
    };
    let unused = match address.authority {
        Some(_) => "; ssl-ca verifies nothing with this ssl-mode",
        None => "",
    };
    let verifying = match database {
        DatabaseLocation::Postgres(_) => "verify-full",
        _ => "VERIFY_IDENTITY",
    };
    let warning = format!(
        "the connection to the database {address} {what}{unused}; add ssl-mode={verifying} (and ssl-ca=FILE for an \
         authority of your own) to kubesvc.database.url"
    );
    Some(DatabaseExposure { may_be_plaintext, warning })
}

impl ServerAddress {
    /// Whether the host is a loopback address, `localhost`, or the path of a socket.
    fn is_on_this_machine(&self) -> bool {
        self.host.starts_with('/')
            || self.host.eq_ignore_ascii_case("localhost")
            || self.host.parse::<IpAddr>().is_ok_and(|address| address.to_canonical().is_loopback())
    }

    fn set(&mut self, name: &str, value: String, modes: &[&str]) -> Result<(), StoreError> {
        let place = match name {
            "ssl-mode" | "sslmode" => {
                let Some(mode) = modes.iter().find(|mode| mode.eq_ignore_ascii_case(&value)) else {
                    return unfit(format_args!(
                        "{name} in the database's URL must be one of {}",
                        modes.join(", ")
                    ));
                };
                self.tls_mode = Some((*mode).to_owned());
                return Ok(());
            }
            "ssl-ca" | "sslca" | "sslrootcert" => &mut self.authority,
            "ssl-cert" | "sslcert" => &mut self.certificate,
            "ssl-key" | "sslkey" => &mut self.key,
            _ => {
                let name: String = name.chars().filter(|c| !c.is_control()).take(40).collect();
                return unfit(format_args!(
                    "the database's URL has the parameter {name:?}, but ssl-mode, ssl-ca, ssl-cert and ssl-key are \
                     all there are"
                ));
            }
        };
        if value.is_empty() {
            return unfit(format_args!("{name} in the database's URL names no file"));
        }
        *place = Some(value);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use secrecy::ExposeSecret;

    use super::{DatabaseLocation, ServerAddress, exposure, parse};

    #[test]
    fn paths_are_absolute_or_from_the_working_directory() {
        for (url, wanted) in [
            ("sqlite:///var/lib/kubesvc.db", "/var/lib/kubesvc.db"),
            ("sqlite://kubesvc.db", "kubesvc.db"),
            ("sqlite://./data/kubesvc.db", "./data/kubesvc.db"),
            ("SQLite:///a%20b%3F%40/ü.db", "/a b?@/ü.db"),
            ("sqlite:///data/a@b.db", "/data/a@b.db"),
        ] {
            let parsed = parse(url).expect(url);
            assert!(
                matches!(&parsed, DatabaseLocation::Sqlite(path) if path.as_os_str() == wanted),
                "{url}: {parsed:?}"
            );
        }
    }

    fn server(url: &str) -> ServerAddress {
        let (DatabaseLocation::MySql(address) | DatabaseLocation::Postgres(address)) = parse(url).expect(url)
        else {
            unreachable!("{url} is a file")
        };
        address
    }

    #[test]
    fn servers_have_a_host_a_user_and_a_database() {
        let address = server(
            "mysql://me%40x:p%40ss%2Fword@db.example:3307/kube%20svc?ssl-mode=verify_ca&ssl-ca=/ca.pem",
        );
        assert_eq!((address.host.as_str(), address.port), ("db.example", 3307));
        assert_eq!((address.user.as_str(), address.database.as_str()), ("me@x", "kube svc"));
        assert_eq!(address.password.as_ref().map(ExposeSecret::expose_secret), Some("p@ss/word"));
        assert_eq!(address.tls_mode.as_deref(), Some("VERIFY_CA"));
        assert_eq!(address.authority.as_deref(), Some("/ca.pem"));
        assert!(!format!("{address} {address:?}").contains("p@ss"), "{address:?}");
        assert!(
            matches!(parse("mariadb://u@h/d"), Ok(DatabaseLocation::MySql(address)) if address.port == 3306)
        );
        let address = server("postgresql://u@[::1]/d?sslmode=verify-full&sslrootcert=a&sslcert=b&sslkey=c");
        assert_eq!((address.host.as_str(), address.port), ("::1", 5432));
        assert_eq!(
            [address.tls_mode, address.authority, address.certificate, address.key]
                .map(Option::unwrap_or_default),
            ["verify-full", "a", "b", "c"]
        );
    }

    #[test]
    fn an_authority_alone_verifies_the_server_and_its_name() {
        for (url, mode) in [
            ("mysql://u@h/d?ssl-ca=/ca.pem", Some("VERIFY_IDENTITY")),
            ("postgres://u@h/d?sslrootcert=/ca.pem", Some("verify-full")),
            // An explicit mode wins, whatever the order of the parameters.
            ("postgres://u@h/d?sslrootcert=/ca.pem&sslmode=verify-ca", Some("verify-ca")),
            ("mysql://u@h/d?ssl-mode=REQUIRED&ssl-ca=/ca.pem", Some("REQUIRED")),
            ("mysql://u@h/d", None),
        ] {
            assert_eq!(server(url).tls_mode.as_deref(), mode, "{url}");
        }
    }

    #[test]
    fn unverified_remote_connection_causes_a_warning() {
        let warned = |url: &str| exposure(&parse(url).expect(url)).map(|exposure| exposure.warning);
        for url in [
            "sqlite://kubesvc.db",
            "postgres://u:hunter2@127.0.0.1/d",
            "mysql://u:hunter2@localhost/d?ssl-mode=DISABLED",
            "postgres://u:hunter2@[::1]/d",
            "postgres://u@%2Frun%2Fpostgresql/d",
            "postgres://u:hunter2@db/d?sslrootcert=/ca.pem",
            "postgres://u:hunter2@db/d?sslmode=verify-ca",
            "mysql://u:hunter2@db/d?ssl-mode=VERIFY_IDENTITY",
        ] {
            assert_eq!(warned(url), None, "{url}");
        }
        for (url, part) in [
            ("postgres://u:hunter2@db/d", "may be in plain text"),
            ("mysql://u:hunter2@10.0.0.7/d?ssl-mode=preferred", "ssl-mode=VERIFY_IDENTITY"),
            ("mysql://u:hunter2@db/d?ssl-mode=DISABLED", "is in plain text"),
            ("postgres://u:hunter2@db/d?sslmode=allow", "is in plain text"),
            ("postgres://u:hunter2@db/d?sslmode=require", "ssl-mode=verify-full"),
            ("mysql://u:hunter2@db/d?ssl-mode=REQUIRED&ssl-ca=/ca.pem", "ssl-ca verifies nothing"),
        ] {
            let said = warned(url).unwrap_or_default();
            assert!(said.contains(part), "{url}: {said}");
            assert!(!said.contains("hunter2"), "{said}");
        }
    }

    #[test]
    fn url_errors_contain_no_password() {
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
            ("mysql://me:hunter2@db:3306", "no name of a database"),
            ("mysql://me:hunter2@db:3306/", "no name of a database"),
            ("mysql://db:3306/kubesvc", "no user"),
            ("mysql://me:hunter2@/kubesvc", "cannot be read"),
            ("postgres:///kubesvc", "no host"),
            ("postgres://me:hunter2#x@db/kubesvc", "%23"),
            ("postgres://me:hunter2/x@db/kubesvc", "%2F"),
            ("postgres://me:hunter2@db/kubesvc#x", "%23"),
            ("postgres://me:hunter2@db/a/b", "one name"),
            ("postgres://me:hunter2@db/a%00", "control characters"),
            ("mysql://me:hunter2@db/a?useSSL=hunter2", "\"useSSL\""),
            (
                "mysql://me:hunter2@db/a?ssl-mode=hunter2",
                "ssl-mode in the database's URL must be one of DISABLED",
            ),
            ("postgres://me:hunter2@db/a?sslmode=REQUIRED", "verify-full"),
            ("postgres://me:hunter2@db/a?sslcert=", "names no file"),
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
