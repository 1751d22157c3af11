//! Bounds of connections and messages, the same at both ends: no peer, well-meaning or not, can make a process hold more than
//! these. Limits of fences are in [`fence::Limits`](crate::fence::Limits).

use std::time::Duration;

/// Most bytes of payload that one message of a stream should carry; longer payloads go in several messages.
pub const CHUNK_MAX: usize = 1 << 20;
/// Longest message that services take, in bytes: a few chunks with their envelope. For `max_decoding_message_size` and
/// `max_encoding_message_size`.
pub const MESSAGE_MAX: usize = 4 * CHUNK_MAX;

/// Longest message of a relay of reports, in bytes: one report may have [`MESSAGE_MAX`] by itself, and those that go together have no more.
pub const RELAYED_MAX: usize = MESSAGE_MAX + (64 << 10);

/// Most bytes of an answer between nodes. A long one comes in several messages, and is put together where it was asked for.
pub(crate) const ANSWER_MAX: usize = 64 << 20;
/// Most bytes of a question between nodes, or of an answer, that go in one message: some are left for its envelope.
pub(crate) const WHOLE_MAX: usize = MESSAGE_MAX - (4 << 10);

/// Most bytes of a list of revoked certificates, in PEM: it is part of an answer to a heartbeat. Some 15,000 certificates have room.
pub(crate) const REVOCATIONS_MAX: usize = CHUNK_MAX;
/// Longest answer about all nodes of a cluster, in bytes: some hundred for each of 131,072.
pub const LISTING_MAX: usize = 16 * MESSAGE_MAX;

/// Charge for a message while it is kept, in bytes, beside its payload.
const KEPT_OVERHEAD: usize = 256;

/// Returns the charge for a message of `payload` bytes wherever messages are kept or credited. Both ends of a stream charge
/// the same, so that a million messages of one byte are not taken for a megabyte.
pub const fn kept_cost(payload: usize) -> usize {
    payload.saturating_add(KEPT_OVERHEAD)
}

/// Flow-control window of one stream, in bytes.
pub(crate) const STREAM_WINDOW: u32 = 1 << 20;
/// Flow-control window of a connection, in bytes.
pub(crate) const CONNECTION_WINDOW: u32 = 16 << 20;
/// Longest HTTP/2 frame, in bytes.
pub(crate) const FRAME_MAX: u32 = 1 << 20;
/// Most bytes of all headers of one call, as HTTP/2 counts them.
pub(crate) const HEADERS_MAX: u32 = 16 << 10;
/// Most concurrent calls on one connection.
pub(crate) const STREAMS_MAX: u32 = 256;
/// Most calls that were reset before they were looked at; with more the connection is closed (CVE-2023-44487).
pub(crate) const PENDING_RESETS_MAX: usize = 20;
/// Bytes that many hold in one process, and the rule by which they share them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pool {
    /// Most bytes of all together.
    pub all: usize,
    /// Bytes that each may have as long as there are any. The last quarter of the pool is for those who have no more.
    pub small: usize,
}

impl Pool {
    /// Returns true if one of them may have `own` bytes in all, by which all would have `all`. Who has more than a small share leaves half as
    /// much as that to those who come after him, so that the shares become smaller as the pool becomes full.
    pub const fn allows(&self, own: usize, all: usize) -> bool {
        let left_by_large = (self.all - self.all / 4).saturating_sub(all);
        all <= self.all && (own <= self.small || own <= 2 * left_by_large)
    }
}

/// Share that a peer has of what a process takes in, over all its listeners.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shares {
    /// Most concurrent connections.
    pub(crate) connections: usize,
    /// Most concurrent calls.
    pub(crate) calls: usize,
    /// Most bytes of messages that have begun and are not whole.
    pub(crate) unfinished: usize,
    /// Most bytes of answers that are not on their way, but for one that is longer alone.
    pub(crate) unread: usize,
}

/// Share of a user, and of all together who are known by no name: each command that follows a launch has a connection and a call.
pub(crate) const OF_USERS: Shares = Shares { connections: 256, calls: 1024, unfinished: 24 << 20, unread: 24 << 20 };
/// Share of an agent, which has a few connections, and a call for each launch.
pub(crate) const OF_AGENTS: Shares = Shares { connections: 64, calls: 4096, unfinished: 64 << 20, unread: 64 << 20 };
/// Share of the API server, and of an administrator.
pub(crate) const OF_TRUSTED: Shares =
    Shares { connections: 1024, calls: 16_384, unfinished: 256 << 20, unread: 256 << 20 };
/// Bytes of unfinished messages of all users together, and of all who are known by no name.
pub(crate) const ALL_USERS_UNFINISHED: Pool = Pool { all: 48 << 20, small: 256 << 10 };
/// Bytes of answers of all users together that are not on their way.
pub(crate) const ALL_USERS_UNREAD: Pool = Pool { all: 48 << 20, small: 256 << 10 };
/// Bytes of one stream of answers that are not on their way before nothing more is made of it.
pub(crate) const STREAM_UNREAD: usize = 128 << 10;
/// Pause of a stream of answers whose peer has left so much unread that nothing more is made.
pub(crate) const UNREAD_PAUSE: Duration = Duration::from_millis(100);
/// Longest request of a call that is not of our protocol (health, reflection), in bytes.
pub(crate) const FOREIGN_REQUEST_MAX: usize = 4096;

/// Most connections of one listener that have not proven yet who they are.
pub(crate) const GREETINGS_MAX: usize = 1024;
/// Most of them that came from one address.
pub(crate) const GREETINGS_PER_ADDRESS: usize = 128;
/// Time for the first byte of a connection, which the maker of an honest one sends at once.
pub(crate) const FIRST_BYTE_TIMEOUT: Duration = Duration::from_secs(2);
/// Time for a message of a request to be whole, from its beginning on.
pub(crate) const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);

/// Bytes of a proxied connection that wait on their way in each direction.
pub(crate) const PROXY_BUFFER: usize = 64 << 10;

/// Pause between looks for a list of revoked certificates; their connections are closed within a second of its coming.
pub(crate) const REVOCATION_LOOK: Duration = Duration::from_millis(500);
/// Time for the TLS handshake.
pub(crate) const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// Time for a peer that was refused in the handshake to read why.
pub(crate) const REFUSAL_TIMEOUT: Duration = Duration::from_secs(1);
/// Time to make a connection, handshake and all. Whoever hangs up in the handshake is tried once more, with as much time again.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Time between keep-alive pings of a connection.
pub(crate) const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(5);
/// Time for the answer to a keep-alive ping.
pub(crate) const KEEP_ALIVE_TIMEOUT: Duration = Duration::from_secs(5);
/// Time that `serve` gives calls in progress when it is told to end.
pub(crate) const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(1);
/// Pause of accepting when the system is out of a resource, such as descriptors.
pub const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
