//! Fences and calls between the nodes of an MPI launch, over gRPC.
#![forbid(unsafe_code)]

pub mod address;
pub mod authorize;
pub mod connect;
pub mod fence;
pub mod hostlist;
pub mod identity;
pub mod limits;
pub mod listen;
pub mod metrics_page;
pub mod patience;
pub mod pki;
pub mod proto;
pub mod signature;
mod stream;
mod tls;
