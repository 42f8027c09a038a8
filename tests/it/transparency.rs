//! An account's API is the API of its cluster: what kubectl, Helm, informers and GitOps tools see through both doors is
//! what they see at the cluster itself.
//!
//! | file | contents |
//! |---|---|
//! | `lines.rs` | the command lines, as the tables in `tests/transparency/*.yaml` have them |
//! | `ways.rs` | the three ways to a cluster, each with a namespace of its own |
//! | `table.rs` | each line run three ways, and the table of what differed |
//! | `answers.rs` | requests in other forms than kubectl's: status, headers and body |
//! | `normal.rs` | what must differ between two namespaces: names, ids, times |
//! | `objects.rs` | the objects that each way left |
//! | `kubelet.rs` | pods that are ready at once, for rollouts and `--wait` |
//! | `tools.rs` | what the plugin prints for Argo CD, Flux and Clouddriver, used as these use it; and a terminal |
//! | `informer.rs` | client-go informers through both doors, while the agent is killed |

mod answers;
mod informer;
mod kubelet;
mod lines;
mod normal;
mod objects;
mod table;
mod tools;
mod ways;
