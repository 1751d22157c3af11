//! Generates `pmi-transport/src/generated/` from `pmi-transport/proto/`, without `protoc`: `cargo xtask proto`.
//!
//! The generated files are committed, so that a build of the crate needs no protobuf compiler. A test here compares them with the
//! `.proto` files.

mod bounds;
mod descriptors;

use std::error::Error;
use std::path::Path;

use prost::Message;

const FILES: &[&str] = &[
    "lattice/v1/agent.proto",
    "lattice/v1/allocations.proto",
    "lattice/v1/fabric.proto",
    "lattice/v1/fence.proto",
    "lattice/v1/inventory.proto",
    "lattice/v1/launch.proto",
    "lattice/v1/nodes.proto",
    "lattice/v1/reports.proto",
    "lattice/v1/session.proto",
];

/// Names of the generated files: the code, the encoded descriptors for the reflection service, and the bounds of requests.
const GENERATED: &[&str] = &["lattice.v1.rs", "descriptors.bin", "bounds.rs"];

fn main() -> Result<(), Box<dyn Error>> {
    generate(&transport().join("src/generated"))
}

/// Directory of the crate pmi-transport.
fn transport() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}

/// Writes the generated files to a directory.
fn generate(directory: &Path) -> Result<(), Box<dyn Error>> {
    let descriptors = protox::compile(FILES, [transport().join("proto")])?;
    let mut shown = descriptors.clone();
    // Comments and source positions are two thirds of the descriptors, which are part of every program that serves.
    shown.file.iter_mut().for_each(|file| file.source_code_info = None);
    std::fs::write(directory.join(GENERATED[1]), shown.encode_to_vec())?;
    // Types with a key have their own `Debug`, which hides the key: pmi-transport/src/proto.rs.
    std::fs::write(directory.join(GENERATED[2]), bounds::table(&shown))?;
    let mut names = tonic_prost_build::Config::new();
    // The bounds of a request are found by its name.
    names.enable_type_names();
    let config = tonic_prost_build::configure()
        .bytes(".lattice.v1")
        .codec_path("crate::bounds::BoundedCodec")
        .skip_debug([".lattice.v1.CxiCredentials", ".lattice.v1.SetPass"])
        .out_dir(directory);
    config.compile_fds_with_config(descriptors, names)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_committed_code_is_what_the_proto_files_give() {
        let directory = tempfile::tempdir().unwrap();
        generate(directory.path()).unwrap();
        for name in GENERATED {
            let committed = std::fs::read(transport().join("src/generated").join(name)).unwrap_or_default();
            let generated = std::fs::read(directory.path().join(name)).unwrap();
            assert!(committed == generated, "{name} is not current: run `cargo xtask proto` and commit what it writes");
        }
    }

    #[test]
    fn every_proto_file_is_compiled() {
        let directory = transport().join("proto/lattice/v1").read_dir().unwrap();
        let mut found: Vec<String> =
            directory.map(|entry| format!("lattice/v1/{}", entry.unwrap().file_name().display())).collect();
        found.sort_unstable();
        assert_eq!(found, FILES);
    }
}
