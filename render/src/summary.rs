//! Summary of a finished launch, for `--summary` and the last line of `--json`: times, resources and output. The nodes measure the times of
//! ranks, because events may arrive late.

use std::collections::HashMap;
use std::time::Duration;

use hostlist::fold;
use lattice_console::formatting::{count, short_duration, size};
use lattice_session::event::{Event, Output, Report, Stream, Usage, UsageRange};
use pmi_core::ids::{NodeIndex, Rank};
use serde::Serialize;

use super::usage::{self, UsageLine};

/// Counters of a running launch.
#[derive(Debug)]
pub(super) struct Summary {
    /// Start times of the running ranks.
    running: HashMap<Rank, Duration>,
    /// Ranks with the first and the last start. Starts and ends are durations since 1970.
    starts: Option<Extremes>,
    /// Ranks with the first and the last end.
    ends: Option<Extremes>,
    /// Ranks with the shortest and the longest run.
    runs: Option<Extremes>,
    /// Counters by node index.
    nodes: Vec<OfNode>,
}

/// Ranks with the least and the greatest time. Of ranks with equal times, the first counts.
#[derive(Clone, Copy, Debug)]
struct Extremes {
    least: (Rank, Duration),
    most: (Rank, Duration),
}

/// Counters of one node.
#[derive(Clone, Copy, Debug, Default)]
struct OfNode {
    ranks: u32,
    /// Latest end of a rank so far.
    ended: Duration,
    /// Bytes on standard output and on standard error.
    written: [u64; 2],
}

impl Extremes {
    fn with(known: Option<Self>, rank: Rank, time: Duration) -> Self {
        let new = (rank, time);
        let Some(Self { least, most }) = known else { return Self { least: new, most: new } };
        Self { least: if time < least.1 { new } else { least }, most: if time > most.1 { new } else { most } }
    }
}

impl OfNode {
    fn bytes(&self) -> u64 {
        self.written.iter().sum()
    }
}

impl Summary {
    pub(super) fn new(nodes: usize) -> Self {
        let nodes = vec![OfNode::default(); nodes];
        Self { running: HashMap::new(), starts: None, ends: None, runs: None, nodes }
    }

    pub(super) fn event(&mut self, node: NodeIndex, event: &Event) {
        let Some(of_node) = self.nodes.get_mut(node.index()) else { return };
        match event {
            Event::Output(Output { stream, bytes, .. }) => {
                of_node.written[usize::from(*stream == Stream::Stderr)] += bytes.len() as u64;
            }
            &Event::Started { rank, at, .. } => {
                of_node.ranks += 1;
                self.running.insert(rank, at);
                self.starts = Some(Extremes::with(self.starts, rank, at));
            }
            &Event::Exited { rank, ran, .. } => {
                self.runs = Some(Extremes::with(self.runs, rank, ran));
                // A viewer may have missed the start event.
                let Some(started) = self.running.remove(&rank) else { return };
                let end = started + ran;
                of_node.ended = of_node.ended.max(end);
                self.ends = Some(Extremes::with(self.ends, rank, end));
            }
            _ => {}
        }
    }

    /// Time since the start of the first rank.
    fn since_start(&self, time: Duration) -> Duration {
        time.saturating_sub(self.starts.map_or(Duration::ZERO, |starts| starts.least.1))
    }

    /// Lines of the summary as text.
    pub(super) fn lines(&self, hosts: &[String], report: &Report) -> Vec<String> {
        let ranks = count(report.exits.len() as u32, "rank");
        let mut lines = vec![format!("{ranks} on {} ran for {}", fold(hosts), short_duration(report.duration))];
        let of = |(rank, time): (Rank, Duration)| format!("{} (rank {rank})", short_duration(time));
        let several = |extremes: Option<Extremes>| extremes.filter(|known| known.least.0 != known.most.0);
        if let Some(Extremes { least, most }) = several(self.starts) {
            let within = short_duration(self.since_start(most.1));
            lines.push(format!("all ranks started within {within}: rank {} first, rank {} last", least.0, most.0));
        }
        if let Some(Extremes { least, most }) = several(self.ends) {
            let [least, most] = [least, most].map(|(rank, end)| of((rank, self.since_start(end))));
            lines.push(format!("the first rank ended after {least}, the last one after {most}"));
        }
        if let Some(Extremes { least, most }) = several(self.runs) {
            lines.push(format!("the fastest rank ran for {}, the slowest one for {}", of(least), of(most)));
        }
        lines.extend(report.usage.map(usage::words));
        let written = |stream: usize| size(self.nodes.iter().map(|node| node.written[stream]).sum());
        lines.push(format!("written: {} to standard output, {} to standard error", written(0), written(1)));
        lines.extend(used_by_node(hosts, report));
        lines.extend(self.of_nodes(hosts, "ended", |node| self.since_start(node.ended), short_duration));
        lines.extend(self.of_nodes(hosts, "written", OfNode::bytes, size));
        lines
    }

