//! A kubeconfig that the agent's owner names may itself name files. They are read here and put in their places, so
//! that what is vetted afterwards is like any other kubeconfig.

use std::path::Path;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use secrecy::zeroize::Zeroizing;

use crate::agent::activation::files::{read, read_file};
use crate::agent::failure::before_send;
use crate::agent::watched_files::ReadFile;
use crate::wire::common::Failure;
use crate::wire::common::failure::Class;

mod tree;

use tree::Node;

/// A kubeconfig with the contents of the files that it named.
pub(super) struct Filled {
    pub(super) bytes: Zeroizing<Vec<u8>>,
    pub(super) files: Vec<ReadFile>,
}

/// Fills the chosen context in. `None` if it names no files, or if there is no telling: then vetting says why.
///
/// Relative paths count from the folder of `path`. As for kubectl, a `…-data` key stands over the path beside it, and
/// `tokenFile` over `token`.
pub(super) fn with_files(
    bytes: &[u8],
    context: Option<&str>,
    path: &Path,
) -> Result<Option<Filled>, Failure> {
    let Some(mut root) = tree::read(bytes) else { return Ok(None) };
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
        Filler { folder: path.parent().unwrap_or(Path::new("/")), files: Vec::new(), changed: false };
    if let Some(cluster) = root.named_mut("clusters", &cluster, "cluster") {
        filler.data(cluster, "certificate-authority")?;
    }
    if let Some(user) = root.named_mut("users", &user, "user") {
        // A program is refused as it is; nothing is read on the way to that.
        if !user.has("exec") && !user.has("auth-provider") {
            filler.data(user, "client-certificate")?;
            filler.data(user, "client-key")?;
            filler.token(user)?;
        }
    }
    if filler.files.is_empty() && !filler.changed {
        return Ok(None);
    }
    root.keep("clusters", &cluster);
    root.keep("users", &user);
    root.keep("contexts", &name);
    Ok(Some(Filled { bytes: root.to_json(), files: filler.files }))
}

struct Filler<'p> {
    folder: &'p Path,
    files: Vec<ReadFile>,
    changed: bool,
}

impl Filler<'_> {
    /// Puts the content of the file under `key` under `key-data`.
    fn data(&mut self, of: &mut Node, key: &str) -> Result<(), Failure> {
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

    /// Puts the content of `tokenFile` under `token`.
    fn token(&mut self, user: &mut Node) -> Result<(), Failure> {
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
