//! Gathers the ranks of this node into one fence, for servers of any protocol.
//!
//! A round counts ranks, not messages: each member has its own queue, and a round is complete when no queue is empty.
//!
//! ```text
//! member 0: [w w]      round complete: one waiter of each member leaves together,
//! member 1: [w]        the second waiter of member 0 stays for the next round
//! member 2: [w]
//! ```
//! A round can begin without a member that will not arrive: [`Gathering::begin`] receives a predicate for such members.

mod groups;
mod round;

pub use self::groups::{Groups, digest};
pub use self::round::Gathering;
