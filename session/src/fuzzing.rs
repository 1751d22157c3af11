//! Entry points of the fuzz targets in `fuzz/`, as plain functions. They accept any bytes, and panic if an invariant is broken.
//!
//! - [`agent_request`]: input of an agent before it starts a process.
//! - [`launch_spec`]: input of a session before it starts a rank.
//! - [`session_frame`]: messages between agent and session while ranks run.
//! - [`start_order`]: messages of an agent to its fork server.

use std::collections::BTreeSet;

use bytes::Bytes;
use pmi_core::ids::{Epoch, NodeIndex};
use pmi_transport::proto::v1 as proto;
use prost::Message;
use proto::answer::What as AnswerWhat;
use proto::call::What as CallWhat;
use proto::from_session::What as FromWhat;
use proto::to_session::What as ToWhat;

use crate::placed::ClusterTerms;
use crate::wire;

/// Name and address of the agent under test.
const NODE: &str = "node1";
const ADDRESS: &str = "10.0.0.3:50052";
/// Number of nodes of the launch. Its session reads commands.
const NODES: usize = 3;

/// A request to start a launch is refused, or contains the receiver's index among the nodes. Credentials are refused or bounded.
pub fn agent_request(data: &[u8]) {
    let Ok(request) = proto::LaunchProcessesRequest::decode(data) else { return };
    if let Some(credentials) = &request.cxi_credentials
        && wire::fabric::decode(credentials).is_ok()
    {
        let signed = wire::fabric::signed_text(&request.launch_id, credentials);
        assert!(signed.expose().len() < 1 << 20, "{} bytes to sign", signed.expose().len());
    }
    if !request.spec.is_empty() {
        return check_spec(&request.spec, request.node_index);
    }
    let secret = Bytes::from_static(&[7; wire::spec::SECRET_LEN]);
    let unsaid = wire::foreign::Unsaid { node_id: NODE, address: ADDRESS, uid: 7, secret };
    let Ok((spec, me)) = wire::foreign::launch_spec(&request, &unsaid) else { return };
    assert_eq!(spec.uid, 7, "a request cannot choose its user");
    let spec = spec.encode_to_vec();
    check_spec(&spec, me);
    if let Ok(session) = wire::spec::decode(decoded(&spec), NodeIndex(me)) {
        assert_eq!(session.hosts[me as usize], NODE);
    }
}

/// A launch's spec is refused or consistent: it has as many parts as it declares, and the session can forward it unchanged.
///
/// The first byte is the index of the receiving node.
pub fn launch_spec(data: &[u8]) {
    if let Some((&node, spec)) = data.split_first() {
        check_spec(spec, node.into());
    }
}

fn check_spec(spec: &[u8], node: u32) {
    let Ok(launch) = proto::LaunchSpec::decode(spec) else { return };
    let addresses = launch.addresses.clone();
    let node = NodeIndex(node);
    let Ok(session) = wire::spec::decode(launch.clone(), node) else { return };
    let placed = wire::placed::decode(launch).expect("what a node takes can be shown to a user");
    assert!(node.index() < session.hosts.len());
    let job = &session.job;
    assert_eq!(session.apps.len(), job.apps.len());
    assert_eq!(job.apps.iter().map(|app| u64::from(app.ranks)).sum::<u64>(), u64::from(job.size()));
    assert!(job.placement.ranks_on(node).iter().all(|rank| rank.0 < job.size()));
    if let Ok(addresses) = wire::spec::addresses(&addresses, session.hosts.len()) {
        assert_eq!(addresses.len(), session.hosts.len());
    }
    let terms = ClusterTerms {
        link_key: None,
        set: None,
        uid: 0,
        addresses: Vec::new(),
        secret: session.secret.clone(),
        barrier_fan_out: None,
        data_fan_out: None,
        output_window: 0,
        stdin_window: 0,
    };
    let again = proto::LaunchSpec { addresses, ..wire::placed::encode(&placed, &terms) };
    let again = wire::spec::decode(again, node).expect("what was taken is taken again");
    // Its types do not implement equality.
    assert_eq!(again, session);
}

fn decoded(spec: &[u8]) -> proto::LaunchSpec {
    proto::LaunchSpec::decode(spec).expect("it was encoded here")
}

