//! Compiles the messages of the protos in plain Rust, so that `cargo build` needs no `protoc`.

use std::error::Error;
use std::path::PathBuf;
use std::{env, fs};

const PROTOS: [&str; 3] = ["common.proto", "ops.proto", "events.proto"];
/// Messages that hold a credential; their `Debug` is written by hand and shows none.
const SECRET: [&str; 2] = [".ops.AccountSpec", ".ops.AccountSpec.credential"];

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=../../proto");
    let descriptors = protox::compile(PROTOS, ["../../proto"])?;
    let out = PathBuf::from(env::var("OUT_DIR")?).join("messages");
    fs::create_dir_all(&out)?;
    tonic_prost_build::configure()
        .build_client(false)
        .build_server(false)
        .skip_debug(SECRET)
        .out_dir(out)
        .compile_fds(descriptors)?;
    Ok(())
}
