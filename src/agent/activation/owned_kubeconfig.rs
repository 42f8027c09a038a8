//! A kubeconfig named by the agent's owner may refer to files and to a program that logs in. Their contents
//! replace the references, so that the result can be vetted like any other kubeconfig.

use std::path::Path;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use secrecy::zeroize::Zeroizing;

use crate::account::kubeconfig::{self, DocumentNode};
use crate::agent::activation::exec::{Exec, ExecCredential};
use crate::agent::activation::files::{read, read_file};
use crate::agent::failure::before_send;
use crate::agent::watched_files::ReadFile;
use crate::wire::common::Failure;
use crate::wire::common::failure::Class;

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
    let Some(mut root) = kubeconfig::edit::read(bytes) else { return Ok(None) };
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
