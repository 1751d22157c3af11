//! PMI-1 and PMI-2 as bytes. Here, and only here, the two protocols differ.
//!
//! ```text
//! bytes ──frame──> Frame ──pmi1 | pmi2──> Message { Request } ──> Server ──> Response ──encode──> bytes
//!
//! PMI-1 line      cmd=put kvsname=K key=k value=v with spaces\n
//! PMI-1 spawn     mcmd=spawn\nnprocs=2\n...endcmd\n  (as many blocks as `totspawns` says)
//! PMI-2 message   "    36" cmd=kvs-put;key=k;value=a;;b;      (six bytes of decimal length, then that many bytes)
//! ```
//!
//! Protocol facts come from recorded conversations with real clients (`testdata/`), and from MPICH's tables
//! `src/pmi/maint/pmi-1.1.txt`, `pmi-1.2.txt` and `pmi-2.0.txt`.

mod decode;
pub mod frame;
mod pmi1;
mod pmi2;
pub mod request;
pub mod response;

pub use frame::{Frame, FrameBuffer, FrameError};
pub use request::{Message, Request, RequestError};
pub use response::{ErrorCode, Response};

/// Text format of a message, one of two. Decided per message: a PMI-2 client begins with a PMI-1 line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    /// Lines of `name=value` fields between spaces.
    Pmi1,
    /// Length-prefixed messages of `name=value` fields that end with `;`.
    Pmi2,
}

/// The longest key in bytes: what every server announces (`keylen_max=64`, PMI-2 `PMI2_MAX_KEYLEN`).
pub const KEY_MAX: usize = 64;

/// The longest value that is announced, in bytes; the NUL of C clients counts.
pub const VALUE_MAX_ANNOUNCED: usize = 1024;

/// The longest value that is taken, in bytes: clients that ignore what is announced get that far.
pub const VALUE_MAX: usize = 64 * 1024;

/// The longest job id that is announced, in bytes; the NUL of C clients counts.
pub const KVSNAME_MAX_ANNOUNCED: usize = 256;
