//! Limits of connections and messages, the same at both ends. They bound the memory that any peer, honest or not, can occupy in a process.
//! Limits of fences are in [`fence::Limits`](crate::fence::Limits).

use std::time::Duration;

/// Recommended maximum payload of one stream message, in bytes. Longer payloads are split into several messages.
pub const CHUNK_MAX: usize = 1 << 20;
/// Longest message that services accept, in bytes: a few chunks with their envelope. For `max_decoding_message_size` and
/// `max_encoding_message_size`.
pub const MESSAGE_MAX: usize = 4 * CHUNK_MAX;

/// Longest message of a report relay, in bytes. One report may have [`MESSAGE_MAX`] alone; reports in one message have no more together.
pub const RELAYED_MAX: usize = MESSAGE_MAX + (64 << 10);

/// Maximum bytes of a response between nodes. A long response is sent in several messages, and joined at the node that requested it.
pub(crate) const ANSWER_MAX: usize = 64 << 20;
/// Maximum bytes of a request or response between nodes in one message. The rest is for its envelope.
pub(crate) const WHOLE_MAX: usize = MESSAGE_MAX - (4 << 10);

/// Maximum bytes of a list of revoked certificates, in PEM. It is part of a heartbeat response, and has room for some 15,000 certificates.
pub(crate) const REVOCATIONS_MAX: usize = CHUNK_MAX;
/// Longest response about all nodes of a cluster, in bytes: some hundred for each of 131,072 nodes.
pub const LISTING_MAX: usize = 16 * MESSAGE_MAX;

/// Overhead that is charged for a stored message, in bytes, in addition to its payload.
const KEPT_OVERHEAD: usize = 256;

/// Returns the charge in bytes for a message of `payload` bytes that is stored or credited. Both ends of a stream use the same charge, so
/// that a million messages of one byte do not count as one megabyte.
pub const fn kept_cost(payload: usize) -> usize {
    payload.saturating_add(KEPT_OVERHEAD)
}

/// Flow-control window of one stream, in bytes.
pub(crate) const STREAM_WINDOW: u32 = 1 << 20;
/// Flow-control window of a connection, in bytes.
pub(crate) const CONNECTION_WINDOW: u32 = 16 << 20;
/// Longest HTTP/2 frame, in bytes.
pub(crate) const FRAME_MAX: u32 = 1 << 20;
/// Maximum bytes of all headers of one call, as HTTP/2 counts them.
pub(crate) const HEADERS_MAX: u32 = 16 << 10;
/// Maximum concurrent calls on one connection.
pub(crate) const STREAMS_MAX: u32 = 256;
/// Maximum calls that were reset before they were accepted. Beyond it the connection is closed (CVE-2023-44487). All concurrent calls of a
/// connection can end at the same time, as the calls of a launch do.
pub(crate) const PENDING_RESETS_MAX: usize = STREAMS_MAX as usize;

/// Memory that many holders share in one process, with the rule by which they share it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pool {
    /// Maximum bytes of all holders together.
    pub all: usize,
    /// Bytes that each holder may have while any are free. The last quarter of the pool is only for holders within this limit.
    pub small: usize,
}

impl Pool {
    /// Returns true if a holder may have `own` bytes, with which all holders together have `all`. A holder above the small limit must leave
    /// at least half its own size for later holders. So the shares shrink as the pool fills.
    pub const fn allows(&self, own: usize, all: usize) -> bool {
        let left_by_large = (self.all - self.all / 4).saturating_sub(all);
        all <= self.all && (own <= self.small || own <= 2 * left_by_large)
    }
}

/// Share of one peer in a process, over all its listeners.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shares {
    /// Maximum concurrent connections.
    pub(crate) connections: usize,
    /// Maximum concurrent calls.
    pub(crate) calls: usize,
    /// Maximum bytes of incomplete request messages.
    pub(crate) unfinished: usize,
    /// Maximum bytes of unsent responses. A single longer response is allowed.
    pub(crate) unread: usize,
}

/// Share of a user, and of all unidentified callers together. Each command that follows a launch has a connection and a call.
pub(crate) const OF_USERS: Shares = Shares { connections: 256, calls: 1024, unfinished: 24 << 20, unread: 24 << 20 };
/// Share of an agent, which has a few connections, and a call for each launch.
pub(crate) const OF_AGENTS: Shares = Shares { connections: 64, calls: 4096, unfinished: 64 << 20, unread: 64 << 20 };
/// Share of the API server, and of an administrator.
pub(crate) const OF_TRUSTED: Shares =
    Shares { connections: 1024, calls: 16_384, unfinished: 256 << 20, unread: 256 << 20 };
/// Bytes of incomplete requests of all users and unidentified callers together.
pub(crate) const ALL_USERS_UNFINISHED: Pool = Pool { all: 48 << 20, small: 256 << 10 };
/// Bytes of unsent responses of all users together.
pub(crate) const ALL_USERS_UNREAD: Pool = Pool { all: 48 << 20, small: 256 << 10 };
/// Unsent bytes of one response stream at which its production pauses.
pub(crate) const STREAM_UNREAD: usize = 128 << 10;
/// Polling interval of a response stream while its peer's unsent bytes leave no budget.
pub(crate) const UNREAD_PAUSE: Duration = Duration::from_millis(100);
/// Longest request of a call outside our protocol (health, reflection), in bytes.
pub(crate) const FOREIGN_REQUEST_MAX: usize = 4096;

/// Maximum unidentified connections of one listener.
pub(crate) const GREETINGS_MAX: usize = 1024;
/// Maximum unidentified connections from one address.
pub(crate) const GREETINGS_PER_ADDRESS: usize = 128;
/// Time limit for the first byte of a connection. An honest client sends it at once.
pub(crate) const FIRST_BYTE_TIMEOUT: Duration = Duration::from_secs(2);
/// Time limit for a complete request message, from its start.
pub(crate) const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);

/// Bytes of a proxied connection that are buffered in each direction.
pub(crate) const PROXY_BUFFER: usize = 64 << 10;

/// Interval of checks for a list of revoked certificates. Their connections are closed within a second of its arrival.
pub(crate) const REVOCATION_LOOK: Duration = Duration::from_millis(500);
/// Time limit for the TLS handshake.
pub(crate) const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// Time for a refused peer to read the reason.
pub(crate) const REFUSAL_TIMEOUT: Duration = Duration::from_secs(1);
/// Time limit for a connection, including the handshake. If the peer closes during the handshake, one retry has the same limit.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Time between keep-alive pings of a connection.
pub(crate) const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(5);
/// Time limit for the response to a keep-alive ping.
pub(crate) const KEEP_ALIVE_TIMEOUT: Duration = Duration::from_secs(5);
/// Time that `serve` gives calls in progress at shutdown.
pub(crate) const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(1);
/// Pause of accepting when the system is out of a resource, such as descriptors.
pub const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
