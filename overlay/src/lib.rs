//! One address for each process of all launches of a user: sets, their directory, and calls that find their way.
//!
//! ```text
//! address    SetId, Uid, GroupId: bits and texts
//! directory  the sets of a user on this machine as files, and the names that their ranks publish
//! greeting   the first bytes between two sets: who comes, what for, with which proof
//! machine    a member of a set: routes, links, calls, handlers; pure
//!            strides  who is near     frame  bytes <-> Frame     error, method  what calls answer
//! participant a rank or a guest that calls and serves by itself, over one socket to its session
//! ```
//! Every launch is a set. Its members are its sessions, one for each node; its ranks are reached by way of their session. The session of
//! node 0 is the root, by which members of other sets come in. `docs/overlay.md` in the repository shows all of it at work.

pub mod address;
pub mod directory;
pub mod error;
pub mod frame;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
pub mod greeting;
pub mod machine;
pub mod method;
pub mod participant;
pub mod strides;
