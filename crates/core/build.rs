//! Compiles the messages of the protos in plain Rust, so that `cargo build` needs no `protoc`.

use std::error::Error;
use std::path::PathBuf;
use std::{env, fs};

const PROTOS: [&str; 4] = ["common.proto", "ops.proto", "events.proto", "operations.proto"];
/// What the text form of operations is read by.
const DESCRIBED: &str = "operations.proto";
/// Messages that may hold a credential; their `Debug` is written by hand and shows none.
const SECRET: [&str; 4] =
    [".ops.AccountSpec", ".ops.AccountSpec.credential", ".ops.Reauthenticate", ".operations.Manifest"];
/// Messages of requests, with what users send and clusters answer; their `Debug` is written by hand and shows none of it.
const CARRIED: [&str; 3] = [".ops.Open", ".ops.Header", ".ops.Data"];
/// Bytes that are passed on without a copy.
const PASSED_ON: &str = ".ops.Data";

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=../../proto");
    let descriptors = protox::compile(PROTOS, ["../../proto"])?;
    let out = PathBuf::from(env::var("OUT_DIR")?).join("messages");
    fs::create_dir_all(&out)?;
    let described = protox::compile([DESCRIBED], ["../../proto"])?;
    fs::write(out.join("operations.bin"), protox::prost::Message::encode_to_vec(&described))?;
    tonic_prost_build::configure()
        .build_client(false)
        .build_server(false)
        .skip_debug(SECRET)
        .skip_debug(CARRIED)
        .bytes(PASSED_ON)
        .out_dir(out)
        .compile_fds(descriptors)?;
    Ok(())
}
