//! Terminal output for people: tables, colors, progress and the formats of `-o`.
//!
//! | file | contents |
//! |---|---|
//! | `text.rs` | foreign text without control characters |
//! | `table.rs` | columns as kubectl aligns them |
//! | `style.rs` | colors of states |
//! | `format.rs` | objects as JSON and YAML |
//! | `fields.rs` | aligned `Name: value` sections |
//! | `progress.rs` | a progress bar on a terminal |
//! | `out.rs` | standard output and standard error; a closed pipe is not an error |

pub mod fields;
pub mod format;
pub mod out;
pub mod progress;
pub mod style;
pub mod table;
pub mod text;

pub use fields::Fields;
pub use format::Format;
pub use progress::Progress;
pub use table::Table;
