//! Job memory: a job's map, its attributes and its key-value space in memory that the session of a node writes and the job's ranks on
//! that node read, without a message.
//!
//! ```text
//! JobFacts ──Writer::create──> sealed memory file ──descriptor 31 of each rank──> Reader
//! fence ────Writer::publish, complete──┘                                            └──> get, rank, node, attribute
//! ```
//! There is one writer and no lock. Pairs are published once a reader has asked for them, which it does without a message as well;
//! before that, and whenever the memory cannot tell, a reader is told to ask the PMI server. `docs/shared-memory.md` is the contract with
//! readers in other languages; a Rust program has it through `pmi-client`.
//!
//! | file | contents |
//! |---|---|
//! | `layout.rs` | positions in the memory, its version, the hash of a key |
//! | `facts.rs` | the part that never changes |
//! | `words.rs`, `index.rs` | bounds-checked words; the search for a key, the same for writer and reader |
//! | `mapping.rs`, `mapping/` | the memory file: seals, maps, the sign that a reader wants pairs; its making |
//! | `writer.rs`, `reader.rs` | the two ends |
//! | `node_memory.rs` | other memory: of the ranks, for whatever they do with it |

#![cfg_attr(not(feature = "std"), no_std)]

extern crate alloc;

mod facts;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod index;
mod layout;
mod mapping;
mod node_memory;
mod reader;
mod system_error;
mod words;
mod writer;

pub use facts::{JobFacts, NodeFacts, RankFacts};
pub use node_memory::{NodeMemory, NotMade};
pub use reader::{JobReader, Lookup, Node, NotReadable, Rank};
pub use system_error::SystemError;
pub use writer::{JobWriter, NotPublished};

/// Name of the variable that tells a rank the number of the descriptor.
pub const VARIABLE: &str = "LATTICE_JOB_MEMORY";
