//! Real MariaDB and PostgreSQL servers of the tests' own: no service of the system is needed or touched.
//!
//! Tests share one of each in [`shared`] and take a [`Server::fresh_database`] in it. Whoever stops, kills or pauses a
//! server starts an [`own`] one. They write without fsync: a killed server keeps what it has committed, a machine that
//! loses its power does not.

use std::{path::PathBuf, process::Command, time::Duration};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use parking_lot::Mutex;
use sqlx::{AssertSqlSafe, Connection, MySqlConnection, PgConnection};
use tokio::sync::OnceCell;

use super::{
    database_programs::{children, command, find, run},
    database_room::SMALL_MARIADB,
    folder::Folder,
    must, ports,
    process::Process,
    wait::try_eventually,
};

const START: Duration = Duration::from_secs(60);
const END: Duration = Duration::from_secs(30);
/// Another process may take a port between choosing and binding it.
const ATTEMPTS: u32 = 3;
const USER: &str = "kubesvc";
/// In a URL it must be written with escapes.
const PASSWORD: &str = "p@ss/word";
const PASSWORD_IN_URL: &str = "p%40ss%2Fword";

/// Which database.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// MariaDB, which speaks MySQL's protocol.
    MariaDb,
    /// PostgreSQL.
    PostgreSql,
}

/// A server on a port of 127.0.0.1, killed when it is dropped or when the test process ends, however it ends.
#[derive(Debug)]
pub(crate) struct Server {
    // Before the folder that it writes into.
    process: Mutex<Option<Process>>,
    kind: Kind,
    port: u16,
    pub(super) data: PathBuf,
    folder: Folder,
    /// Whether it has only as much room as `database_room.rs` says.
    small: bool,
}

static MARIADB: OnceCell<Server> = OnceCell::const_new();
static POSTGRESQL: OnceCell<Server> = OnceCell::const_new();

/// The one server of this kind in this process, started at the first call. Never stop, kill or pause it.
///
/// # Panics
///
/// It cannot start; the text says what is missing.
pub(crate) async fn shared(kind: Kind) -> &'static Server {
    let cell = match kind {
        Kind::MariaDb => &MARIADB,
        Kind::PostgreSql => &POSTGRESQL,
    };
    must(cell.get_or_try_init(|| own(kind)).await)
}

/// A server of this test alone.
///
/// # Errors
///
/// The text says which program is missing and which Debian package has it, or what the server said last.
pub(crate) async fn own(kind: Kind) -> Result<Server, String> {
    own_with(kind, false).await
}

/// As [`own`], with so little room that [`Server::fill`] can use it up.
///
/// # Errors
///
/// As [`own`].
pub(crate) async fn own_small(kind: Kind) -> Result<Server, String> {
    own_with(kind, true).await
}

async fn own_with(kind: Kind, small: bool) -> Result<Server, String> {
    let folder = Folder::new(match kind {
        Kind::MariaDb => "mariadb",
        Kind::PostgreSql => "postgresql",
    })?;
    let data = folder.file("data");
    let server = Server { process: Mutex::new(None), kind, port: 0, data, folder, small };
    server.install()?;
    server.on_a_free_port().await
}

impl Server {
    fn command(&self, program: &str) -> Result<Command, String> {
        let package = match self.kind {
            Kind::MariaDb => "mariadb-server-core",
            Kind::PostgreSql => "postgresql",
        };
        let mut command = command(&find(program, package)?, self.folder.path())?;
        // A MariaDB that starts deletes what another one has in the same folder for temporary tables.
        command.env("TMPDIR", self.folder.path());
        Ok(command)
    }

    /// Makes the folder with the server's own tables.
    fn install(&self) -> Result<(), String> {
        match self.kind {
            Kind::MariaDb => {
                find("mariadbd", "mariadb-server-core")?;
                let mut install = self.command("mariadb-install-db")?;
                install.args(["--no-defaults", "--auth-root-authentication-method=normal", "--skip-test-db"]);
                run({
                    install.arg(format!("--datadir={}", self.data.display()));
                    install
                })?;
                let grant = format!(
                    "CREATE USER IF NOT EXISTS {USER}@'%' IDENTIFIED BY '{PASSWORD}';\n\
                     GRANT ALL ON *.* TO {USER}@'%' WITH GRANT OPTION;\n"
                );
                self.readable("start.sql", &grant)
            }
            Kind::PostgreSql => {
                self.readable("password", PASSWORD)?;
                let mut install = self.command("initdb")?;
                install.args(["--no-sync", "--locale=C", "--encoding=UTF8", "--auth=scram-sha-256"]);
                install.arg(format!("--username={USER}")).arg("--pwfile=password").arg("-D").arg(&self.data);
                run(install)
            }
        }
    }

