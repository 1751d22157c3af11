//! Reports of a launch's nodes by way of the agents that passed the launch on: the part that both ends must agree on.

use pmi_transport::proto::v1 as proto;
use proto::node_command::What;

/// Capability of a node whose agent relays the reports of other nodes, and sends its own by way of another agent, as it tells the API server.
pub const CAPABILITY: &str = "report-relay";

/// Returns true if a relay may bring a node this command: it is a confirmation, or something that any agent of the launch can have done to it in
/// other ways. What starts programs or feeds them comes from the API server itself, for a relay is not to be believed.
pub fn may_come(command: &proto::NodeCommand) -> bool {
    match &command.what {
        None => true,
        Some(What::Signal(_) | What::End(_) | What::Kill(_) | What::GiveUp(_) | What::Release(_)) => true,
        Some(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_starts_or_feeds_programs_comes_from_the_api_server_alone() {
        let check = |what, expected| {
            assert_eq!(may_come(&proto::NodeCommand { what, sequence: 1, events_taken: 2 }), expected);
        };
        check(None, true);
        check(Some(What::Kill(9)), true);
        check(Some(What::GiveUp(proto::Nothing {})), true);
        check(Some(What::Spawn(proto::SpawnOrder::default())), false);
        check(Some(What::Stdin("x".into())), false);
        check(Some(What::OutputCredit(1)), false);
    }
}
