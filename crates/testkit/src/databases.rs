//! Real MariaDB and PostgreSQL servers for the tests. Services of the system are neither needed nor used.
//!
//! Tests share one [`shared`] server of each kind and create a [`Server::fresh_database`] in it. A test that stops,
//! kills or pauses a server starts its [`own`]. The servers write without fsync: a killed server keeps what it has
//! committed, but a machine that loses power does not.

use std::{path::PathBuf, process::Command, time::Duration};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use parking_lot::Mutex;
use sqlx::{AssertSqlSafe, Connection, MySqlConnection, PgConnection};
use tokio::sync::OnceCell;

use super::{folder::Folder, must, ports, process::Process, wait::try_eventually};

mod backup;
mod full;
mod galera;
mod programs;

use full::SMALL_MARIADB;
pub use galera::galera;
pub use programs::children;
use programs::{command, find, is_running, run};

const USUAL_MARIADB: [&str; 2] = ["--innodb-flush-log-at-trx-commit=2", "--innodb-buffer-pool-size=32M"];
const DURABLE_MARIADB: [&str; 2] = ["--innodb-buffer-pool-size=1G", "--innodb-log-file-size=512M"];
const USUAL_POSTGRESQL: [&str; 2] = ["fsync=off", "shared_buffers=16MB"];
const DURABLE_POSTGRESQL: [&str; 2] = ["max_wal_size=4GB", "shared_buffers=1GB"];
const START: Duration = Duration::from_secs(60);
const END: Duration = Duration::from_secs(30);
/// Another process may take a port before it is bound.
const ATTEMPTS: u32 = 3;
const USER: &str = "kubesvc";
/// Contains characters that must be escaped in a URL.
const PASSWORD: &str = "p@ss/word";
const PASSWORD_IN_URL: &str = "p%40ss%2Fword";

/// Kind of database server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// MariaDB, which uses MySQL's protocol.
    MariaDb,
    /// PostgreSQL.
    PostgreSql,
}

/// How much room a server has, and whether its commits are on disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Size {
    /// Little, without fsync.
    Usual,
    /// So little that [`Server::fill`] can use it up.
    Small,
    /// Enough for a benchmark, with fsync.
    Durable,
}

/// A server on a port of 127.0.0.1. Killed on drop, or when the test process ends.
#[derive(Debug)]
pub struct Server {
    // Dropped before the folder that it writes to.
    process: Mutex<Option<Process>>,
    /// Children of a killed server. They may hold its memory for a moment after it.
    killed: Mutex<Vec<i32>>,
    kind: Kind,
    port: u16,
    data: PathBuf,
    folder: Folder,
    size: Size,
    /// Further flags and environment of the program, such as those of a node of Galera.
    flags: Vec<String>,
    environment: Vec<(&'static str, String)>,
}

static MARIADB: OnceCell<Server> = OnceCell::const_new();
static POSTGRESQL: OnceCell<Server> = OnceCell::const_new();

/// Returns the shared server of this kind in this process, started at the first call. Never stop, kill or pause it.
///
/// # Panics
///
/// The server cannot start. The message says what is missing.
pub async fn shared(kind: Kind) -> &'static Server {
    let cell = match kind {
        Kind::MariaDb => &MARIADB,
        Kind::PostgreSql => &POSTGRESQL,
    };
    must(cell.get_or_try_init(|| own(kind)).await)
}

/// Starts a server for one test.
///
/// # Errors
///
/// The message names the missing program and its Debian package, or contains the last output of the server.
pub async fn own(kind: Kind) -> Result<Server, String> {
    own_with(kind, Size::Usual).await
}

/// Like [`own`], with so little space that [`Server::fill`] can use it up.
///
/// # Errors
///
/// Same as [`own`].
pub async fn own_small(kind: Kind) -> Result<Server, String> {
    own_with(kind, Size::Small).await
}

/// Starts a server for a benchmark: with room for its data in memory, and with commits that are on disk.
///
/// # Errors
///
/// Same as [`own`].
pub async fn own_durable(kind: Kind) -> Result<Server, String> {
    own_with(kind, Size::Durable).await
}

async fn own_with(kind: Kind, size: Size) -> Result<Server, String> {
    let server = Server::in_folder(
        kind,
        size,
        match kind {
            Kind::MariaDb => "mariadb",
            Kind::PostgreSql => "postgresql",
        },
    )?;
    server.install()?;
    server.on_a_free_port().await
}

/// PgBouncer before a server; it ends on drop.
pub struct Pooler {
    port: u16,
    _process: Process,
}

