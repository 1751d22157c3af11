//! The messages and services of the package `lattice.v1`, made from `proto/`.

/// The package `lattice.v1`. What its messages mean is written in the `.proto` files.
#[allow(
    missing_docs,
    unreachable_pub,
    unused_qualifications,
    rust_2018_idioms,
    clippy::all,
    clippy::use_self,
    clippy::uninlined_format_args,
    clippy::semicolon_if_nothing_returned,
    reason = "generated"
)]
pub mod v1 {
    tonic::include_proto!("lattice.v1");
}

/// The encoded descriptors of all files, for the reflection service.
pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));
