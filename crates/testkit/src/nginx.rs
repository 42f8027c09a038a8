//! nginx with a server of a configuration sample, on a port of 127.0.0.1.

use std::{path::PathBuf, process::Command, time::Duration};

use super::{assets::look_up, folder::Folder, ports, process::Process, wait::try_eventually};

const START: Duration = Duration::from_secs(20);
/// Another process may take a port before it is bound.
const ATTEMPTS: u32 = 3;

/// A running nginx. Killed on drop, or when the test process ends.
#[derive(Debug)]
pub struct Nginx {
    // Dropped before the folder that it writes to.
    _process: Process,
    port: u16,
    _folder: Folder,
}

impl Nginx {
    /// Checks (`nginx -t`) and starts what `site` returns for a free port: the content of `http`.
    ///
    /// # Errors
    ///
    /// There is no nginx, or it refuses the text; the message says what to do, or what it says.
    pub async fn start(site: impl Fn(u16) -> String) -> Result<Self, String> {
        let mut attempt = 1;
        loop {
            let port = ports::free();
            match Self::start_on(port, &site(port)).await {
                Err(reason) if attempt < ATTEMPTS && reason.contains("Address already in use") => {
                    attempt += 1;
                }
                result => return result,
            }
        }
    }

    /// Port on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port
    }

    async fn start_on(port: u16, site: &str) -> Result<Self, String> {
        let (nginx, folder) = (program()?, Folder::new("nginx")?);
        folder.write("site.conf", site)?;
        let path = folder.path().display();
        let temporary = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
            .map(|name| format!("    {name}_temp_path {path}/{name};\n"))
            .concat();
        // Only the user who runs the test may use the folder. nginx ignores `user` unless that is root.
        let text = format!(
            "daemon off;\nworker_processes 1;\nuser root;\npid {path}/pid;\nerror_log stderr;\nevents {{}}\n\
             http {{\n    access_log off;\n{temporary}    include {path}/site.conf;\n}}\n"
        );
        let configuration = folder.write("nginx.conf", &text)?;
        let command = |arguments: &[&str]| {
            let mut command = Command::new(&nginx);
            command.arg("-p").arg(folder.path()).arg("-e").arg("stderr").arg("-c").arg(&configuration);
            command.args(arguments);
            command
        };
        let checked = command(&["-t"]).output().map_err(|e| format!("nginx: {e}"))?;
        if !checked.status.success() {
            return Err(format!("nginx -t: {}", String::from_utf8_lossy(&checked.stderr)));
        }
        let process = Process::spawn("nginx", &command(&[]), &folder.file("log"))?;
        try_eventually("nginx", START, async || {
            if let Err(ended) = process.check_running() {
                return Ok(Err(ended));
            }
            let answered = tokio::net::TcpStream::connect(("127.0.0.1", port)).await;
            answered.map(|_| Ok(())).map_err(|e| e.to_string())
        })
        .await??;
        Ok(Self { _process: process, port, _folder: folder })
    }
}

fn program() -> Result<PathBuf, String> {
    let debian = PathBuf::from("/usr/sbin/nginx");
    look_up("nginx").or_else(|| debian.is_file().then_some(debian)).ok_or_else(|| {
        "there is no `nginx` on PATH: `make nginx` installs it (Debian package nginx-light)".to_owned()
    })
}