/// A message of an agent to its fork server is refused, or it is an order or an answer to a challenge. The fork server and the session read
/// the same data from a launch.
pub fn start_order(data: &[u8]) {
    drop(wire::order::decode_last_serial(data.to_vec()));
    let Ok(order) = wire::order::StartOrder::decode(data.to_vec()) else { return };
    assert_eq!(wire::order::StartOrder::decode(order.encode().to_vec()).expect("it was encoded here"), order);
    let Ok(spec) = proto::LaunchSpec::decode(order.spec.clone()) else { return };
    let Ok(session) = wire::spec::decode(spec.clone(), order.node) else { return };
    let head = order.head().expect("what a session takes has a head");
    assert_eq!((head.launch_id, head.uid, head.nodes), (session.launch_id, spec.uid, session.hosts));
}

/// Every frame between agent and session, and every message between sessions, is decoded or refused.
///
/// The first byte is the direction of the rest: 255 is from session to session, an even value is to the session.
pub fn session_frame(data: &[u8]) {
    match data.split_first() {
        Some((&u8::MAX, message)) => between_sessions(message),
        Some((way, message)) if way % 2 == 0 => to_session(message),
        Some((_, message)) => from_session(message),
        None => {}
    }
}

fn between_sessions(message: &[u8]) {
    if let Ok(failure) = wire::failure::decode(Bytes::copy_from_slice(message)) {
        let again = wire::failure::decode(wire::failure::encode(&failure));
        assert_eq!(again.expect("what was taken can be passed on"), failure);
    }
}

fn to_session(message: &[u8]) {
    match proto::ToSession::decode(message).ok().and_then(|message| message.what) {
        Some(ToWhat::Start(start)) => {
            check_spec(&start.spec, start.node_index);
            wire::decode_variables(start.environment);
            drop(start.fabric.map(|fabric| wire::fabric::decode_node(&fabric)));
        }
        Some(ToWhat::Command(command)) => drop(wire::command::decode(command, NODES)),
        Some(ToWhat::Answer(answer)) => match answer.what {
            Some(AnswerWhat::FenceFault(fault)) => drop(wire::fence::decode_fault(fault, Epoch(0))),
            Some(AnswerWhat::Name(name)) => drop(wire::call::decode_name_answer(name)),
            Some(AnswerWhat::Spawn(spawn)) => drop(wire::call::decode_spawn_answer(spawn)),
            Some(AnswerWhat::Meet(meet)) => drop(wire::meeting::decode_answer(meet)),
            Some(AnswerWhat::Pass(pass)) => drop(wire::pass::decode(&pass)),
            _ => {}
        },
        Some(ToWhat::Question(_) | ToWhat::Resume(_) | ToWhat::Dismissed(_) | ToWhat::Unheard(_)) | None => {}
    }
}

fn from_session(message: &[u8]) {
    match proto::FromSession::decode(message).ok().and_then(|message| message.what) {
        Some(FromWhat::Event(event)) => {
            let cost = wire::event::cost(&event);
            assert!(cost < message.len() + 4096, "{cost} for {} bytes", message.len());
            drop(wire::event::decode(event));
        }
        Some(FromWhat::Call(call)) => match call.what {
            Some(CallWhat::Fence(fence)) => {
                check_nodes(&fence.member_gaps);
                if let Some(scope) = fence.scope
                    && let Ok(decoded) = wire::fence::decode_scope(scope)
                {
                    wire::fence::encode_scope(&decoded).expect("what was taken can be sent on");
                }
            }
            Some(CallWhat::Name(name)) => drop(wire::call::decode_name(name)),
            Some(CallWhat::Spawn(spawn)) => drop(wire::call::decode_spawn(spawn)),
            Some(CallWhat::Meet(meet)) => check_nodes(&meet.node_gaps),
            Some(CallWhat::Data(_) | CallWhat::Pass(_)) | None => {}
        },
        Some(FromWhat::Reply(_) | FromWhat::Warning(_) | FromWhat::Resumed(_)) | None => {}
    }
}

/// Checks that nodes are named once, in order.
fn check_nodes(gaps: &[u32]) {
    let Ok(nodes) = wire::fence::decode_nodes(gaps) else { return };
    assert!(nodes.is_sorted());
    assert_eq!(nodes.iter().collect::<BTreeSet<_>>().len(), nodes.len());
    assert_eq!(wire::fence::encode_nodes(&nodes), gaps);
}