    fn readable(&self, name: &str, text: &str) -> Result<(), String> {
        let path = self.folder.file(name);
        std::fs::write(&path, text).map_err(|e| format!("{}: {e}", path.display()))
    }

    async fn on_a_free_port(mut self) -> Result<Self, String> {
        let mut attempt = 1;
        loop {
            self.port = ports::free();
            match self.start().await {
                Ok(()) => return Ok(self),
                Err(reason) if attempt == ATTEMPTS || !reason.to_lowercase().contains("address already") => {
                    return Err(reason);
                }
                Err(_) => attempt += 1,
            }
        }
    }

    /// Starts it, on the port that it had before, and waits until it answers.
    ///
    /// # Errors
    ///
    /// It ended, or does not answer in time.
    pub(crate) async fn start(&self) -> Result<(), String> {
        let mut server = self.command(match self.kind {
            Kind::MariaDb => "mariadbd",
            Kind::PostgreSql => "postgres",
        })?;
        match self.kind {
            Kind::MariaDb => {
                server.args([
                    "--no-defaults",
                    "--bind-address=127.0.0.1",
                    "--skip-log-bin",
                    "--skip-name-resolve",
                ]);
                server.args(["--innodb-flush-log-at-trx-commit=2", "--innodb-buffer-pool-size=32M"]);
                server.args(["--performance-schema=OFF", "--max-connections=300"]);
                if self.small {
                    server.args(SMALL_MARIADB);
                }
                server.arg(format!("--datadir={}", self.data.display())).arg(format!("--port={}", self.port));
                server.arg(format!("--socket={}", self.folder.file("socket").display()));
                server.arg(format!("--init-file={}", self.folder.file("start.sql").display()));
            }
            Kind::PostgreSql => {
                server.arg("-D").arg(&self.data).args(["-p", &self.port.to_string()]);
                let settings = [
                    "listen_addresses=127.0.0.1",
                    "unix_socket_directories=",
                    "fsync=off",
                    "shared_buffers=16MB",
                    "max_connections=200",
                    "wal_level=replica",
                ];
                server.args(settings.iter().flat_map(|setting| ["-c", setting]));
            }
        }
        let process = Process::spawn(&format!("{:?}", self.kind), &server, &self.folder.file("log"))?;
        *self.process.lock() = Some(process);
        try_eventually(&format!("{:?}", self.kind), START, async || {
            if let Err(ended) = self.process.lock().as_ref().map_or(Ok(()), Process::check_running) {
                return Ok(Err(ended));
            }
            self.execute("", "SELECT 1").await.map(Ok)
        })
        .await?
    }

    /// Which database it is.
    pub(crate) fn kind(&self) -> Kind {
        self.kind
    }

    /// Its port of 127.0.0.1.
    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// Its process, while it runs.
    pub(crate) fn process_id(&self) -> Option<u32> {
        self.process.lock().as_ref().map(Process::id)
    }

    /// The URL of one of its databases.
    pub(crate) fn url(&self, database: &str) -> String {
        let scheme = match self.kind {
            Kind::MariaDb => "mysql",
            Kind::PostgreSql => "postgres",
        };
        format!("{scheme}://{USER}:{PASSWORD_IN_URL}@127.0.0.1:{}/{database}", self.port)
    }

    /// The URL of a new empty database. It goes with the server.
    ///
    /// # Panics
    ///
    /// It cannot be made.
    pub(crate) async fn fresh_database(&self) -> String {
        let name = format!("t_{:016x}", rand::random::<u64>());
        must(self.execute("", &format!("CREATE DATABASE {name}")).await);
        self.url(&name)
    }

