//! What may go wrong around an account does go wrong, and then: nothing is lost, nothing comes back from the dead, and
//! what a person is shown says what is going on.
//!
//! | file | what fails |
//! |---|---|
//! | `crash_points.rs` | the operator, just before and just after each of its writes |
//! | `agents.rs` | agents, and the connection between them and the hub |
//! | `apiserver.rs` | the API server, the operator's own time, and whoever else writes the objects |
//! | `database.rs` | the database |
//! | `settled.rs` | what holds once the faults are over |
//! | `proxy.rs` | a connection that can be cut, held and slowed down |

mod crash_points;
mod settled;
