//! Credentials sources: what each of Clouddriver's contains, and which account of several sources has a name.
//!
//! Each reader turns the text of one kind of source into a [`SourceSnapshot`]: `files` the YAML files of a Spring
//! application, `config_server` the answer of a Spring Cloud config server, `stored` the definitions that Clouddriver
//! keeps in its database and shows at `/credentials`. What is wrong with one account makes one [`BadEntry`], and hides
//! no other account. [`MergedSources`] applies the order of the sources. Absence of a name is a fact only if every source
//! was read completely.
//!
//! Messages name files, lines, positions and keys, never a value: any value may be a credential.

mod config_server;
mod fields;
mod files;
mod merged;
mod placeholders;
mod properties;
mod settings;
mod snapshot;
mod stored;
#[cfg(test)]
mod tests;
mod yaml;

pub use config_server::read_config_server;
pub use files::{NamedText, is_active, is_spring_file, read_files, sort_by_precedence};
pub use merged::{MergedSources, NameLookup, Shadowed};
pub use settings::{FileSetting, FileSettings, read_settings};
pub use snapshot::{BadEntry, Completeness, SourceEntry, SourceFault, SourceItem, SourceSnapshot};
pub use stored::{read_definition, read_page, read_row};
