//! A Spring Cloud config server.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use super::http::{HttpAccess, follow_interval, path_segment};
use super::{CredentialsSource, SourceReadError};
use kubesvc_clouddriver::sources::{SourceSnapshot, read_config_server};

/// Reads what the server has for an application.
pub(super) struct ConfigServerSource {
    name: Arc<str>,
    url: String,
    access: HttpAccess,
    vars: Arc<BTreeMap<String, String>>,
}

impl ConfigServerSource {
    pub(super) fn new(
        name: Arc<str>,
        (uri, application, profile): (&str, &str, &str),
        label: Option<&str>,
        access: HttpAccess,
        vars: Arc<BTreeMap<String, String>>,
    ) -> Self {
        let parts = [application, profile].map(path_segment);
        let mut url = format!("{}/{}", uri.trim_end_matches('/'), parts.join("/"));
        if let Some(label) = label {
            // The server's own way to write a slash of a branch.
            url.push_str(&format!("/{}", path_segment(&label.replace('/', "(_)"))));
        }
        Self { name, url, access, vars }
    }
}

#[async_trait]
impl CredentialsSource for ConfigServerSource {
    fn interval(&self) -> Duration {
        follow_interval()
    }

    async fn read(&self) -> Result<Arc<SourceSnapshot>, SourceReadError> {
        let answer = self.access.client(&self.url).await?.get(&self.url).await?;
        Ok(Arc::new(read_config_server(&self.name, &answer, &self.vars)?))
    }
}
