//! The bounds of connections and messages, the same at both ends.
//!
//! From reliability-security.md 4.6: a peer, well-meaning or not, must not be able to make us hold more than these.

use std::time::Duration;

/// The most bytes that one message of a stream should carry as payload: what is longer goes in several messages.
pub const CHUNK_MAX: usize = 1 << 20;
/// The longest message that services take: a few chunks, with what is around them. For `max_decoding_message_size` and
/// `max_encoding_message_size`.
pub const MESSAGE_MAX: usize = 4 * CHUNK_MAX;

/// About what a message takes while it is kept, beside its payload.
const KEPT_OVERHEAD: usize = 256;

/// What a message with `payload` bytes is charged wherever messages are kept or credited, in bytes. Both ends of a stream charge
/// the same, so that a million messages of one byte are not taken for a megabyte.
pub const fn kept_cost(payload: usize) -> usize {
    payload.saturating_add(KEPT_OVERHEAD)
}

/// How many bytes a peer may send on one stream before we have read them.
pub(crate) const STREAM_WINDOW: u32 = 1 << 20;
/// The same for all streams of a connection.
pub(crate) const CONNECTION_WINDOW: u32 = 16 << 20;
/// The longest HTTP/2 frame.
pub(crate) const FRAME_MAX: u32 = 1 << 20;
/// All headers of one call, as HTTP/2 counts them.
pub(crate) const HEADERS_MAX: u32 = 16 << 10;
/// Calls at once on one connection.
pub(crate) const STREAMS_MAX: u32 = 256;
/// Calls that were reset before we looked at them; with more the connection is closed (CVE-2023-44487).
pub(crate) const PENDING_RESETS_MAX: usize = 20;
/// Connections at once of one user to one Unix socket. Other users' must not fail because one user opens thousands.
pub(crate) const CONNECTIONS_PER_USER: usize = 256;
/// Connections of one listener that have not proven yet who they are; more have to wait for their turn.
pub(crate) const GREETINGS_MAX: usize = 1024;

/// How long a peer may take for the TLS handshake.
pub(crate) const HANDSHAKE_PATIENCE: Duration = Duration::from_secs(5);
/// How long a peer that was refused in the handshake may take to read why.
pub(crate) const REFUSAL_PATIENCE: Duration = Duration::from_secs(1);
/// How long a connection may take to be made, handshake and all.
pub const CONNECT_PATIENCE: Duration = Duration::from_secs(5);
/// How often an idle connection is asked whether it still is one.
pub(crate) const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(5);
/// How long the answer to that may take.
pub(crate) const KEEP_ALIVE_PATIENCE: Duration = Duration::from_secs(5);
/// How long `serve` waits for calls in progress when it is told to end.
pub(crate) const SHUTDOWN_PATIENCE: Duration = Duration::from_secs(1);
/// How long accepting pauses when the system is out of something, such as descriptors.
pub(crate) const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
