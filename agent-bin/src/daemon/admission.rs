//! Admission of launches: checks the caller, the request, and that its user may start processes here. Starts nothing.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use pmi_core::ids::NodeIndex;
use pmi_transport::fence::{FanOut, Member};
use pmi_transport::identity::Caller;
use pmi_transport::proto::v1 as proto;
use pmi_transport::signature::{self, Serial};
use prost::Message;
use proto::RefusalReason;
use rank_spawner::{Account, AccountError};

use super::Node;
use super::fabric::Wish;
use lattice_session::random;
use lattice_session::wire::{self, WireError};

/// This node's part of an admitted launch.
pub(super) struct Assignment {
    pub(super) launch_id: String,
    /// Serial number under which the API server signed it.
    pub(super) serial: Serial,
    pub(super) uid: u32,
    /// The whole launch, as it came.
    pub(super) spec: Bytes,
    pub(super) index: NodeIndex,
    /// All nodes of the launch.
    pub(super) members: Arc<[Member]>,
    pub(super) fan_out: FanOut,
    /// Time limit for its ranks to end after they were told to.
    pub(super) grace: Duration,
    /// Fabric credentials of its ranks, and the number of ranks here.
    pub(super) fabric: Option<Wish>,
}

/// Refusal of a launch, by this node or by one that it was to be passed on to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Refusal {
    pub(super) reason: RefusalReason,
    pub(super) message: String,
    pub(super) node_id: String,
}

impl Refusal {
    pub(super) fn of(node: &Node, reason: RefusalReason, message: impl ToString) -> Self {
        Self { reason, message: message.to_string(), node_id: node.config.node_id.clone() }
    }
}

/// Admits a launch, or refuses it.
pub(super) async fn admit(
    node: &Node,
    caller: &Caller,
    request: &proto::LaunchProcessesRequest,
) -> Result<Assignment, Refusal> {
    let serial = Serial(request.serial);
    if let Caller::Agent(_) = caller {
        // A stolen agent's key starts nothing: what an agent passes on must have been signed by the API server.
        signature::verify(&node.security, serial, &request.spec, &request.signature, &request.signer)
            .map_err(|error| Refusal::of(node, RefusalReason::Signature, error))?;
        let is_new = node.launches.serials.check(serial).await;
        is_new.map_err(|error| Refusal::of(node, RefusalReason::Signature, error))?;
    }
    let assignment =
        understand(node, request).map_err(|error| Refusal::of(node, RefusalReason::MalformedRequest, error))?;
    if let Caller::Agent(relay) = caller
        && !assignment.members.iter().any(|member| member.name == *relay)
    {
        let text = format!("{caller} takes no part in launch {}, and has nothing to pass on", assignment.launch_id);
        return Err(Refusal::of(node, RefusalReason::Signature, text));
    }
    if let (Caller::Agent(_), Some(wish)) = (caller, &assignment.fabric) {
        let text = wire::fabric::signed_text(&wish.launch_id, &wish.credentials);
        signature::verify(&node.security, serial, text.expose(), &request.cxi_signature, &request.signer)
            .map_err(|error| Refusal::of(node, RefusalReason::Signature, format!("its fabric credentials: {error}")))?;
    }
    if let Some(why) = node.config.refuse_user(assignment.uid) {
        return Err(Refusal::of(node, RefusalReason::User, why));
    }
    know_user(assignment.uid).await.map_err(|error| Refusal::of(node, RefusalReason::User, error))?;
    Ok(assignment)
}

