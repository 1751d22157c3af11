//! A PMIx server for MPI jobs, without libpmix: Open MPI 4.1 and 5 start under whoever embeds it.
//!
//! Same shape as [`pmi_core`], whose job model, fence and services it uses:
//!
//! * [`server::Server`] is a pure state machine: bytes of ranks go in, [`server::Action`]s come out. It serves the clients of libpmix 3, 4
//!   and 5, in both encodings that they have.
//! * [`driver::Driver`] (feature `driver`, on by default) runs a server behind a listener on the loopback address.
//! * [`mod@env`] tells which variables a rank is born with.
#![forbid(unsafe_code)]

mod clean_up;
#[cfg(feature = "driver")]
pub mod driver;
pub mod env;
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzzing;
mod job_info;
mod namespace;
mod node_facts;
mod process_set;
pub mod server;
pub mod services;
pub mod wire;

pub use clean_up::CleanUp;
pub use namespace::{JobIndex, Namespace, Seat};
pub use node_facts::{BoundPlace, NodeFacts};
pub use process_set::ProcessSet;
