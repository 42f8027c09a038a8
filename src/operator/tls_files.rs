//! Files of certificates, which are read again while the operator runs.

use std::sync::Arc;
use std::time::Duration;

use tracing::info;

use super::OperatorError;
use super::settings::ClouddriverSettings;
use crate::clouddriver::{ClouddriverTlsFiles, RenewedTls};
use kubesvc_runtime::background_tasks::{AttemptOutcome, BackgroundTasks, TaskSpec};
use kubesvc_runtime::crash_points;
use kubesvc_runtime::telemetry::errors::chain;
use kubesvc_runtime::tls::identity::TlsFiles;
use kubesvc_runtime::tls::server::ServerTls;

/// Interval between two looks at files of certificates, in seconds.
const INTERVAL_SECONDS: u64 = 60;

/// Interval between two looks at files of certificates.
pub(super) fn interval() -> Duration {
    Duration::from_secs(crash_points::seconds("KUBESVC_TLS_FILES_SECONDS", INTERVAL_SECONDS))
}

/// Reads the files for calls to Clouddriver, and reads them again from now on.
pub(super) async fn clouddriver(
    settings: &ClouddriverSettings,
    background: &BackgroundTasks,
) -> Result<Arc<RenewedTls>, OperatorError> {
    let files = &settings.tls;
    let identity = files.certificate_file.clone().zip(files.key_file.clone());
    let identity = identity.map(|(certificate, key)| TlsFiles { certificate, key, password: None });
    let files = ClouddriverTlsFiles { ca: files.ca_file.clone(), identity };
    let tls = Arc::new(RenewedTls::read(files).await?);
    if tls.has_files() {
        let does = "Reads the certificates for calls to Clouddriver again";
        let (spec, tls) = (TaskSpec::<()>::new("Clouddriver's certificates", does), Arc::clone(&tls));
        background.start(spec.every(interval()), move |_| refresh(Arc::clone(&tls)));
    }
    Ok(tls)
}

async fn refresh(tls: Arc<RenewedTls>) -> AttemptOutcome {
    match tls.refresh().await {
        Ok(true) => {
            info!("calls to Clouddriver use other certificates from now on");
            AttemptOutcome::Done
        }
        Ok(false) => AttemptOutcome::Unchanged,
        Err(error) => AttemptOutcome::failed(chain(&error)),
    }
}

/// Reads the files of a port's TLS again from now on.
pub(super) fn follow(
    task: &'static str,
    server: Arc<ServerTls>,
    interval: Duration,
    background: &BackgroundTasks,
) {
    let spec = TaskSpec::<()>::new(task, "Reads the files of a port's TLS again").every(interval);
    // Files that were mended are seen as soon as others, with the jitter of a retry.
    let spec = spec.retry_delays(interval / 2, interval / 2);
    background.start(spec, move |_| refresh_port(task, Arc::clone(&server)));
}

async fn refresh_port(task: &'static str, server: Arc<ServerTls>) -> AttemptOutcome {
    match server.refresh().await {
        Ok(true) => {
            info!("{task}: others are in use from now on");
            AttemptOutcome::Done
        }
        Ok(false) => AttemptOutcome::Unchanged,
        Err(error) => AttemptOutcome::failed(format!("the files read before stay in use: {}", chain(&error))),
    }
}
