//! One line at the start of an outage, and one at its end.

use tracing::{info, warn};

use super::errors::chain;
use crate::watches::Outage;

/// Logs that a watch shows nothing any more, or shows again what is so. `what` it watches.
pub fn tell(what: &str, outage: &Outage) {
    match outage {
        Outage::Begun(problem) => {
            warn!(
                error = chain(problem),
                "{what} cannot be watched; tried again until the API server answers"
            );
        }
        Outage::Over(time) => info!(seconds = time.as_secs(), "{what} are watched again"),
    }
}
