//! Findings about the settings that choose the cached objects. Each one names the setting and the remedy.

use std::fmt;

/// A setting that influences the choice of cached objects.
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
    /// Name of the setting: a full key for the operator's, a field for an account's.
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

/// A finding about the settings.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Finding {
    /// A text that cannot be the name of a kind. It is left out of the list.
    #[error(
        "{setting}: {text:?} is no kind: write Kind or Kind.group, such as Deployment or Rollout.argoproj.io"
    )]
    NotAKind {
        /// The setting with the text.
        setting: Setting,
        /// The text, truncated to 320 bytes.
        text: String,
    },
    /// A text that cannot be the name of a namespace. It is left out of the list.
    #[error("{setting}: {text:?} is no namespace: use at most 63 lower-case letters, digits and dashes")]
    NotANamespace {
        /// The setting with the text.
        setting: Setting,
        /// The text, truncated to 320 bytes.
        text: String,
    },
    /// A list longer than allowed. Excess items are left out.
    #[error("{setting} has {count} items, but only the first {max} are used: remove some")]
    TooMany {
        /// The setting.
        setting: Setting,
        /// Number of its items.
        count: usize,
        /// Number of items that are used.
        max: usize,
    },
    /// A custom kind without its group. No cluster serves such a kind.
    #[error("{setting}: {text:?} has no API group: write Kind.group")]
    NoGroup {
        /// The setting with the text.
        setting: Setting,
        /// The text.
        text: String,
    },
    /// A name similar to that of a Kubernetes kind. It is used as written.
    #[error("{setting}: {text:?} is no Kubernetes kind: did you mean {nearest:?}? Used as a custom kind")]
    Unfamiliar {
        /// The setting with the text.
        setting: Setting,
        /// The text.
        text: String,
        /// The similar kind.
        nearest: &'static str,
    },
    /// A kind that is both named and omitted. It is omitted.
    #[error("{named_by} names {text:?}, and {omitted_by} omits it: it is not cached; remove one of the two")]
    NamedAndOmitted {
        /// The setting that names it.
        named_by: Setting,
        /// The setting that omits it.
        omitted_by: Setting,
        /// The kind as written.
        text: String,
    },
    /// Two settings that exclude each other. Both take effect: what either leaves out is left out.
    #[error("{one} and {other} exclude each other: remove one of them")]
    Exclusive {
        /// One of the two.
        one: Setting,
        /// The other.
        other: Setting,
    },
    /// A setting without effect because of another.
    #[error("{setting} has no effect: {reason}")]
    NoEffect {
        /// The setting.
        setting: Setting,
        /// Reason and remedy.
        reason: &'static str,
    },
    /// A setting that requires another one.
    #[error("{setting} needs {needed}: {reason}")]
    Needs {
        /// The setting.
        setting: Setting,
        /// The missing setting.
        needed: Setting,
        /// Remedy.
        reason: &'static str,
    },
}

impl Finding {
    /// The affected setting; of two, the one named first.
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

    /// Whether part of the settings is unusable. A program refuses such settings at startup, and an account uses the
    /// rest. Other findings are worth a warning.
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
