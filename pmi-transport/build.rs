//! Compiles the protocol's `.proto` files, without `protoc`.

use std::error::Error;
use std::path::PathBuf;

use prost::Message;

const FILES: &[&str] = &[
    "lattice/v1/agent.proto",
    "lattice/v1/allocations.proto",
    "lattice/v1/fabric.proto",
    "lattice/v1/fence.proto",
    "lattice/v1/launch.proto",
    "lattice/v1/nodes.proto",
    "lattice/v1/session.proto",
];

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=proto");
    let descriptors = protox::compile(FILES, ["proto"])?;
    let out = PathBuf::from(std::env::var_os("OUT_DIR").ok_or("cargo sets OUT_DIR")?);
    // The reflection service serves them.
    std::fs::write(out.join("descriptors.bin"), descriptors.encode_to_vec())?;
    // Whatever holds credentials can be shown, and does not show the key: src/proto.rs.
    let config = tonic_prost_build::configure().bytes(".lattice.v1").skip_debug([".lattice.v1.CxiCredentials"]);
    config.compile_fds(descriptors)?;
    Ok(())
}
