//! What a person sees on a terminal: tables, colours, progress and the formats of `-o`.
//!
//! | file | what it gives |
//! |---|---|
//! | `text.rs` | text from elsewhere without control characters |
//! | `table.rs` | columns as kubectl aligns them |
//! | `style.rs` | the colours of states |
//! | `format.rs` | objects as JSON and YAML |
//! | `fields.rs` | aligned `Name: value` sections |
//! | `progress.rs` | a bar on a terminal while many things are waited for |
//! | `out.rs` | standard output and standard error; a closed pipe is no error |

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
