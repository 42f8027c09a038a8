//! The integration tests, in one binary: real control planes, the real programs, and nothing else between them.

#[path = "../harness/mod.rs"]
mod harness;
mod world;

mod activation;
mod agent_cluster;
mod agent_objects;
mod api_lines;
mod architecture;
mod background_tasks;
mod bad_inputs;
mod bad_objects;
mod caching_election;
mod cluster_identity;
mod copy_database;
mod crd_rules;
mod database_servers;
mod docs;
mod drift;
mod end_to_end;
mod faults;
mod floods;
mod followers;
mod gitops;
mod http_bounds;
mod leaders;
mod manifests;
mod openapi_check;
mod plugin;
mod random_faults;
mod reconnects;
mod references;
mod release_notes;
mod replicas;
mod rest_states;
mod rolling_restart;
mod secrets_canary;
mod shipping;
mod starts;
mod strangers;
mod time_travel;
mod wire_frames;
