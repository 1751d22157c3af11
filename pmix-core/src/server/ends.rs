//! Ends of connections, and of the dialogues of clients.

use std::sync::Arc;

use pmi_core::Phase;
use pmi_core::connections::ConnectionId;
use pmi_core::ids::Rank;
use pmi_core::report::{EndReason, Offence};

use super::action::Action;
use super::client::{Address, Identity};
use super::events::report_loss;
use super::launch::Launch;
use super::streams::Streams;
use crate::wire::status;

/// A client has closed the connection, or it broke.
pub(super) fn disconnect(launch: &mut Launch, streams: &mut Streams, connection: ConnectionId) {
    let Some(client) = launch.clients.get_mut(connection) else { return };
    let identity = client.identity.take();
    streams.end_pulls(launch, connection);
    launch.clients.release(connection);
    let Some(Identity { seat, .. }) = identity else { return };
    let is_tool = launch.jobs.is_tool(seat);
    let Some(state) = launch.jobs.rank_mut(seat) else { return };
    state.connection = None;
    if state.phase == Phase::Open && !is_tool {
        report_loss(launch, seat);
    }
}

/// Closes a connection.
pub(super) fn close(launch: &mut Launch, streams: &mut Streams, connection: ConnectionId) {
    match launch.seat_of(connection) {
        Some(seat) if !launch.jobs.is_tool(seat) => {
            streams.end_pulls(launch, connection);
            launch.clients.close(connection);
        }
        _ => disconnect(launch, streams, connection),
    }
    launch.actions.push_back(Action::Close { connection });
}

/// The rest of this connection cannot be parsed. For a rank, the job ends; a tool or a connection without a rank is only closed.
pub(super) fn offend(
    launch: &mut Launch,
    streams: &mut Streams,
    connection: ConnectionId,
    error: Arc<dyn std::error::Error + Send + Sync>,
) {
    close(launch, streams, connection);
    match launch.seat_of(connection) {
        Some(seat) => {
            let rank = launch.jobs.rank(seat).rank;
            tracing::warn!("rank {rank} broke the PMIx protocol: {error}");
            let offence = Offence::Foreign { protocol: "PMIx", error };
            launch.end(seat.job, EndReason::Offence { rank, offence });
        }
        None => tracing::warn!("closed a connection to the PMIx port: {error}"),
    }
}

/// A client ends its dialogue. Returns its rank.
pub(super) fn finalize(launch: &mut Launch, streams: &mut Streams, address: Address) -> Option<Rank> {
    let seat = address.identity.seat;
    let state = launch.jobs.rank_mut(seat)?;
    state.phase = Phase::Finalized;
    let rank = state.rank;
    launch.jobs[seat.job].has_left = true;
    streams.end_pulls(launch, address.connection);
    launch.answer(address, status::SUCCESS);
    Some(rank)
}

/// A rank ends its job.
pub(super) fn abort(launch: &mut Launch, address: Address, code: i32, message: &[u8]) {
    let seat = address.identity.seat;
    // Open MPI 4.1 sends this in place of an empty text.
    let message = if message == b"N/A" { b"" } else { message };
    let message = String::from_utf8_lossy(message).into_owned();
    launch.answer(address, status::SUCCESS);
    let rank = launch.jobs.rank(seat).rank;
    launch.end(seat.job, EndReason::Abort { rank, code: Some(code), whole_job: true, message });
}
