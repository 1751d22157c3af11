//! PMI-1 and PMI-2 as bytes. Only this module distinguishes the two protocols.
//!
//! ```text
//! bytes ──frame──> Frame ──pmi1 | pmi2──> Message { Request } ──> Server ──> Response ──encode──> bytes
//!
//! PMI-1 line      cmd=put kvsname=K key=k value=v with spaces\n
//! PMI-1 spawn     mcmd=spawn\nnprocs=2\n...endcmd\n  (`totspawns` blocks)
//! PMI-2 message   "    36" cmd=kvs-put;key=k;value=a;;b;      (six bytes of decimal length, then that many bytes)
//! ```
//!
//! Protocol facts come from recorded conversations with real clients (`testdata/`), and from MPICH's tables
//! `src/pmi/maint/pmi-1.1.txt`, `pmi-1.2.txt` and `pmi-2.0.txt`.

mod decode;
mod dialect;
pub mod frame;
mod limits;
mod pmi1;
mod pmi2;
pub mod request;
pub mod response;

pub use dialect::Dialect;
pub use frame::{Frame, FrameBuffer, FrameError};
pub(crate) use limits::LIMITS_ANNOUNCED;
pub use limits::{KEY_MAX, KVSNAME_MAX_ANNOUNCED, PairError, VALUE_MAX, VALUE_MAX_ANNOUNCED, check_pair, check_preput};
pub use request::{Message, Request, RequestError};
pub use response::{ErrorCode, Response};
