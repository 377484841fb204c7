//! Compiles the messages of the schema, without the services.

use std::error::Error;

const ROOT: &str = "../../proto/wire/proto";
const FILES: [&str; 2] = ["quota/v1/allocator.proto", "quota/v1/policy.proto"];

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed={ROOT}");
    let descriptors = protox::compile(FILES, [ROOT])?;
    // Ordered maps as in quota-wire, whose conversions are compiled against this.
    prost_build::Config::new()
        .btree_map([".quota.v1"])
        .compile_fds(descriptors)?;
    Ok(())
}
