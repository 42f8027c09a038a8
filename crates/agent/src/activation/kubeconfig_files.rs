//! Files with credentials on the agent: reading them within bounds, and the kubeconfigs of the agent's owner.
//!
//! A kubeconfig named by the owner may refer to files and to a program that logs in. Their contents replace the
//! references, so that the result can be vetted like any other kubeconfig.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use secrecy::zeroize::Zeroizing;
use sha2::{Digest, Sha256};

use crate::activation::exec::{Exec, ExecCredential};
use crate::regular_file::{self, RegularFileError};
use crate::watched_files::ReadFile;
use crate::wire_failure::before_send;
use kubesvc_core::kubeconfig::{DocumentNode, KubeconfigError, vet_file_path};
use kubesvc_core::wire::common::Failure;
use kubesvc_core::wire::common::failure::Class;

/// Maximum size of a kubeconfig, certificate, key or token, in bytes.
pub const MAX_FILE_BYTES: u64 = 256 * 1024;

/// Runs blocking work on a thread for it.
pub(super) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Failure> + Send + 'static,
) -> Result<T, Failure> {
    tokio::task::spawn_blocking(work)
        .await
        .unwrap_or_else(|error| Err(before_send(Class::Internal, format!("reading a file failed: {error}"))))
}

/// Resolves a path from the hub, following symbolic links, if the target is below one of the folders.
pub(super) fn below(path: &str, folders: &[PathBuf]) -> Result<PathBuf, Failure> {
    let refuse = |refusal: KubeconfigError| before_send(Class::BadReference, refusal.to_string());
    let asked = vet_file_path(path, folders).map_err(refuse)?;
    let real = fs::canonicalize(asked).map_err(|error| unreadable(asked, &error))?;
    // Symbolic links may be followed, but not out of the folders, which may be links themselves.
    let real_folders: Vec<_> = folders.iter().filter_map(|folder| fs::canonicalize(folder).ok()).collect();
    let leads_out = || {
        before_send(
            Class::BadReference,
            format!("{path} is a link that leads out of the folders that the agent allows"),
        )
    };
    let text = real.to_str().ok_or_else(leads_out)?;
    vet_file_path(text, &real_folders).map_err(|_| leads_out())?;
    Ok(real)
}

/// Reads a regular file of limited size. `shown` is the path that messages contain.
pub(super) fn read(path: &Path, shown: &Path) -> Result<Zeroizing<Vec<u8>>, Failure> {
    regular_file::read(path, MAX_FILE_BYTES).map_err(|error| match error {
        RegularFileError::Io(error) => unreadable(shown, &error),
        RegularFileError::Irregular => {
            before_send(Class::BadReference, format!("{} is no regular file", shown.display()))
        }
        RegularFileError::TooLarge(max) => {
            before_send(Class::BadKubeconfig, format!("{} is larger than {max} bytes", shown.display()))
        }
    })
}

/// The path and digest of a file, for watching it.
pub(super) fn read_file(path: &Path, bytes: &[u8]) -> ReadFile {
    ReadFile { path: path.to_owned(), digest: Sha256::digest(bytes).into() }
}

/// The failure of an unreadable file. Retryable, because a missing file may be created later.
fn unreadable(path: &Path, error: &io::Error) -> Failure {
    let message = format!("{} cannot be read on the agent: {error}", path.display());
    Failure { retryable: true, ..before_send(Class::BadReference, message) }
}

/// A kubeconfig with the contents of the files that it named, and its program, if it logs in with one.
pub(super) struct OwnedKubeconfig {
    root: DocumentNode<'static>,
    user: String,
    pub(super) files: Vec<ReadFile>,
    pub(super) exec: Option<Exec>,
}

impl OwnedKubeconfig {
    /// The kubeconfig for vetting, with the credential that its program printed.
    pub(super) fn with_credential(mut self, credential: &ExecCredential) -> Zeroizing<Vec<u8>> {
        self.replace_exec(credential.token.as_deref().map(String::as_str), credential.pair.as_ref())
    }

    /// Like [`OwnedKubeconfig::with_credential`], with a placeholder for the credential, to check everything
    /// else.
    pub(super) fn without_credential(mut self) -> Zeroizing<Vec<u8>> {
        if self.exec.is_some() { self.replace_exec(Some("none"), None) } else { self.root.to_json() }
    }

