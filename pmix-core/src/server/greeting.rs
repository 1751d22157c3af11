//! Handshakes: a client claims a rank, or connects as a tool.

use pmi_core::connections::ConnectionId;
use pmi_core::ids::Rank;
use subtle::ConstantTimeEq;

use super::action::Action;
use super::ends::{close, disconnect};
use super::jobs::Jobs;
use super::launch::Launch;
use super::streams::Streams;
use super::tools::Tools;
use crate::namespace::{JobIndex, JobState, Seat};
use crate::wire::handshake::{self, Claim, Handshake};
use crate::wire::reader::Proc;

/// Handles the handshake of a client. Returns true for the first message of a rank.
pub(super) fn greet(
    launch: &mut Launch,
    streams: &mut Streams,
    tools: &mut Tools,
    connection: ConnectionId,
    payload: &[u8],
) -> bool {
    let claimed = match Handshake::decode(payload) {
        Ok(handshake) => match handshake.claim {
            Claim::Rank(rank) => claim(launch, streams, connection, &handshake, rank),
            Claim::Tool(name) => tools.admit(launch, connection, &handshake, name).map(|()| false),
        },
        Err(error) => Err(error.to_string()),
    };
    claimed.unwrap_or_else(|refusal| {
        tracing::warn!("refused {refusal}");
        close(launch, streams, connection);
        false
    })
}

fn claim(
    launch: &mut Launch,
    streams: &mut Streams,
    connection: ConnectionId,
    handshake: &Handshake<'_>,
    claimed: Proc<'_>,
) -> Result<bool, String> {
    let Proc { namespace, rank } = claimed;
    let job = job_claimed(&launch.jobs, namespace).ok_or("a PMIx client of a namespace that is not served here")?;
    let local = launch.jobs[job].local(Rank(rank));
    let local = local.ok_or_else(|| format!("a PMIx client that claims rank {rank}, which is not on this node"))?;
    if let Some(former) = launch.jobs[job].ranks[local].former_connection() {
        disconnect(launch, streams, former);
        launch.actions.push_back(Action::Close { connection: former });
    }
    let state = &mut launch.jobs[job].ranks[local];
    if state.connection.is_some() || state.exited {
        if state.connection.is_some() && state.note_second() {
            launch.actions.push_back(Action::SecondProcess { job, rank: Rank(rank) });
        }
        return Err(format!("a second PMIx client that claims rank {rank}"));
    }
    let is_first_message = state.speak();
    state.connection = Some(connection);
    launch.identify(connection, Seat { job, local }, handshake);
    launch.push_send(connection, handshake::welcome(connection.0));
    Ok(is_first_message)
}

/// The job of this launch with that namespace. The namespace is a secret of the job's ranks, so each name is compared completely, in
/// constant time.
fn job_claimed(jobs: &Jobs, namespace: &[u8]) -> Option<JobIndex> {
    let own = jobs.indexed().filter(|(_, state)| state.is_own());
    let is_named = |state: &JobState| bool::from(state.namespace.name.as_bytes().ct_eq(namespace));
    own.fold(None, |found, (job, state)| if is_named(state) { found.or(Some(job)) } else { found })
}
