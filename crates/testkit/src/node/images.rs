//! Images put together from programs of this machine, without an engine: one layer in an archive of the OCI layout.

use std::{
    collections::BTreeSet,
    fs,
    os::unix::fs::{PermissionsExt, chown},
    path::{Path, PathBuf},
    process::Command,
};

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

/// User of distroless images.
const NONROOT: u32 = 65532;
/// Certificates of public authorities, where Debian has them.
const CERTIFICATES: &str = "etc/ssl/certs/ca-certificates.crt";

/// What an image contains.
#[derive(Debug, Clone)]
pub struct Image {
    name: String,
    programs: Vec<PathBuf>,
    config: Value,
    user: u32,
}

impl Image {
    /// An image of one program, which it runs as root.
    pub fn of_one_program(name: &str, program: &Path) -> Self {
        let file = program.file_name().unwrap_or_default().to_string_lossy();
        let config = json!({"Entrypoint": [format!("/usr/local/bin/{file}")]});
        Self { name: name.into(), programs: vec![program.to_path_buf()], config, user: 0 }
    }

    /// The image of kubesvc, as the Dockerfile makes it: the three programs of a folder with the libraries that they
    /// load, without a shell, for a user without rights.
    pub fn of_kubesvc(name: &str, folder: &Path) -> Self {
        let programs =
            ["kubesvc-operator", "kubesvc-agent", "kubectl-kubesvc"].map(|program| folder.join(program));
        let config = json!({
            "User": format!("{NONROOT}:{NONROOT}"),
            "WorkingDir": "/var/lib/kubesvc",
            "Env": ["PATH=/usr/local/bin"],
            "Cmd": ["kubesvc-operator"],
        });
        Self { name: name.into(), programs: programs.into(), config, user: NONROOT }
    }

    /// Writes the archive into a folder, and returns its path. Blocks.
    pub(super) fn write(&self, folder: &Path) -> Result<PathBuf, String> {
        let work = tempfile::tempdir_in(folder).map_err(|e| format!("{}: {e}", folder.display()))?;
        let (root, layout) = (work.path().join("root"), work.path().join("layout"));
        let blobs = layout.join("blobs/sha256");
        make(&blobs)?;
        self.fill(&root)?;
        let layer = work.path().join("layer.tar");
        tar(&layer, &root)?;
        let layer = keep(&blobs, &read(&layer)?, "application/vnd.oci.image.layer.v1.tar")?;
        let config = json!({
            "architecture": if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" },
            "os": "linux",
            "config": self.config,
            "rootfs": {"type": "layers", "diff_ids": [layer["digest"]]},
        });
        let config = keep(&blobs, config.to_string().as_bytes(), "application/vnd.oci.image.config.v1+json")?;
        let manifest = json!({"schemaVersion": 2, "config": config, "layers": [layer]});
        let mut manifest =
            keep(&blobs, manifest.to_string().as_bytes(), "application/vnd.oci.image.manifest.v1+json")?;
        manifest["annotations"] = json!({"io.containerd.image.name": self.name});
        write(&layout.join("index.json"), &json!({"schemaVersion": 2, "manifests": [manifest]}).to_string())?;
        write(&layout.join("oci-layout"), &json!({"imageLayoutVersion": "1.0.0"}).to_string())?;
        let name: String = self.name.chars().map(|c| if c.is_alphanumeric() { c } else { '-' }).collect();
        let archive = folder.join(format!("{name}.tar"));
        tar(&archive, &layout)?;
        Ok(archive)
    }

    /// Fills the image's root folder.
    fn fill(&self, root: &Path) -> Result<(), String> {
        let (bin, home) = (root.join("usr/local/bin"), root.join("var/lib/kubesvc"));
        for folder in [&bin, &home, &root.join("tmp")] {
            make(folder)?;
        }
        let problem = |e: std::io::Error| format!("{}: {e}", root.display());
        fs::set_permissions(root.join("tmp"), fs::Permissions::from_mode(0o1777)).map_err(problem)?;
        chown(&home, Some(self.user), Some(self.user)).map_err(problem)?;
        let mut libraries = BTreeSet::new();
        for program in &self.programs {
            let name = program.file_name().unwrap_or_default();
            // A debug build is ten times as large with what debuggers read.
            run(Command::new("strip").arg("-o").arg(bin.join(name)).arg(program))?;
            libraries.extend(libraries_of(program)?);
        }
        for library in &libraries {
            copy(library, &root.join(library.strip_prefix("/").unwrap_or(library)))?;
        }
        if Path::new("/").join(CERTIFICATES).is_file() {
            copy(&Path::new("/").join(CERTIFICATES), &root.join(CERTIFICATES))?;
        }
        make(&root.join("etc"))?;
        let users = format!("root:x:0:0::/root:/none\nnonroot:x:{NONROOT}:{NONROOT}::/home/nonroot:/none\n");
        write(&root.join("etc/passwd"), &users)
    }
}

/// Paths of the libraries that a program loads: none if it loads none.
fn libraries_of(program: &Path) -> Result<Vec<PathBuf>, String> {
    let listed = Command::new("ldd").arg(program).output().map_err(|e| format!("ldd: {e}"))?;
    let text = String::from_utf8_lossy(&listed.stdout).into_owned();
    // libc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x…), and /lib64/ld-linux-x86-64.so.2 (0x…)
    let paths = text.lines().filter_map(|line| {
        let rest = line.split_once("=> ").map_or(line, |(_, rest)| rest).trim();
        rest.starts_with('/').then(|| PathBuf::from(rest.split(" (").next().unwrap_or(rest)))
    });
    Ok(paths.collect())
}

/// Stores a blob under its digest, and returns what refers to it.
fn keep(blobs: &Path, bytes: &[u8], kind: &str) -> Result<Value, String> {
    let digest = hex::encode(Sha256::digest(bytes));
    fs::write(blobs.join(&digest), bytes).map_err(|e| format!("{}: {e}", blobs.display()))?;
    Ok(json!({"mediaType": kind, "digest": format!("sha256:{digest}"), "size": bytes.len()}))
}

fn tar(archive: &Path, folder: &Path) -> Result<(), String> {
    let mut command = Command::new("tar");
    command.args(["--numeric-owner", "--sort=name", "-cf"]).arg(archive).arg("-C").arg(folder).arg(".");
    run(&mut command)
}

fn run(command: &mut Command) -> Result<(), String> {
    let output = command.output().map_err(|e| format!("{command:?}: {e}"))?;
    if output.status.success() {
        return Ok(());
    }
    Err(format!("{command:?}: {}", String::from_utf8_lossy(&output.stderr)))
}

fn read(path: &Path) -> Result<Vec<u8>, String> {
    fs::read(path).map_err(|e| format!("{}: {e}", path.display()))
}

fn write(path: &Path, text: &str) -> Result<(), String> {
    fs::write(path, text).map_err(|e| format!("{}: {e}", path.display()))
}

fn make(folder: &Path) -> Result<(), String> {
    fs::create_dir_all(folder).map_err(|e| format!("{}: {e}", folder.display()))
}

fn copy(from: &Path, to: &Path) -> Result<(), String> {
    make(to.parent().unwrap_or(to))?;
    fs::copy(from, to).map(drop).map_err(|e| format!("{}: {e}", from.display()))
}
