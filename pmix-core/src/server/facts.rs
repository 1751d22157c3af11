//! Answers to gets: facts about jobs and ranks, and committed values.

use bytes::Bytes;
use pmi_core::ids::Rank;

use crate::job_info::Detail;
use crate::namespace::{JobState, Namespace};
use crate::node_facts::TOPOLOGY;
use crate::wire::reader::Proc;
use crate::wire::value::Value;
use crate::wire::writer::Writer;
use crate::wire::{Encoding, reply, status, types};

/// The key that identifies the group.
const GROUP_CONTEXT: &str = "pmix.grp.ctxid";

/// The facts about another job than the client's. Without them the client cannot determine the places of that job's ranks.
pub(super) fn foreign_job(state: &mut JobState, encoding: Encoding) -> Vec<u8> {
    let facts = state.facts(encoding);
    let mut object = heading(&state.namespace, encoding, types::RANK_WILDCARD);
    object.raw(&facts);
    object.into_bytes()
}

/// Open MPI 4.1 requests the topology when it first needs it (`opal_hwloc_base_get_topology`), and discovers it itself if it is
/// missing.
pub(super) fn topology(namespace: &Namespace, encoding: Encoding) -> Option<Vec<u8>> {
    let topology = namespace.here.topology.as_ref()?;
    let mut object = heading(namespace, encoding, types::RANK_WILDCARD);
    object.kval(TOPOLOGY, &Value::Text(topology));
    Some(answer(encoding, object))
}

/// The rank that spawned the job.
pub(super) fn parent(namespace: &Namespace, encoding: Encoding, rank: Rank) -> Vec<u8> {
    let mut object = heading(namespace, encoding, rank.0);
    if let Some(parent) = namespace.parent_proc() {
        object.kval("pmix.parent", &Value::Proc(parent));
    }
    answer(encoding, object)
}

/// Returns all facts about a rank, if this key is one of them.
pub(super) fn of_rank(namespace: &Namespace, encoding: Encoding, rank: Rank, key: &[u8]) -> Option<Vec<u8>> {
    let facts = namespace.facts(Detail::ThisNode).of_rank(rank);
    if facts.iter().all(|(known, _)| known.as_bytes() != key) {
        return None;
    }
    let mut object = heading(namespace, encoding, rank.0);
    for (key, value) in &facts {
        object.kval(key, value);
    }
    Some(answer(encoding, object))
}

/// Returns a rank's own numbers of the communicators of its groups; `None` if it has no group.
pub(super) fn group_ids(state: &JobState, encoding: Encoding, rank: Rank) -> Option<Vec<u8>> {
    let groups = state.group_ids(rank);
    if groups.is_empty() {
        return None;
    }
    let mut object = heading(&state.namespace, encoding, rank.0);
    for &(context, number) in groups {
        reply::push_qualified(&mut object, "pmix.grp.lclid", number, GROUP_CONTEXT, context);
    }
    Some(answer(encoding, object))
}

/// Returns all values of a rank, after the object `foreign`, if any: clients store values that they did not request.
pub(super) fn values(state: &JobState, encoding: Encoding, rank: Rank, foreign: Option<&[u8]>) -> Bytes {
    let mut object = heading(&state.namespace, encoding, rank.0);
    push_values(&mut object, state, rank);
    let object = object.into_bytes();
    reply::objects(encoding, foreign.into_iter().chain([&object[..]])).into()
}

/// Returns a status, and all pairs of a rank, which replace the pairs that the client has.
pub(super) fn refreshed_values(state: &JobState, encoding: Encoding, rank: Rank) -> Vec<u8> {
    let mut reply = Writer::new(encoding);
    reply.status(status::SUCCESS);
    push_values(&mut reply, state, rank);
    reply.into_bytes()
}

fn push_values(out: &mut Writer, state: &JobState, rank: Rank) {
    for (key, value) in state.values(rank).into_iter().flatten() {
        reply::push_pair(out, key, value.encoded());
    }
}

fn heading(namespace: &Namespace, encoding: Encoding, rank: u32) -> Writer {
    reply::proc_heading(encoding, Proc { namespace: namespace.name.as_bytes(), rank })
}

fn answer(encoding: Encoding, object: Writer) -> Vec<u8> {
    reply::objects(encoding, [&object.into_bytes()[..]])
}
