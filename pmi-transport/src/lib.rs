//! Fences and calls between the nodes of an MPI launch, over gRPC.
#![forbid(unsafe_code)]

pub mod proto;
