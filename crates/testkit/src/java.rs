//! Servers in Java that Spring Boot runs: built once, started on a free port, killed and started again.

use std::{ffi::OsStr, time::Duration};

use http::{Request, StatusCode};
use http_body_util::Empty;
use hyper::{body::Bytes, client::conn::http1};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use tokio::net::TcpStream;

use super::{folder::Folder, ports, process::Process, wait::try_eventually};

mod build;

pub(crate) use build::JavaProgram;

const START: Duration = Duration::from_secs(60);
const END: Duration = Duration::from_secs(20);
/// Another process may take a port before it is bound.
const ATTEMPTS: u32 = 3;

/// Settings of a server, as names and values.
pub(crate) type Properties = Vec<(&'static str, String)>;

/// A server on a port of 127.0.0.1, with a folder of its own. Killed on drop, or when the test process ends.
#[derive(Debug)]
pub(crate) struct JavaServer {
    // Dropped before the folder that it writes to.
    process: Mutex<Option<Process>>,
    program: &'static JavaProgram,
    /// Status of `GET /health` once it is ready.
    ready: StatusCode,
    port: u16,
    folder: Folder,
}

impl JavaServer {
    /// A server that does not run yet. The folder's name begins with `name`.
    ///
    /// # Errors
    ///
    /// The folder cannot be made.
    pub(crate) fn new(name: &str, program: &'static JavaProgram, ready: StatusCode) -> Result<Self, String> {
        Ok(Self { process: Mutex::new(None), program, ready, port: 0, folder: Folder::new(name)? })
    }

    /// Starts it on a free port, and waits until it answers.
    ///
    /// # Errors
    ///
    /// The message names the missing part, or contains the last output.
    pub(crate) async fn start(
        &mut self,
        properties: &Properties,
        environment: &[(&str, &OsStr)],
    ) -> Result<(), String> {
        let mut attempt = 1;
        loop {
            self.port = ports::free();
            match self.restart(properties, environment).await {
                Ok(()) => return Ok(()),
                Err(reason) if attempt == ATTEMPTS || !reason.contains("already in use") => {
                    return Err(reason);
                }
                Err(_) => attempt += 1,
            }
        }
    }

    /// Starts it again on its port, and kills it first if it runs.
    ///
    /// # Errors
    ///
    /// It ended, or does not answer in time.
    pub(crate) async fn restart(
        &self,
        properties: &Properties,
        environment: &[(&str, &OsStr)],
    ) -> Result<(), String> {
        self.kill();
        let port = ("server.port", self.port.to_string());
        let lines = properties.iter().chain([&port]).map(|(name, value)| {
            // A backslash starts an escape in such a file.
            format!("{name}={}\n", value.replace('\\', "\\\\"))
        });
        let file = self.folder.write("application.properties", &lines.collect::<String>())?;
        let mut java = self.program.command(self.folder.path())?;
        java.arg(format!("--spring.config.location=file:{}", file.display()));
        java.envs(environment.iter().copied()).current_dir(self.folder.path());
        let process = Process::spawn(self.program.what, &java, &self.folder.file("log"))?;
        *self.process.lock() = Some(process);
        try_eventually(self.program.what, START, async || {
            if let Err(ended) = self.process.lock().as_ref().map_or(Ok(()), Process::check_running) {
                return Ok(Err(ended));
            }
            self.answers().await.map(Ok)
        })
        .await?
    }

    /// Port on 127.0.0.1.
    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// Base URL.
    pub(crate) fn base_url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// Its folder, which is also its current one.
    pub(crate) fn folder(&self) -> &Folder {
        &self.folder
    }

    /// Pauses it (SIGSTOP): connections stay open and nothing answers.
    pub(crate) fn pause(&self) {
        if let Some(process) = &*self.process.lock() {
            process.pause();
        }
    }

    /// Resumes a paused one.
    pub(crate) fn resume(&self) {
        if let Some(process) = &*self.process.lock() {
            process.resume();
        }
    }

    /// Kills it.
    pub(crate) fn kill(&self) {
        if let Some(process) = self.process.lock().take() {
            process.kill();
        }
    }

    /// Ends it as its pod does (SIGTERM), and waits.
    ///
    /// # Errors
    ///
    /// It does not end in time; it is then killed.
    pub(crate) async fn stop(&self) -> Result<(), String> {
        let process = self.process.lock().take();
        match process {
            Some(process) => process.terminate(END).await.map(drop),
            None => Ok(()),
        }
    }

    /// Returns the output so far, of all starts.
    pub(crate) fn log(&self) -> String {
        std::fs::read(self.folder.file("log"))
            .map_or_else(|_| String::new(), |text| String::from_utf8_lossy(&text).into_owned())
    }

    /// Whether `GET /health` is as it is once the server is ready.
    async fn answers(&self) -> Result<(), String> {
        let stream = TcpStream::connect(("127.0.0.1", self.port)).await.map_err(|e| e.to_string())?;
        let (mut sender, connection) =
            http1::handshake(TokioIo::new(stream)).await.map_err(|e| e.to_string())?;
        let connection = tokio::spawn(connection);
        let request = Request::get("/health").header("host", "127.0.0.1").body(Empty::<Bytes>::new());
        let answer = sender.send_request(request.map_err(|e| e.to_string())?).await;
        connection.abort();
        match answer.map_err(|e| e.to_string())?.status() {
            status if status == self.ready => Ok(()),
            status => Err(format!("/health is {status}")),
        }
    }
}