    /// Nodes with the least and the greatest value; `None` if both values have the same text.
    fn of_nodes<T: Ord + Copy>(
        &self,
        hosts: &[String],
        what: &str,
        value: impl Fn(&OfNode) -> T,
        shown: impl Fn(T) -> String,
    ) -> Option<String> {
        let with_ranks = || hosts.iter().zip(&self.nodes).filter(|(_, node)| node.ranks > 0);
        let least = with_ranks().min_by_key(|(_, node)| value(node))?;
        let most = with_ranks().max_by_key(|(_, node)| value(node))?;
        let [low, high] = [least, most].map(|(host, node)| (shown(value(node)), host));
        (low.0 != high.0).then(|| format!("by node, {what}: from {} ({}) to {} ({})", low.0, low.1, high.0, high.1))
    }

    /// The summary as JSON.
    pub(super) fn line<'a>(&self, hosts: &'a [String], report: &Report) -> SummaryLine<'a> {
        let range = |known: Option<Extremes>, shown: &dyn Fn(Duration) -> Duration| {
            let of_rank = |(rank, time)| OfRank { rank, after_s: shown(time).as_secs_f64() };
            known.map(|Extremes { least, most }| [least, most].map(of_rank))
        };
        let since_start = |time| self.since_start(time);
        let of_node =
            |(node, usage): (NodeIndex, Usage)| Some(NodeUsed { node: hosts.get(node.index())?, usage: usage.into() });
        let node = |(name, of): (&'a String, &OfNode)| NodeLine {
            node: name,
            num_ranks: of.ranks,
            ended_after_s: self.since_start(of.ended).as_secs_f64(),
            stdout_bytes: of.written[0],
            stderr_bytes: of.written[1],
        };
        SummaryLine {
            started: range(self.starts, &since_start),
            ended: range(self.ends, &since_start),
            ran: range(self.runs, &|time| time),
            used: report
                .by_node
                .as_ref()
                .and_then(|range| Some(Box::new([of_node(range.least)?, of_node(range.most)?]))),
            nodes: hosts.iter().zip(&self.nodes).map(node).collect(),
        }
    }
}

/// Nodes with the least and the most processor time; `None` if both times have the same text.
fn used_by_node(hosts: &[String], report: &Report) -> Option<String> {
    let UsageRange { least, most } = **report.by_node.as_ref()?;
    let of = |(node, usage): (NodeIndex, Usage)| Some((short_duration(usage.time()), hosts.get(node.index())?));
    let (low, high) = (of(least)?, of(most)?);
    let range = || format!("by node, processor time: from {} ({}) to {} ({})", low.0, low.1, high.0, high.1);
    (low.0 != high.0).then(range)
}

/// Summary in the last line of `--json`.
#[derive(Debug, Serialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
pub(super) struct SummaryLine<'a> {
    /// First and last rank that started, with the time since the first start.
    started: Option<[OfRank; 2]>,
    /// First and last rank that ended, with the time since the first start.
    ended: Option<[OfRank; 2]>,
    /// Fastest and slowest rank, with the time from start to end.
    ran: Option<[OfRank; 2]>,
    /// Nodes with the least and the most processor time.
    used: Option<Box<[NodeUsed<'a>; 2]>>,
    nodes: Vec<NodeLine<'a>>,
}

#[derive(Debug, Serialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
struct OfRank {
    #[cfg_attr(any(test, feature = "schema"), schemars(with = "u32"))]
    rank: Rank,
    after_s: f64,
}