    fn replace_exec(
        &mut self,
        token: Option<&str>,
        pair: Option<&(String, Zeroizing<String>)>,
    ) -> Zeroizing<Vec<u8>> {
        if let Some(user) = self.root.named_mut("users", &self.user, "user") {
            user.remove("exec");
            if let Some(token) = token {
                user.set("token", token.to_owned());
            }
            // A certificate and key in the kubeconfig itself override those of the program.
            if let Some((certificate, key)) = pair.filter(|_| user.text("client-certificate-data").is_none())
            {
                user.set("client-certificate-data", STANDARD.encode(certificate));
                user.set("client-key-data", STANDARD.encode(key.as_bytes()));
            }
        }
        self.root.to_json()
    }
}

/// Resolves the files and the program of the chosen context. Returns `None` if it names neither, or if the
/// context cannot be found; vetting then reports why.
///
/// Relative paths start at the folder of `path`. As in kubectl, a `…-data` key overrides the path next to it,
/// `tokenFile` overrides `token`, and a token overrides a program.
pub(super) fn with_files(
    bytes: &[u8],
    context: Option<&str>,
    path: &Path,
) -> Result<Option<OwnedKubeconfig>, Failure> {
    let Some(mut root) = DocumentNode::read(bytes) else { return Ok(None) };
    let name = match context {
        Some(name) => name.to_owned(),
        None => match root.text("current-context") {
            Some(name) => name.to_owned(),
            None => return Ok(None),
        },
    };
    let Some(chosen) = root.named("contexts", &name, "context") else { return Ok(None) };
    let cluster = chosen.text("cluster").unwrap_or_default().to_owned();
    let user = chosen.text("user").unwrap_or_default().to_owned();
    let mut filler =
        FileInliner { folder: path.parent().unwrap_or(Path::new("/")), files: Vec::new(), changed: false };
    let mut about_cluster = Zeroizing::new(Vec::new());
    if let Some(cluster) = root.named_mut("clusters", &cluster, "cluster") {
        filler.data(cluster, "certificate-authority")?;
        about_cluster = cluster.to_json();
    }
    let mut exec = None;
    if let Some(user) = root.named_mut("users", &user, "user") {
        // Vetting refuses an auth provider, so no file is read for it.
        if !user.has("auth-provider") {
            filler.data(user, "client-certificate")?;
            filler.data(user, "client-key")?;
            filler.token(user)?;
            if user.has("exec") && user.text("token").is_some() {
                user.remove("exec");
                filler.changed = true;
            }
            if let Some(written) = user.get("exec").filter(|_| user.has("exec")) {
                let written = written.to_json();
                let text = |bytes: &[u8]| Zeroizing::new(String::from_utf8_lossy(bytes).into_owned());
                exec = Some(Exec::read(&text(&written), &text(&about_cluster))?);
            }
        }
    }
    if filler.files.is_empty() && !filler.changed && exec.is_none() {
        return Ok(None);
    }
    root.keep("clusters", &cluster);
    root.keep("users", &user);
    root.keep("contexts", &name);
    Ok(Some(OwnedKubeconfig { root, user, files: filler.files, exec }))
}

struct FileInliner<'p> {
    folder: &'p Path,
    files: Vec<ReadFile>,
    changed: bool,
}

impl FileInliner<'_> {
    /// Replaces the path in `key` by the file's content in `key-data`.
    fn data(&mut self, of: &mut DocumentNode<'_>, key: &str) -> Result<(), Failure> {
        let Some(path) = of.text(key).map(str::to_owned) else { return Ok(()) };
        self.changed = true;
        of.remove(key);
        let data = format!("{key}-data");
        if of.text(&data).is_none() {
            let content = self.read(&path)?;
            of.set(&data, STANDARD.encode(&*content));
        }
        Ok(())
    }

    /// Replaces the path in `tokenFile` by the file's content in `token`.
    fn token(&mut self, user: &mut DocumentNode<'_>) -> Result<(), Failure> {
        let Some(path) = user.text("tokenFile").map(str::to_owned) else { return Ok(()) };
        let content = self.read(&path)?;
        let token = std::str::from_utf8(&content).map(str::trim).unwrap_or_default();
        if token.is_empty() {
            let message = format!("{} holds no token", self.folder.join(&path).display());
            return Err(Failure { retryable: true, ..before_send(Class::BadReference, message) });
        }
        user.remove("tokenFile");
        user.set("token", token.to_owned());
        Ok(())
    }

    fn read(&mut self, path: &str) -> Result<Zeroizing<Vec<u8>>, Failure> {
        let path = self.folder.join(path);
        let content = read(&path, &path)?;
        self.files.push(read_file(&path, &content));
        Ok(content)
    }
}
