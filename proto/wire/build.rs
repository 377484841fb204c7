//! Compiles the schema without `protoc`: protox reads the .proto files, tonic generates the code,
//! and the same descriptor set, with its comments, serves reflection.

use std::error::Error;
use std::path::Path;
use std::{env, fs};

use prost::Message as _;

const ROOT: &str = "proto";
const FILES: [&str; 5] = [
    "quota/v1/common.proto",
    "quota/v1/error.proto",
    "quota/v1/policy.proto",
    "quota/v1/allocator.proto",
    "quota/v1/admin.proto",
];

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed={ROOT}");
    let descriptors = protox::compile(FILES, [ROOT])?;
    let out = env::var("OUT_DIR")?;
    fs::write(
        Path::new(&out).join("quota.v1.bin"),
        descriptors.encode_to_vec(),
    )?;
    // Default stubs answer UNIMPLEMENTED, so that calls which are laid out but not served yet need
    // no code.
    // Ordered maps make equal policies equal on the wire.
    tonic_prost_build::configure()
        .btree_map(".quota.v1")
        .generate_default_stubs(true)
        .build_transport(false)
        .compile_fds(descriptors)?;
    Ok(())
}
