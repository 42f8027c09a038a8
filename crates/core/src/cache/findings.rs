//! What is wrong with the settings that choose what is cached. Each finding names the setting and what to do.

use std::fmt;

/// A setting that takes part in the choice of what is cached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Setting {
    /// The operator's `kubesvc.cache.cacheAll`.
    CacheAll,
    /// The operator's `kubesvc.cache.cacheDefaults`.
    CacheDefaults,
    /// The operator's `kubesvc.cache.cacheKinds`.
    CacheKinds,
    /// The operator's `kubesvc.cache.cacheOmitKinds`.
    CacheOmitKinds,
    /// The operator's `kubesvc.runtime.defaults.customResources` and `kubesvc.runtime.accounts.*.customResources`.
    RuntimeCustomResources,
    /// An account's `kinds`.
    Kinds,
    /// An account's `omitKinds`.
    OmitKinds,
    /// An account's `namespaces`.
    Namespaces,
    /// An account's `omitNamespaces`.
    OmitNamespaces,
    /// An account's `onlyNamespacedResources`.
    OnlyNamespacedResources,
    /// An account's `onlySpinnakerManaged`, or the operator's default for it.
    OnlySpinnakerManaged,
    /// An account's `customResourceDefinitions`.
    CustomResourceDefinitions,
    /// An account's `customResources`.
    CustomResources,
}

impl Setting {
    /// The name of the setting: a full key for the operator's, a field for an account's.
    pub fn name(self) -> &'static str {
        match self {
            Self::CacheAll => "kubesvc.cache.cacheAll",
            Self::CacheDefaults => "kubesvc.cache.cacheDefaults",
            Self::CacheKinds => "kubesvc.cache.cacheKinds",
            Self::CacheOmitKinds => "kubesvc.cache.cacheOmitKinds",
            Self::RuntimeCustomResources => "kubesvc.runtime.*.customResources",
            Self::Kinds => "kinds",
            Self::OmitKinds => "omitKinds",
            Self::Namespaces => "namespaces",
            Self::OmitNamespaces => "omitNamespaces",
            Self::OnlyNamespacedResources => "onlyNamespacedResources",
            Self::OnlySpinnakerManaged => "onlySpinnakerManaged",
            Self::CustomResourceDefinitions => "customResourceDefinitions",
            Self::CustomResources => "customResources",
        }
    }
}

impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Something that a person should know of the settings.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Finding {
    /// A text that can be the name of no kind. It is left out of the list.
    #[error(
        "{setting}: {text:?} is no kind: write Kind or Kind.group, such as Deployment or Rollout.argoproj.io"
    )]
    NotAKind {
        /// The setting that has it.
        setting: Setting,
        /// The text, cut to 320 bytes.
        text: String,
    },
    /// A text that can be the name of no namespace. It is left out of the list.
    #[error("{setting}: {text:?} is no namespace: lower-case letters, digits and dashes, at most 63")]
    NotANamespace {
        /// The setting that has it.
        setting: Setting,
        /// The text, cut to 320 bytes.
        text: String,
    },
    /// A list that is longer than allowed. What is beyond is left out.
    #[error("{setting} has {count} items, and only the first {max} count: remove some")]
    TooMany {
        /// The setting.
        setting: Setting,
        /// Items that it has.
        count: usize,
        /// Items that count.
        max: usize,
    },
    /// A custom kind without its group. No cluster serves such a kind.
    #[error("{setting}: {text:?} has no API group: write Kind.group")]
    NoGroup {
        /// The setting that has it.
        setting: Setting,
        /// The text.
        text: String,
    },
    /// A name that is nearly that of a kind of Kubernetes. It counts as it is.
    #[error("{setting}: {text:?} is no kind of Kubernetes: is {nearest:?} meant? It counts as a custom kind")]
    Unfamiliar {
        /// The setting that has it.
        setting: Setting,
        /// The text.
        text: String,
        /// The kind that may be meant.
        nearest: &'static str,
    },
    /// A kind is both named and omitted. It is omitted.
    #[error("{named_by} names {text:?}, and {omitted_by} omits it: it is not cached; remove one of the two")]
    NamedAndOmitted {
        /// The setting that names it.
        named_by: Setting,
        /// The setting that omits it.
        omitted_by: Setting,
        /// The kind, as it is named.
        text: String,
    },
    /// Two settings of which only one may be given. Both take effect: what either leaves out is left out.
    #[error("{one} and {other} exclude each other: remove one of them")]
    Exclusive {
        /// One of the two.
        one: Setting,
        /// The other.
        other: Setting,
    },
    /// A setting that has no effect because of another.
    #[error("{setting} has no effect: {reason}")]
    NoEffect {
        /// The setting.
        setting: Setting,
        /// Why, and what to do.
        reason: &'static str,
    },
    /// A setting that needs another one.
    #[error("{setting} needs {needed}: {reason}")]
    Needs {
        /// The setting.
        setting: Setting,
        /// The setting that is missing.
        needed: Setting,
        /// What to do.
        reason: &'static str,
    },
}

impl Finding {
    /// The setting that it is about; of two, the one that is named first.
    pub fn setting(&self) -> Setting {
        match self {
            Self::NotAKind { setting, .. }
            | Self::NotANamespace { setting, .. }
            | Self::TooMany { setting, .. }
            | Self::NoGroup { setting, .. }
            | Self::Unfamiliar { setting, .. }
            | Self::NoEffect { setting, .. }
            | Self::Needs { setting, .. }
            | Self::NamedAndOmitted { named_by: setting, .. }
            | Self::Exclusive { one: setting, .. } => *setting,
        }
    }

    /// Whether the settings cannot be meant as they are: part of them is not used. A program that starts refuses them;
    /// an account goes on with the rest. What is no error is worth a warning.
    pub fn is_error(&self) -> bool {
        match self {
            Self::NotAKind { .. }
            | Self::NotANamespace { .. }
            | Self::TooMany { .. }
            | Self::NoGroup { .. }
            | Self::Exclusive { .. }
            | Self::Needs { .. } => true,
            Self::Unfamiliar { .. } | Self::NamedAndOmitted { .. } | Self::NoEffect { .. } => false,
        }
    }
}
