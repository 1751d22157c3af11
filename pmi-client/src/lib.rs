//! A blocking client of PMI-1 and PMI-2 for the ranks of a parallel program. It works under every launcher with PMI-1 or PMI-2.
//! Without a launcher the process is rank 0 of 1.
//!
//! # Design
//!
//! [`Client`] holds one connection and the facts that the launcher sent once: rank, size, job. A get asks the launcher, or
//! reads memory that Lattice shares with the ranks of a node.
//!
//! ```text
//!             put                    fence                        get
//! rank ── Client ──> PMI_FD, or PMI_PORT ──> launcher     shared memory ──> Client
//! ```
//!
//! # Most used
//!
//! * [`Client::from_env`] with [`Protocol::Auto`]
//! * [`Client::rank`], [`Client::size`], [`Client::put`], [`Client::fence`], [`Client::get`]
//! * [`Client::finalize`]: a client that is dropped without it reports a failed rank
//! * [`Client::publish`], [`Client::lookup`], [`Client::spawn`], [`SpawnRequest`]
//! * [`ClientError`]
//!
//! Features: `std` (default); `pmix`, a client of PMIx; `library`, PMI through a C library.
//!
//! # Example
//!
//! `examples/pmi_ring.rs`. C programs use `libpmi.so.0` of `pmi-client/c-abi`.
//!
//! ```
//! use pmi_client::{Client, ClientError, Protocol};
//!
//! # fn main() -> Result<(), ClientError> {
//! let mut client = Client::from_env(Protocol::Auto)?;
//! let (rank, size) = (client.rank(), client.size());
//! client.put(&format!("card-{rank}"), format!("127.0.0.1:{}", 4000 + rank))?;
//! client.fence()?;
//! let neighbour = client.get(&format!("card-{}", (rank + 1) % size))?;
//! assert!(neighbour.is_some());
//! client.finalize()
//! # }
//! ```

#![cfg_attr(not(feature = "std"), no_std)]

extern crate alloc;

mod client;
mod connection;
mod descriptor;
mod environment;
mod error;
mod extensions;
#[cfg(feature = "library")]
pub mod library;
mod limits;
mod membership;
mod pmi1;
mod pmi2;
#[cfg(feature = "pmix")]
pub mod pmix;
mod process_mapping;
mod reply;
mod resources;
mod shared;
mod singleton;
mod spawn;
mod system;
mod topology;

pub use client::{Client, PendingBarrier, Protocol, RankGroup};
pub use error::{ClientError, Defect};
pub use job_memory::{NodeMemory, SystemError};
pub use limits::Limits;
pub use membership::{IndexedPair, RingNeighbours};
pub use spawn::{SpawnApp, SpawnRequest};
pub use topology::{Cluster, TopologyLevel};
