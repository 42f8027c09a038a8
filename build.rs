//! Compiles the protos in plain Rust, so that `cargo build` needs no `protoc`.

use std::error::Error;
use std::path::PathBuf;
use std::{env, fs};

const PROTOS: [&str; 3] = ["common.proto", "ops.proto", "events.proto"];
/// Messages that hold a credential; their `Debug` is written by hand and shows none.
const SECRET: [&str; 2] = [".ops.AccountSpec", ".ops.AccountSpec.credential"];

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=proto");
    println!("cargo::rerun-if-changed=migrations");
    let descriptors = protox::compile(PROTOS, ["proto"])?;
    let out = PathBuf::from(env::var("OUT_DIR")?);
    fs::write(out.join("descriptors.bin"), protox::prost::Message::encode_to_vec(&descriptors))?;
    tonic_prost_build::configure().skip_debug(SECRET).compile_fds(descriptors)?;
    Ok(())
}
