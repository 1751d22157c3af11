//! Reports of a launch through the agent that forwarded the launch, so that the API server receives the reports of many nodes in few messages.
//!
//! ```text
//! API server ──RelayReports──> relay ──RelayReports──> node ──> Offer ──> Delivery
//!            <──reports of all──    <──reports of its branch──
//! ```
//!
//! The sender of a request to start a node's part of a launch fetches the node's reports, and forwards them with the reports of further nodes.
//! Events keep their numbers on the way: the API server and the session ensure that each event arrives once. A relay carries only confirmations,
//! signals and orders to end to nodes ([`report_relay::may_come`]). For any other command the node opens its own stream to the API server, as
//! after any break. It also does so if the relay is missing, gone or too slow.
//!
//! [`report_relay::may_come`]: lattice_session::wire::report_relay::may_come

mod branch;
mod streams;

use std::ops::Range;
use std::sync::Arc;

use pmi_transport::fence::{Member, shares};
use pmi_transport::identity::Caller;
use pmi_transport::proto::v1 as proto;
use tokio::sync::mpsc;
use tonic::Status;

pub(super) use self::streams::relay;

/// Maximum number of a node's reports that wait to be combined with reports of other nodes.
const REPORTS: usize = 16;

/// Maximum number of messages that wait for a node. Beyond that, the node opens its own stream, so that it delays no other node.
const MESSAGES: usize = 64;

/// Part of a launch that a node relays reports for: the node itself, and the nodes below it.
pub(super) struct Relayed {
    /// Sender of the request to start the launch here, which may fetch the reports.
    by: Caller,
    /// Index of this node.
    own: u32,
    /// The nodes below this one, as the launch was forwarded to them: the first node of each run relays for the run.
    behind: Vec<Range<u32>>,
    members: Arc<[Member]>,
    offers: mpsc::Sender<Offer>,
}

/// Route of a node's reports.
pub(super) enum Offer {
    /// A relay forwards them.
    Way(Way),
    /// The node reports to the API server itself.
    Direct,
}

/// Stream of one node's reports through a relay.
pub(super) struct Way {
    pub(super) reports: mpsc::Sender<proto::LaunchReport>,
    /// Closed without [`Downward::End`] when the relay is gone.
    pub(super) commands: mpsc::Receiver<Downward>,
}

/// Message from the API server to one node, through a relay.
pub(super) enum Downward {
    Command(proto::NodeCommand),
    /// The end of the stream; without an error, it acknowledges the report.
    End(Result<(), Status>),
}

impl Relayed {
    /// The relayed part of a launch that `caller` requests, and the offers to this node's delivery. `None` if the node reports to the API server
    /// from the start.
    pub(super) fn of(
        caller: &Caller,
        request: &proto::LaunchProcessesRequest,
        members: &Arc<[Member]>,
    ) -> Option<(Arc<Self>, mpsc::Receiver<Offer>)> {
        let own = request.node_index;
        let end = own.checked_add(1)?.checked_add(request.relay_nodes)?;
        // `relay::pass_on` refuses a range beyond the launch's nodes.
        if !request.relays_reports || end as usize > members.len() {
            return None;
        }
        let (offers, offered) = mpsc::channel(2);
        let behind = shares(own + 1..end, request.relay_fan_out).collect();
        let relayed = Self { by: caller.clone(), own, behind, members: Arc::clone(members), offers };
        Some((Arc::new(relayed), offered))
    }

    /// Makes this node report to the API server itself. Has no effect if it already does.
    pub(super) fn report_directly(&self) {
        let _ = self.offers.try_send(Offer::Direct);
    }

    /// Checks that `caller` may fetch the reports.
    ///
    /// # Errors
    /// The error names the caller that may fetch them.
    pub(super) fn check(&self, caller: &Caller) -> Result<(), Status> {
        if *caller == self.by {
            return Ok(());
        }
        Err(Status::permission_denied(format!("{caller} does not relay the launch's reports; {} does", self.by)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(node_index: u32, relay_nodes: u32, relays_reports: bool) -> Option<Arc<Relayed>> {
        let member = |index| Member { name: format!("node{index}"), address: "127.0.0.1:1".parse().unwrap() };
        let members: Arc<[Member]> = (0..10).map(member).collect();
        let request = proto::LaunchProcessesRequest {
            node_index,
            relay_nodes,
            relay_fan_out: 3,
            relays_reports,
            ..Default::default()
        };
        Relayed::of(&Caller::Api, &request, &members).map(|(relayed, _)| relayed)
    }

    #[test]
    fn a_relay_knows_the_nodes_behind_it_as_the_launch_was_passed_on_to_them() {
        assert_eq!(of(2, 7, true).unwrap().behind, [3..6, 6..8, 8..10]);
        assert!(of(9, 0, true).unwrap().behind.is_empty());
        assert!(of(2, 7, false).is_none(), "nobody will fetch them");
        assert!(of(2, 8, true).is_none() && of(2, u32::MAX, true).is_none(), "there are not so many nodes");
    }

    #[test]
    fn only_who_asked_for_the_launch_may_fetch_the_reports() {
        let relayed = of(2, 7, true).unwrap();
        assert!(relayed.check(&Caller::Api).is_ok());
        let refused = relayed.check(&Caller::Agent("node1".to_owned())).unwrap_err();
        assert_eq!(refused.message(), "the agent of node1 does not relay the launch's reports; the API server does");
    }
}
