//! Which call of Clouddriver's account management a path is.

use percent_encoding::percent_decode_str;

/// Number of times that a path is decoded to see whether it may lead to secrets.
const MAX_DECODINGS: usize = 4;

/// A call, as its method and its path say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CredentialsCall {
    /// `POST /credentials`.
    Create,
    /// `PUT /credentials`.
    Upsert,
    /// `PUT /credentials/NAME`.
    Update(String),
    /// `DELETE /credentials/NAME`.
    Delete(String),
    /// A path whose answer has resolved secrets: definitions by type, and the history of one.
    Secrets,
    /// `GET` of the list or of one account.
    Read,
    /// Another call below `/credentials`.
    Other,
    /// A path that is not below `/credentials`, as Clouddriver would read it.
    Elsewhere,
}

impl CredentialsCall {
    /// Whether its body has accounts that are written.
    pub fn has_accounts(&self) -> bool {
        matches!(self, Self::Create | Self::Upsert | Self::Update(_))
    }

    /// The call of a method and of a path as it was sent.
    pub fn of(method: &str, path: &str) -> Self {
        let mut decoded = path.to_owned();
        for _ in 0..MAX_DECODINGS {
            if leads_to_secrets(&segments(&decoded)) {
                return Self::Secrets;
            }
            let next = percent_decode_str(&decoded).decode_utf8_lossy().replace('\\', "/");
            if next == decoded {
                break;
            }
            decoded = next;
        }
        let segments = segments(path);
        let decode = |segment: &str| percent_decode_str(segment).decode_utf8().ok().map(String::from);
        let segments: Option<Vec<String>> = segments.into_iter().map(decode).collect();
        // What has a dot for a segment only when it is decoded is read differently by different servers.
        let Some(segments) = segments.filter(|all| !all.iter().any(|one| one == "." || one == "..")) else {
            return Self::Elsewhere;
        };
        let segments: Vec<&str> = segments.iter().map(String::as_str).collect();
        match (method, segments.as_slice()) {
            ("POST", ["credentials"]) => Self::Create,
            ("PUT", ["credentials"]) => Self::Upsert,
            ("PUT", ["credentials", name]) => Self::Update((*name).to_owned()),
            ("DELETE", ["credentials", name]) => Self::Delete((*name).to_owned()),
            ("GET" | "HEAD", ["credentials", ..]) => Self::Read,
            (_, ["credentials", ..]) => Self::Other,
            _ => Self::Elsewhere,
        }
    }
}

/// The segments of a path as a servlet container reads them: without parameters (`;…`), dots and empty ones.
fn segments(path: &str) -> Vec<&str> {
    let mut segments = Vec::new();
    for segment in path.split('/') {
        match segment.split(';').next().unwrap_or_default() {
            "" | "." => {}
            ".." => drop(segments.pop()),
            segment => segments.push(segment),
        }
    }
    segments
}

fn leads_to_secrets(segments: &[&str]) -> bool {
    matches!(segments, ["credentials", "type", _, ..] | ["credentials", _, "history", ..])
}