impl Pooler {
    /// Returns the URL of a database of the server, through the pooler.
    pub fn url(&self, database: &str) -> String {
        format!("postgres://{USER}:{PASSWORD_IN_URL}@127.0.0.1:{}/{database}", self.port)
    }
}

impl Server {
    /// A server without data that does not run.
    fn in_folder(kind: Kind, size: Size, folder: &str) -> Result<Self, String> {
        let folder = Folder::new(folder)?;
        let (process, killed, data) = (Mutex::new(None), Mutex::default(), folder.file("data"));
        let (flags, environment) = Default::default();
        Ok(Self { process, killed, kind, port: 0, data, folder, size, flags, environment })
    }

    fn command(&self, program: &str) -> Result<Command, String> {
        let package = match self.kind {
            Kind::MariaDb => "mariadb-server-core",
            Kind::PostgreSql => "postgresql",
        };
        let mut command = command(&find(program, package)?, self.folder.path())?;
        // MariaDB deletes temporary tables of another instance in the same folder when it starts.
        command.env("TMPDIR", self.folder.path());
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        Ok(command)
    }

    /// Creates the data folder with the server's own tables.
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

    /// Starts the server on its previous port and waits until it answers.
    ///
    /// # Errors
    ///
    /// The server ended, or does not answer in time.
    pub async fn start(&self) -> Result<(), String> {
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
                server.args(match self.size {
                    Size::Durable => DURABLE_MARIADB,
                    Size::Usual | Size::Small => USUAL_MARIADB,
                });
                server.args(["--performance-schema=OFF", "--max-connections=300"]);
                if self.size == Size::Small {
                    server.args(SMALL_MARIADB);
                }
                server.arg(format!("--datadir={}", self.data.display())).arg(format!("--port={}", self.port));
                server.arg(format!("--socket={}", self.folder.file("socket").display()));
                server.arg(format!("--init-file={}", self.folder.file("start.sql").display()));
                server.args(&self.flags);
            }
            Kind::PostgreSql => {
                server.arg("-D").arg(&self.data).args(["-p", &self.port.to_string()]);
                let settings = [
                    "listen_addresses=127.0.0.1",
                    "unix_socket_directories=",
                    "max_connections=200",
                    "wal_level=replica",
                ];
                let settings = settings.into_iter().chain(match self.size {
                    Size::Durable => DURABLE_POSTGRESQL,
                    Size::Usual | Size::Small => USUAL_POSTGRESQL,
                });
                server.args(settings.flat_map(|setting| ["-c", setting]));
            }
        }
        try_eventually("the end of the killed server's processes", START, async || {
            let are_gone = !self.killed.lock().iter().any(|pid| is_running(*pid));
            are_gone.then_some(()).ok_or_else(|| "some still run".to_owned())
        })
        .await?;
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

    /// Starts PgBouncer before this PostgreSQL. It logs in to the server with this password, or its caller's.
    ///
    /// # Errors
    ///
    /// PgBouncer is not there, or does not answer in time.
    pub async fn pooler(&self, server_password: Option<&str>) -> Result<Pooler, String> {
        let port = ports::free();
        let password =
            server_password.map(|password| format!(" user={USER} password={password}")).unwrap_or_default();
        self.readable("users.txt", &format!("\"{USER}\" \"{PASSWORD}\"\n"))?;
        let settings = format!(
            "[databases]\n* = host=127.0.0.1 port={}{password}\n[pgbouncer]\nlisten_addr=127.0.0.1\n\
             listen_port={port}\nunix_socket_dir=\nauth_type=scram-sha-256\nauth_file=users.txt\n\
             pool_mode=session\nserver_login_retry=1\n",
            self.port
        );
        let name = format!("pgbouncer-{port}.ini");
        self.readable(&name, &settings)?;
        let mut pooler = command(&find("pgbouncer", "pgbouncer")?, self.folder.path())?;
        pooler.arg(&name);
        let process = Process::spawn("PgBouncer", &pooler, &self.folder.file(&format!("{name}.log")))?;
        try_eventually("PgBouncer", START, async || {
            tokio::net::TcpStream::connect(("127.0.0.1", port)).await.map(drop).map_err(|e| e.to_string())
        })
        .await?;
        Ok(Pooler { port, _process: process })
    }

    /// Kind of the server.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Port on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Process id, while the server runs.
    pub fn process_id(&self) -> Option<u32> {
        self.process.lock().as_ref().map(Process::id)
    }

    /// Returns the URL of a database.
    pub fn url(&self, database: &str) -> String {
        let scheme = match self.kind {
            Kind::MariaDb => "mysql",
            Kind::PostgreSql => "postgres",
        };
        format!("{scheme}://{USER}:{PASSWORD_IN_URL}@127.0.0.1:{}/{database}", self.port)
    }

    /// Creates an empty database and returns its URL. The database is gone with the server.
    ///
    /// # Panics
    ///
    /// The database cannot be created.
    pub async fn fresh_database(&self) -> String {
        let name = format!("t_{:016x}", rand::random::<u64>());
        must(self.execute("", &format!("CREATE DATABASE {name}")).await);
        self.url(&name)
    }

    /// Runs statements as administrator in a database, or in a built-in one if the name is empty.
    ///
    /// # Errors
    ///
    /// Returns the error of the server.
    pub async fn execute(&self, database: &str, sql: &str) -> Result<(), String> {
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

    /// Stops the server, closes its connections and waits.
    ///
    /// # Errors
    ///
    /// The server does not stop in time; it is then killed.
    pub async fn stop(&self) -> Result<(), String> {
        let Some(process) = self.process.lock().take() else { return Ok(()) };
        // After a SIGTERM, PostgreSQL would wait for its clients.
        process.signal(match self.kind {
            Kind::MariaDb => Signal::SIGTERM,
            Kind::PostgreSql => Signal::SIGINT,
        });
        process.wait(END).await.map(drop)
    }

    /// Kills the server and its child processes.
    pub fn kill(&self) {
        if let Some(process) = self.process.lock().take() {
            // It starts no further child.
            process.pause();
            let children = children(process.id());
            process.kill();
            signal_all(&children, Signal::SIGKILL);
            *self.killed.lock() = children;
        }
    }

    /// Pauses the server and its child processes (SIGSTOP): connections stay open and nothing answers.
    pub fn pause(&self) {
        if let Some(process) = &*self.process.lock() {
            process.pause();
            signal_all(&children(process.id()), Signal::SIGSTOP);
        }
    }

    /// Resumes a paused server.
    pub fn resume(&self) {
        if let Some(process) = &*self.process.lock() {
            signal_all(&children(process.id()), Signal::SIGCONT);
            process.resume();
        }
    }

    /// Creates a read-only replica that follows this PostgreSQL server until [`Server::promote`].
    ///
    /// # Errors
    ///
    /// The copy fails, or the replica does not start.
    pub async fn standby(&self) -> Result<Self, String> {
        let copy = Self::in_folder(self.kind, Size::Usual, "postgresql-standby")?;
        let mut backup = copy.command("pg_basebackup")?;
        let from = format!("host=127.0.0.1 port={} user={USER}", self.port);
        backup.env("PGPASSWORD", PASSWORD).args(["--write-recovery-conf", "--checkpoint=fast", "--no-sync"]);
        backup.args(["--dbname", &from, "-D"]).arg(&copy.data);
        run(backup)?;
        copy.on_a_free_port().await
    }

    /// Makes a standby stop following for good: what is committed afterwards never reaches it. (Pausing the replay
    /// would not suffice, because a promoted standby replays everything that has reached it.)
    ///
    /// # Errors
    ///
    /// The server is not a standby, or continues to follow.
    pub async fn stop_following(&self) -> Result<(), String> {
        self.execute("", "ALTER SYSTEM SET primary_conninfo = ''").await?;
        self.execute("", "SELECT pg_reload_conf()").await?;
        try_eventually("the standby no longer follows", START, async || {
            // Divides by zero while a receiver exists.
            self.execute("", "SELECT 1 / (1 - count(*)) FROM pg_stat_wal_receiver").await
        })
        .await
    }

    /// Restarts this server on the port of a server that has ended.
    ///
    /// # Errors
    ///
    /// The server does not start there.
    pub async fn take_over(&mut self, ended: &Self) -> Result<(), String> {
        self.stop().await?;
        self.port = ended.port;
        self.start().await
    }

    /// Promotes a standby to a writable server.
    ///
    /// # Errors
    ///
    /// The server is not a standby, or the promotion fails.
    pub fn promote(&self) -> Result<(), String> {
        let mut promote = self.command("pg_ctl")?;
        promote.args(["promote", "-w", "-D"]).arg(&self.data);
        run(promote)
    }

    /// Returns the output so far.
    pub fn log(&self) -> String {
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
        // A process that has ended meanwhile is fine.
        let _ = kill(Pid::from_raw(*pid), signal);
    }
}
