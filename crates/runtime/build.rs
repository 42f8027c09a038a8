//! Compiles the services of the protos in plain Rust. Their messages are in kubesvc-core.

use std::error::Error;
use std::path::PathBuf;
use std::{env, fs};

const PROTOS: [&str; 3] = ["common.proto", "ops.proto", "events.proto"];

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=../../proto");
    let descriptors = protox::compile(PROTOS, ["../../proto"])?;
    let out = PathBuf::from(env::var("OUT_DIR")?);
    fs::write(out.join("descriptors.bin"), protox::prost::Message::encode_to_vec(&descriptors))?;
    let services = out.join("services");
    fs::create_dir_all(&services)?;
    tonic_prost_build::configure()
        .extern_path(".common", "::kubesvc_core::wire::common")
        .extern_path(".ops", "::kubesvc_core::wire::ops")
        .extern_path(".events", "::kubesvc_core::wire::events")
        .out_dir(services)
        .compile_fds(descriptors)?;
    Ok(())
}
