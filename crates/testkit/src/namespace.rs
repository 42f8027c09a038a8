//! A separate namespace for each test.

use std::fmt;

use k8s_openapi::{NamespaceResourceScope, api::core::v1::Namespace};
use kube::{Api, Client, Resource, api::PostParams};

/// A namespace with a random name.
///
/// Nothing deletes it: no namespace controller runs that would empty it, and it is gone with its control plane.
#[derive(Clone)]
pub struct TestNamespace {
    name: String,
    client: Client,
}

impl TestNamespace {
    /// Creates it.
    ///
    /// # Errors
    ///
    /// The API server refuses, or does not answer.
    pub async fn create(client: Client) -> Result<Self, String> {
        let name = format!("t-{}", random(10));
        let mut namespace = Namespace::default();
        namespace.metadata.name = Some(name.clone());
        Api::all(client.clone())
            .create(&PostParams::default(), &namespace)
            .await
            .map_err(|e| format!("namespace {name}: {e}"))?;
        Ok(Self { name, client })
    }

    /// Name of the namespace.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the administrator's client that created the namespace.
    pub fn client(&self) -> Client {
        self.client.clone()
    }

    /// Returns the API of one kind in this namespace.
    pub fn api<K>(&self) -> Api<K>
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType: Default>,
    {
        Api::namespaced(self.client(), &self.name)
    }
}

impl fmt::Display for TestNamespace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

impl fmt::Debug for TestNamespace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TestNamespace({})", self.name)
    }
}

/// Returns random lowercase letters and digits.
pub fn random(length: usize) -> String {
    const ALPHABET: &[u8] = b"0123456789abcdefghijklmnopqrstuvwxyz";
    (0..length).map(|_| char::from(ALPHABET[rand::random_range(0..ALPHABET.len())])).collect()
}
