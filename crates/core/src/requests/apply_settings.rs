//! What an agent's owner says of applying, from its message.

use crate::operations::{ApplySettings, KindApplySettings, Preference};
use crate::wire::ops;

/// The settings as programs of operations take them. A word that is not known counts as not said.
pub fn apply_settings(said: &ops::ApplySettings) -> ApplySettings {
    let of_all = said.server_side.clone().unwrap_or_default();
    ApplySettings {
        server_side: preference(&of_all.enabled),
        clear_managed_fields: preference(&of_all.clear_managed_fields),
        kinds: said
            .kinds
            .iter()
            .map(|one| KindApplySettings {
                kind: one.kind.clone(),
                server_side: preference(&one.enabled),
                clear_managed_fields: preference(&one.clear_managed_fields),
            })
            .collect(),
    }
}

fn preference(word: &str) -> Preference {
    match word.to_ascii_lowercase().as_str() {
        "always" | "true" => Preference::Always,
        "never" | "false" => Preference::Never,
        _ => Preference::Allowed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_of_all_and_of_single_kinds_are_read() {
        let of = |kind: &str, enabled: &str, clear: &str| ops::ServerSideApply {
            kind: kind.into(),
            enabled: enabled.into(),
            clear_managed_fields: clear.into(),
        };
        let said = ops::ApplySettings {
            server_side: Some(of("", "always", "")),
            kinds: vec![of("Deployment.apps", "never", "always")],
            retries: None,
        };
        let read = apply_settings(&said);
        assert_eq!((read.server_side, read.clear_managed_fields), (Preference::Always, Preference::Allowed));
        let kind = &read.kinds[0];
        assert_eq!(
            (kind.kind.as_str(), kind.server_side, kind.clear_managed_fields),
            ("Deployment.apps", Preference::Never, Preference::Always)
        );
    }
}
