//! The end: the first signal asks everyone to finish, a second one ends at once.

use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

/// How long everyone has to finish after the first signal.
pub(crate) const GRACE: Duration = Duration::from_secs(18);

/// Cancels `stop` at SIGTERM or SIGINT; at the second one, or after the grace, ends the process.
///
/// # Errors
/// If the signals cannot be caught.
pub(crate) fn on_signal(stop: CancellationToken) -> std::io::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    tokio::spawn(async move {
        wait(&mut terminate, &mut interrupt).await;
        info!("stopping");
        stop.cancel();
        tokio::select! {
            () = wait(&mut terminate, &mut interrupt) => warn!("a second signal: ending at once"),
            () = tokio::time::sleep(GRACE) => warn!("not everything finished in time: ending"),
        }
        std::process::exit(1);
    });
    Ok(())
}

async fn wait(terminate: &mut tokio::signal::unix::Signal, interrupt: &mut tokio::signal::unix::Signal) {
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
}
