//! Options of a control plane.

use crate::harness::namespace::random;

/// Options of a control plane.
#[derive(Debug, Clone)]
pub(crate) struct StartOptions {
    pub(super) users: Vec<User>,
    /// Whether writes are recorded for [`ControlPlane::writes`]. Defaults to true.
    pub(crate) audit: bool,
    /// Additional flags of the API server. They come last and therefore take precedence.
    pub(crate) apiserver_flags: Vec<String>,
}

#[derive(Debug, Clone)]
pub(super) struct User {
    pub(super) name: String,
    groups: Vec<String>,
    pub(super) token: String,
}

impl Default for StartOptions {
    fn default() -> Self {
        Self { users: Vec::new(), audit: true, apiserver_flags: Vec::new() }
    }
}

impl StartOptions {
    /// Options without the audit log, which costs the API server time.
    pub(crate) fn without_audit() -> Self {
        Self { audit: false, ..Self::default() }
    }

    /// Adds a user and returns its token. The user has no rights until RBAC objects grant some.
    pub(crate) fn add_user(&mut self, name: &str, groups: &[&str]) -> String {
        let token = random(32);
        let groups = groups.iter().map(|&group| group.to_owned()).collect();
        self.users.push(User { name: name.into(), groups, token: token.clone() });
        token
    }

    /// Adds a user with a given token, such as one that another control plane accepts too.
    pub(crate) fn add_user_with_token(&mut self, name: &str, groups: &[&str], token: &str) {
        let groups = groups.iter().map(|&group| group.to_owned()).collect();
        self.users.push(User { name: name.into(), groups, token: token.to_owned() });
    }

    /// Returns the lines of `--token-auth-file`.
    pub(super) fn token_file(&self, admin: &str) -> String {
        let mut text = format!("{admin},kubesvc-admin,kubesvc-admin,\"system:masters\"\n");
        for User { name, groups, token } in &self.users {
            text += &format!("{token},{name},{name},\"{}\"\n", groups.join(","));
        }
        text
    }
}
