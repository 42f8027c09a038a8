//! The account's settings of its scope: whether its kind is watched, the shape of its rows, and its filter.

const SHAPES: [&str; 2] = ["s", "t"];
/// Filters: one that omits nothing, and one that omits all but one object.
const FILTERS: [&str; 2] = ["f", "g"];
/// Object that no filter omits.
const ALWAYS_READ: &str = "a";

/// One of the settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Setting {
    Kind,
    Shape,
    Filter,
}

/// The account's settings of its scope.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Settings {
    pub(super) is_watched: bool,
    pub(super) shape: &'static str,
    pub(super) filter: &'static str,
}

impl Default for Settings {
    fn default() -> Self {
        Self { is_watched: true, shape: SHAPES[0], filter: FILTERS[0] }
    }
}

impl Settings {
    /// Toggles a setting.
    pub(super) fn change(&mut self, setting: Setting) {
        let other = |[one, other]: [&'static str; 2], now: &str| if now == one { other } else { one };
        match setting {
            Setting::Kind => self.is_watched = !self.is_watched,
            Setting::Shape => self.shape = other(SHAPES, self.shape),
            Setting::Filter => self.filter = other(FILTERS, self.filter),
        }
    }
}

/// Whether objects of this name pass a filter.
pub(super) fn lets_through(filter: &str, name: &str) -> bool {
    filter == FILTERS[0] || name == ALWAYS_READ
}
