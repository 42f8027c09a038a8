//! What a control plane is started with.

use crate::harness::namespace::random;

/// What a control plane is started with.
#[derive(Debug, Clone)]
pub(crate) struct StartOptions {
    pub(super) users: Vec<User>,
    /// Whether writes are recorded for [`ControlPlane::writes`]; they are unless said otherwise.
    pub(crate) audit: bool,
    /// Further flags of the API server; they come last, so they win.
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
    /// Without the record of writes, which costs the API server time.
    pub(crate) fn without_audit() -> Self {
        Self { audit: false, ..Self::default() }
    }

    /// A further user; the answer is its token. It has no rights until some RBAC object gives it some.
    pub(crate) fn add_user(&mut self, name: &str, groups: &[&str]) -> String {
        let token = random(32);
        let groups = groups.iter().map(|&group| group.to_owned()).collect();
        self.users.push(User { name: name.into(), groups, token: token.clone() });
        token
    }

    /// A further user whose token is given, such as one that another control plane takes too.
    pub(crate) fn add_user_with_token(&mut self, name: &str, groups: &[&str], token: &str) {
        let groups = groups.iter().map(|&group| group.to_owned()).collect();
        self.users.push(User { name: name.into(), groups, token: token.to_owned() });
    }

    /// The lines of `--token-auth-file`.
    pub(super) fn token_file(&self, admin: &str) -> String {
        let mut text = format!("{admin},kubesvc-admin,kubesvc-admin,\"system:masters\"\n");
        for User { name, groups, token } in &self.users {
            text += &format!("{token},{name},{name},\"{}\"\n", groups.join(","));
        }
        text
    }
}