#[derive(Debug, Serialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
struct NodeUsed<'a> {
    node: &'a str,
    #[serde(flatten)]
    usage: UsageLine,
}

#[derive(Debug, Serialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
struct NodeLine<'a> {
    node: &'a str,
    /// Number of ranks that started there.
    num_ranks: u32,
    /// End of the last rank; 0 if none has ended.
    ended_after_s: f64,
    stdout_bytes: u64,
    stderr_bytes: u64,
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use rank_spawner::RankExit;

    use super::*;

    #[test]
    fn times_resources_and_output_are_summed_up() {
        let mut summary = Summary::new(2);
        for (rank, millis) in [(2, 900), (0, 100), (1, 200)] {
            let at = Duration::from_secs(1_764_400_000) + Duration::from_millis(millis);
            summary.event(NodeIndex(rank / 2), &Event::Started { rank: Rank(rank), pid: 1, at });
        }
        let bytes = Bytes::from_static(&[b'x'; 2048]);
        for (rank, stream) in [(0, Stream::Stdout), (1, Stream::Stdout), (2, Stream::Stderr)] {
            let output = Output { rank: Rank(rank), stream, bytes: bytes.clone() };
            summary.event(NodeIndex(rank / 2), &Event::Output(output));
        }
        for (rank, millis) in [(0, 1900), (1, 3800), (2, 100)] {
            let ran = Duration::from_millis(millis);
            let exited = Event::Exited { rank: Rank(rank), exit: RankExit::Code(0), reached: None, ran };
            summary.event(NodeIndex(rank / 2), &exited);
        }
        let exits = (0..3).map(|rank| (Rank(rank), RankExit::Code(0))).collect();
        let usage = Usage { user: Duration::from_secs(61), system: Duration::from_millis(250), peak_memory: 3 << 20 };
        let by_node = UsageRange::with(None, NodeIndex(0), usage);
        let by_node = UsageRange::with(Some(by_node), NodeIndex(1), Usage { user: Duration::from_secs(2), ..usage });
        let duration = Duration::from_secs(4);
        let report = Report { exits, cause: None, duration, usage: Some(usage), by_node: Some(by_node.into()) };
        let hosts = ["n0".to_owned(), "n1".to_owned()];
        assert_eq!(
            summary.lines(&hosts, &report),
            [
                "3 ranks on n[0-1] ran for 4.000 s",
                "all ranks started within 800 ms: rank 0 first, rank 2 last",
                "the first rank ended after 900 ms (rank 2), the last one after 3.900 s (rank 1)",
                "the fastest rank ran for 100 ms (rank 2), the slowest one for 3.800 s (rank 1)",
                "used: 1 min 1 s of processor time for programs, 250 ms in the kernel; at most 3.0 MiB of memory in one process",
                "written: 4.0 KiB to standard output, 2.0 KiB to standard error",
                "by node, processor time: from 2.250 s (n1) to 1 min 1 s (n0)",
                "by node, ended: from 900 ms (n1) to 3.900 s (n0)",
                "by node, written: from 2.0 KiB (n1) to 4.0 KiB (n0)",
            ]
        );
        let line = serde_json::to_value(summary.line(&hosts, &report)).unwrap();
        assert_eq!(line["used"][0]["node"], "n1");
        assert_eq!(line["ran"][1], serde_json::json!({ "rank": 1, "after_s": 3.8 }));
        assert_eq!(line["nodes"][1]["stderr_bytes"], 2048);
    }

    #[test]
    fn one_rank_is_not_compared() {
        let mut summary = Summary::new(1);
        let second = Duration::from_secs(1);
        summary.event(NodeIndex(0), &Event::Started { rank: Rank(0), pid: 1, at: second });
        let exited = Event::Exited { rank: Rank(0), exit: RankExit::Code(0), reached: None, ran: second };
        summary.event(NodeIndex(0), &exited);
        let report = Report {
            exits: vec![(Rank(0), RankExit::Code(0))],
            cause: None,
            duration: Duration::from_secs(1),
            usage: None,
            by_node: None,
        };
        let lines = summary.lines(&["n0".to_owned()], &report);
        assert_eq!(lines, ["1 rank on n0 ran for 1.000 s", "written: 0 B to standard output, 0 B to standard error"]);
    }
}
