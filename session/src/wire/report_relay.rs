//! Reports of a launch's nodes through the agents that forwarded the launch: the part that both ends must agree on.

use pmi_transport::proto::v1 as proto;
use proto::node_command::What;

/// Returns true if a relay may forward this command to a node. It must be a confirmation, or have an effect that any agent of the launch
/// can also cause by other means. Commands that start programs or send them input come from the API server itself, because relays are not
/// trusted.
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
