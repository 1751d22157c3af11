//! The rank's side of PMI-1 and PMI-2: how a process of a parallel program finds its rank and meets the others.
//!
//! One blocking [`Client`] speaks either protocol to whatever launcher started the process, and works without one too:
//! a program that nobody launched is rank 0 of 1. It keeps nothing but what the server told it once (rank, size, job);
//! a [`get`](Client::get) asks the server, or reads what Lattice shares with the ranks of a node in memory.
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
//!
//! | file | what it owns |
//! |---|---|
//! | `client.rs`, `client/` | the public calls; which protocol serves them |
//! | `environment.rs`, `descriptor.rs` | what the launcher left in the environment |
//! | `pmi1.rs`, `pmi2.rs`, `singleton.rs` | one protocol each, and life without a server |
//! | `connection.rs`, `reply.rs` | bytes in and out, bounded; what all replies have in common |
//! | `shared.rs` | gets without a message, where the launcher shares its pairs in memory |
//! | `membership.rs`, `process_mapping.rs` | the place of a rank in its job; the ranks of its node |
//! | `topology.rs` | the levels of the machine that a rank is in |
//! | `limits.rs` | lengths and signs of texts |
//! | `system.rs` | the environment and names of hosts, with `std` and without |
//! | `pmix.rs`, `pmix/` | the rank's side of PMIx (feature `pmix`) |
//! | `library.rs` | PMI through a C library that is found at run time (feature `library`) |

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
