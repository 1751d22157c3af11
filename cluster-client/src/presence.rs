//! Facts about an API server that one answer of it shows: its version, its clock, and its nodes.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use jiff::fmt::rfc2822::DateTimeParser;
use pmi_transport::proto::v1 as proto;
use proto::NodeState;

use super::cluster::Cluster;
use super::error::ClusterError;

/// An API server that answers.
#[derive(Clone, Debug)]
pub struct Presence {
    /// Version of the server.
    pub version: String,
    /// Seconds by which the clock of the server is ahead; `None` if the answer has no date. The precision is 1 s, and the time of the answer.
    pub clock_ahead: Option<i64>,
    /// Agents of the nodes.
    pub agents: Vec<KnownAgent>,
}

/// The agent of a node, as the API server knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KnownAgent {
    /// Name of the node.
    pub node: String,
    /// Version of the agent.
    pub version: String,
    /// True if the agent answers.
    pub is_up: bool,
}

impl Cluster {
    /// Requests the nodes of the cluster.
    ///
    /// # Errors
    /// As [`Cluster::ask`], with the time limit `limit`.
    pub async fn presence(&self, limit: Duration) -> Result<Presence, ClusterError> {
        let mut nodes = self.nodes();
        let begun = SystemTime::now();
        let answer = self.response_within(limit, nodes.list_nodes(proto::ListNodesRequest {})).await?;
        let ended = SystemTime::now();
        // The server writes the date of each answer to the headers (RFC 9110, 6.6.1).
        let date = answer.metadata().get("date").and_then(|date| date.to_str().ok());
        let clock_ahead = date.and_then(seconds).map(|server| ahead(server, begun, ended));
        let answer = answer.into_inner();
        let agents = answer.nodes.into_iter().filter(|node| node.state() != NodeState::Unspecified);
        let agents = agents.map(|node| KnownAgent {
            is_up: node.state() == NodeState::Up,
            node: node.id,
            version: node.version,
        });
        Ok(Presence { version: answer.version, clock_ahead, agents: agents.collect() })
    }
}

/// Seconds since 1970 of a date in a header.
fn seconds(date: &str) -> Option<i64> {
    Some(DateTimeParser::new().parse_timestamp(date).ok()?.as_second())
}

/// Seconds by which a clock with the time `server` is ahead of this one; 0 for a time between `begun` and `ended`. The header has whole
/// seconds, and its value can be 1 s old.
fn ahead(server: i64, begun: SystemTime, ended: SystemTime) -> i64 {
    let second = |time: SystemTime| time.duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs() as i64);
    let (begun, ended) = (second(begun) - 1, second(ended));
    if server < begun { server - begun } else { (server - ended).max(0) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_is_compared_with_the_time_of_the_question() {
        let moment = |seconds: u64| UNIX_EPOCH + Duration::from_secs(seconds);
        let check = |server, expected| assert_eq!(ahead(server, moment(100), moment(103)), expected, "{server}");
        check(99, 0);
        check(103, 0);
        check(110, 7);
        check(89, -10);
    }

    #[test]
    fn the_date_of_a_header_is_read() {
        assert_eq!(seconds("Fri, 20 Nov 2026 14:09:02 GMT"), Some(1_795_183_742));
        assert_eq!(seconds("yesterday"), None);
    }
}