    /// Runs statements as an administrator, in one of its databases; without a name, in one that is always there.
    ///
    /// # Errors
    ///
    /// What it said.
    pub(crate) async fn execute(&self, database: &str, sql: &str) -> Result<(), String> {
        let of = |error: sqlx::Error| format!("{:?}: {error}", self.kind);
        let statements = || sqlx::raw_sql(AssertSqlSafe(sql.to_owned()));
        match self.kind {
            Kind::MariaDb => {
                let database = if database.is_empty() { "mysql" } else { database };
                let mut connection = MySqlConnection::connect(&self.url(database)).await.map_err(of)?;
                statements().execute(&mut connection).await.map_err(of)?;
                connection.close().await.map_err(of)
            }
            Kind::PostgreSql => {
                let database = if database.is_empty() { "postgres" } else { database };
                let mut connection = PgConnection::connect(&self.url(database)).await.map_err(of)?;
                statements().execute(&mut connection).await.map_err(of)?;
                connection.close().await.map_err(of)
            }
        }
    }

    /// Asks it to end, cutting the connections, and waits.
    ///
    /// # Errors
    ///
    /// It does not end in time; it is killed then.
    pub(crate) async fn stop(&self) -> Result<(), String> {
        let Some(process) = self.process.lock().take() else { return Ok(()) };
        // PostgreSQL would wait for its clients after a SIGTERM.
        process.signal(match self.kind {
            Kind::MariaDb => Signal::SIGTERM,
            Kind::PostgreSql => Signal::SIGINT,
        });
        process.wait(END).await.map(drop)
    }

    /// Kills it, with all that it started.
    pub(crate) fn kill(&self) {
        if let Some(process) = self.process.lock().take() {
            let children = children(process.id());
            process.kill();
            signal_all(&children, Signal::SIGKILL);
        }
    }

    /// Stops it in its tracks (SIGSTOP), with all that it started: its connections stay open and nothing answers.
    pub(crate) fn pause(&self) {
        if let Some(process) = &*self.process.lock() {
            process.pause();
            signal_all(&children(process.id()), Signal::SIGSTOP);
        }
    }

    /// Lets a paused one run on.
    pub(crate) fn resume(&self) {
        if let Some(process) = &*self.process.lock() {
            signal_all(&children(process.id()), Signal::SIGCONT);
            process.resume();
        }
    }

    /// A copy of this PostgreSQL that follows it and may only be read, until [`Server::promote`].
    ///
    /// # Errors
    ///
    /// It cannot be copied, or the copy does not start.
    pub(crate) async fn standby(&self) -> Result<Self, String> {
        let folder = Folder::new("postgresql-standby")?;
        let data = folder.file("data");
        let copy = Self { process: Mutex::new(None), kind: self.kind, port: 0, data, folder, small: false };
        let mut backup = copy.command("pg_basebackup")?;
        let from = format!("host=127.0.0.1 port={} user={USER}", self.port);
        backup.env("PGPASSWORD", PASSWORD).args(["--write-recovery-conf", "--checkpoint=fast", "--no-sync"]);
        backup.args(["--dbname", &from, "-D"]).arg(&copy.data);
        run(backup)?;
        copy.on_a_free_port().await
    }

    /// Makes a standby stop following, for good: what is committed from now on never reaches it. (To pause the replay
    /// would not do: a standby that is promoted replays all that has reached it.)
    ///
    /// # Errors
    ///
    /// It is none, or goes on following.
    pub(crate) async fn stop_following(&self) -> Result<(), String> {
        self.execute("", "ALTER SYSTEM SET primary_conninfo = ''").await?;
        self.execute("", "SELECT pg_reload_conf()").await?;
        try_eventually("the standby no longer follows", START, async || {
            // A division by zero, where there is a receiver.
            self.execute("", "SELECT 1 / (1 - count(*)) FROM pg_stat_wal_receiver").await
        })
        .await
    }

    /// Listens on the port of a server that has ended.
    ///
    /// # Errors
    ///
    /// It does not start there.
    pub(crate) async fn take_over(&mut self, ended: &Self) -> Result<(), String> {
        self.stop().await?;
        self.port = ended.port;
        self.start().await
    }

    /// Makes a standby a server of its own, that may be written.
    ///
    /// # Errors
    ///
    /// It is none, or does not get there.
    pub(crate) fn promote(&self) -> Result<(), String> {
        let mut promote = self.command("pg_ctl")?;
        promote.args(["promote", "-w", "-D"]).arg(&self.data);
        run(promote)
    }

    /// Its output so far.
    pub(crate) fn log(&self) -> String {
        std::fs::read(self.folder.file("log"))
            .map_or_else(|_| String::new(), |text| String::from_utf8_lossy(&text).into_owned())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

fn signal_all(pids: &[i32], signal: Signal) {
    for pid in pids {
        // One that has ended meanwhile is well.
        let _ = kill(Pid::from_raw(*pid), signal);
    }
}
