//! What the account's settings say of its scope: whether its kind is watched, what a row is made of, and what is left out.

/// The shapes that there are.
const SHAPES: [&str; 2] = ["s", "t"];
/// The filters that there are: one that leaves out nothing, and one that leaves out all but one object.
const FILTERS: [&str; 2] = ["f", "g"];
/// The object that no filter leaves out.
const ALWAYS_READ: &str = "a";

/// One of the settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Setting {
    Kind,
    Shape,
    Filter,
}

/// What the account's settings say of its scope.
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
    /// Gives a setting its other value.
    pub(super) fn change(&mut self, setting: Setting) {
        let other = |[one, other]: [&'static str; 2], now: &str| if now == one { other } else { one };
        match setting {
            Setting::Kind => self.is_watched = !self.is_watched,
            Setting::Shape => self.shape = other(SHAPES, self.shape),
            Setting::Filter => self.filter = other(FILTERS, self.filter),
        }
    }
}

/// Whether objects of this name are read under a filter.
pub(super) fn lets_through(filter: &str, name: &str) -> bool {
    filter == FILTERS[0] || name == ALWAYS_READ
}
