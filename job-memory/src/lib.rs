//! Job memory: a job's map, its attributes and its key-value space, in shared memory. The session of a node writes it, and the job's
//! ranks on that node read it without a message.
//!
//! ```text
//! JobFacts ──Writer::create──> sealed memory file ──descriptor 31 of each rank──> Reader
//! fence ────Writer::publish, complete──┘                                            └──> get, rank, node, attribute
//! ```
//! There is one writer and no lock. The writer publishes pairs after a reader has requested them, which also needs no message. Before
//! that, and whenever the memory has no answer, a reader must query the PMI server. `docs/embed/shared-memory.md` is the contract with readers
//! in other languages; Rust programs use `pmi-client`.
//!
//! | file | contents |
//! |---|---|
//! | `layout.rs` | positions in the memory, its version, the hash of a key |
//! | `facts.rs` | the constant part |
//! | `words.rs`, `index.rs` | bounds-checked words; the search for a key, shared by writer and reader |
//! | `mapping.rs`, `mapping/` | the memory file: seals, maps, requests for pairs, creation |
//! | `writer.rs`, `reader.rs` | the two ends |
//! | `node_memory.rs` | separate memory for the ranks' own use |

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

/// Environment variable with the number of the descriptor in a rank.
pub const VARIABLE: &str = "LATTICE_JOB_MEMORY";
