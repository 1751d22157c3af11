//! Fences and calls between the nodes of an MPI launch: over encrypted TCP links between sessions, or over gRPC.
#![forbid(unsafe_code)]

pub mod address;
pub mod authorize;
mod bounds;
mod call_check;
pub mod connect;
pub mod error_chain;
pub mod fence;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
pub mod identity;
pub mod limits;
pub mod listen;
mod noise;
pub mod proto;
pub mod sealed_stream;
pub mod session_link;
pub mod signature;
mod stream;
pub mod task;
mod tls;

pub use self::noise::NoiseError;