/// Decodes the launch, as a session will.
fn understand(node: &Node, request: &proto::LaunchProcessesRequest) -> Result<Assignment, WireError> {
    let (launch, index) = if request.spec.is_empty() {
        let unsaid = wire::foreign::Unsaid {
            node_id: &node.config.node_id,
            address: &node.address.to_string(),
            uid: nix::unistd::geteuid().as_raw(),
            secret: secret(),
        };
        wire::foreign::launch_spec(request, &unsaid)?
    } else {
        (proto::LaunchSpec::decode(request.spec.clone())?, request.node_index)
    };
    let foreign = request.spec.is_empty();
    let spec = if foreign { launch.encode_to_vec().into() } else { request.spec.clone() };
    let addresses = launch.addresses.clone();
    let (uid, mut fan_out) = (launch.uid, FanOut::from_spec(launch.barrier_fan_out, launch.data_fan_out));
    if foreign {
        // Its other agents may know no more than `PmiFence` of the head.
        fan_out = FanOut::STAR;
    }
    let index = NodeIndex(index);
    let session = wire::spec::decode(launch, index)?;
    let ranks = session.job.placement.ranks_on(index).len() as u32;
    let addresses = wire::spec::addresses(&addresses, session.hosts.len())?;
    let members: Vec<Member> =
        session.hosts.into_iter().zip(addresses).map(|(name, address)| Member { name, address }).collect();
    check_members(&node.config.node_id, &members, index)?;
    let grace = session.settings.timeouts.grace_max();
    let launch_id = session.launch_id;
    let wish = |credentials| Wish { launch_id: launch_id.clone(), uid, ranks, credentials };
    let fabric = request.cxi_credentials.clone().map(wish);
    Ok(Assignment {
        launch_id,
        serial: Serial(request.serial),
        uid,
        spec,
        index,
        members: members.into(),
        fan_out,
        grace,
        fabric,
    })
}

fn check_members(me: &str, members: &[Member], index: NodeIndex) -> Result<(), WireError> {
    let named = &members[index.index()].name;
    if named != me {
        let possible = format!("{me}, which the request was sent to");
        return Err(WireError::Value { what: "the name of the receiving node", seen: named.clone(), possible });
    }
    let mut names = HashSet::with_capacity(members.len());
    match members.iter().find(|member| !names.insert(&member.name)) {
        Some(twice) => {
            let possible = "each node once".to_owned();
            Err(WireError::Value { what: "a node of the launch", seen: format!("{} again", twice.name), possible })
        }
        None => Ok(()),
    }
}

/// Random bytes; none where the system has none, and then the launch is refused.
fn secret() -> Bytes {
    random::bytes::<{ wire::spec::SECRET_LEN }>()
        .map_or_else(|_| Bytes::new(), |secret| Bytes::copy_from_slice(&secret))
}

/// Checks that the user is known here, without blocking other launches: the database may be behind a network.
async fn know_user(uid: u32) -> Result<(), AccountError> {
    if uid == nix::unistd::geteuid().as_raw() {
        return Ok(());
    }
    match tokio::task::spawn_blocking(move || Account::of(uid)).await {
        Ok(result) => result.map(drop),
        Err(_) => Err(AccountError::Unknown { uid }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_launch_names_this_node_at_its_index_and_each_node_once() {
        let check = |names: &[&str], index: u32, expected: Result<(), &str>| {
            let member = |name: &&str| Member { name: (*name).to_owned(), address: "127.0.0.1:1".parse().unwrap() };
            let members: Vec<Member> = names.iter().map(member).collect();
            let checked = check_members("b", &members, NodeIndex(index)).map_err(|error| error.to_string());
            match (&checked, expected) {
                (Ok(()), Ok(())) => {}
                (Err(text), Err(part)) => assert!(text.contains(part), "{text}"),
                other => panic!("{names:?} {index}: {other:?}"),
            }
        };
        check(&["b"], 0, Ok(()));
        check(&["a", "b", "c"], 1, Ok(()));
        check(&["a", "b", "c"], 0, Err("b, which the request was sent to"));
        check(&["a", "b", "a"], 1, Err("a again"));
        check(&["b", "b"], 0, Err("b again"));
    }

    #[test]
    fn a_secret_is_as_long_as_a_launch_wants_it_and_never_the_same() {
        let (one, two) = (secret(), secret());
        assert_eq!((one.len(), two.len()), (wire::spec::SECRET_LEN, wire::spec::SECRET_LEN));
        assert_ne!(one, two);
    }

    #[tokio::test]
    async fn a_user_who_is_unknown_here_is_refused_and_the_agents_own_is_not_looked_up() {
        assert!(know_user(nix::unistd::geteuid().as_raw()).await.is_ok());
        let unknown = know_user(4_000_000_001).await.unwrap_err().to_string();
        assert_eq!(unknown, "user 4000000001 is not known on this node");
    }
}
