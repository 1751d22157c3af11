//! Admission of launches: checks the caller and the request, and that the user of the launch may start processes here. Starts no process.

use std::collections::HashSet;

use bytes::Bytes;
use lattice_session::random;
use lattice_session::wire::WireError;
use lattice_session::wire::foreign::Unsaid;
use lattice_session::wire::order::StartOrder;
use lattice_session::wire::spec::SECRET_LEN;
use pmi_core::ids::NodeIndex;
use pmi_transport::fence::Member;
use pmi_transport::identity::Caller;
use rank_spawner::{Account, AccountError};

use super::Node;
use super::fabric::{FabricError, Wish};
use super::refusal::{Refusal, RefusalReason};
use super::serials::NotNew;
use super::wire::launch_request::{Assignment, Received};

/// Launch that passed admission.
pub(super) struct Admitted {
    pub(super) assignment: Assignment,
    /// The launch as an order for the fork server.
    pub(super) order: StartOrder,
    /// Request for fabric services; `None` if the ranks need none.
    pub(super) fabric: Option<Wish>,
}

/// Admits a launch, or refuses it.
pub(super) async fn admit(node: &Node, caller: &Caller, request: &Received) -> Result<Admitted, Refusal> {
    let refuse = |reason, message: String| Refusal::of(node, reason, message);
    if let Caller::Agent(_) = caller {
        // A stolen agent key starts no launch: the API server must have signed each request that an agent forwards.
        request.verify(&node.security).map_err(|error| refuse(RefusalReason::Signature, error.to_string()))?;
    }
    if node.launches.get(request.launch_id()).is_some() {
        // Possibly adopted from an earlier agent that ended before it reported the start.
        return Err(refuse(RefusalReason::AlreadyRunning, "the launch runs here already".to_owned()));
    }
    let is_new = if matches!(caller, Caller::Agent(_)) || node.config.user.is_some() {
        // A fork server that does not trust this agent checks the serial too. It receives the last serial before this agent registers it.
        node.launches.serials.check(request.serial()).await
    } else {
        node.launches.serials.check_asked(request.serial()).await
    };
    is_new.map_err(|error| {
        let reason = match error {
            NotNew::Old | NotNew::AskedBefore | NotNew::Unregistered => RefusalReason::Restarting,
            NotNew::Behind => RefusalReason::Signature,
        };
        refuse(reason, error.to_string())
    })?;
    let assignment = understand(node, request);
    let assignment = assignment.map_err(|error| refuse(RefusalReason::MalformedRequest, error.to_string()))?;
    if let Caller::Agent(relay) = caller {
        check_relay(node, relay, request, &assignment).map_err(|message| refuse(RefusalReason::Signature, message))?;
    }
    if let Some(why) = node.config.refuse_user(assignment.uid) {
        return Err(refuse(RefusalReason::User, why.to_string()));
    }
    know_user(assignment.uid).await.map_err(|error| refuse(RefusalReason::User, error.to_string()))?;
    let order = request.order(&assignment);
    let fabric = wish(request, &assignment, &order).map_err(|error| refuse(RefusalReason::Busy, error.to_string()))?;
    Ok(Admitted { assignment, order, fabric })
}

/// Decodes the launch as a session does, and checks that the request names this node.
fn understand(node: &Node, request: &Received) -> Result<Assignment, WireError> {
    let address = node.address.get().to_string();
    let uid = node.config.starter.as_raw();
    let unsaid = || Unsaid { node_id: &node.config.node_id, address: &address, uid, secret: secret() };
    let assignment = request.decode(unsaid)?;
    check_members(&node.config.node_id, &assignment.members, assignment.index)?;
    Ok(assignment)
}

/// Checks the additional conditions for a launch that an agent forwards. The error is the reason as text.
fn check_relay(node: &Node, relay: &str, request: &Received, assignment: &Assignment) -> Result<(), String> {
    let launch_id = &assignment.launch_id;
    if !assignment.members.iter().any(|member| member.name == *relay) {
        let caller = Caller::Agent(relay.to_owned());
        return Err(format!("{caller} takes no part in launch {launch_id}, and has nothing to pass on"));
    }
    let verified = request.verify_credentials(&node.security, launch_id);
    verified.map_err(|error| format!("its fabric credentials: {error}"))
}

/// The launch's request for fabric services, if it has credentials.
fn wish(request: &Received, assignment: &Assignment, order: &StartOrder) -> Result<Option<Wish>, FabricError> {
    let &Assignment { ref launch_id, uid, ranks, .. } = assignment;
    let Some(credentials) = request.credentials() else { return Ok(None) };
    let (claims, launch_id, order) = (credentials.claims()?, launch_id.clone(), order.clone());
    Ok(Some(Wish { launch_id, uid, ranks, claims, order, credentials }))
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

/// Random bytes. Empty if the system has none; the launch is then refused.
fn secret() -> Bytes {
    random::bytes::<SECRET_LEN>().map_or_else(|_| Bytes::new(), |secret| Bytes::copy_from_slice(&secret))
}

/// Checks that this node has an account of the user. Does not block other launches, because the user database may be on the network.
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
        assert_eq!((one.len(), two.len()), (SECRET_LEN, SECRET_LEN));
        assert_ne!(one, two);
    }

    #[tokio::test]
    async fn a_user_who_is_unknown_here_is_refused_and_the_agents_own_is_not_looked_up() {
        assert!(know_user(nix::unistd::geteuid().as_raw()).await.is_ok());
        let unknown = know_user(4_000_000_001).await.unwrap_err().to_string();
        assert_eq!(unknown, "user 4000000001 is not known on this node");
    }
}
