//! Counts of the server, for Prometheus.

use std::sync::atomic::AtomicU64;

use parking_lot::Mutex;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use tokio::time::Instant;

type Labels = [(&'static str, &'static str); 1];

/// Outcomes of a launch.
const OUTCOMES: [&str; 2] = ["succeeded", "failed"];
/// Sources of answers to questions about ranks: a node alone, or several nodes through their tree.
const QUESTIONS: [&str; 2] = ["node", "tree"];

/// All metrics of the server.
#[derive(Debug)]
pub(crate) struct Metrics {
    registry: Mutex<Registry>,
    nodes: Family<Labels, Gauge>,
    launches: Family<Labels, Gauge>,
    ended: Family<Labels, Counter>,
    lost_nodes: Counter,
    events: Counter,
    report_messages: Counter,
    questions: Family<Labels, Counter>,
    fan_out: Histogram,
}

/// Present numbers of nodes and launches, which are counted on request.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Census {
    pub nodes_up: usize,
    pub nodes_away: usize,
    pub nodes_lost: usize,
    pub starting: usize,
    pub active: usize,
    pub ending: usize,
}

impl Default for Metrics {
    fn default() -> Self {
        let mut registry = Registry::with_prefix("lattice_api");
        let metrics = Self {
            nodes: Family::default(),
            launches: Family::default(),
            ended: Family::default(),
            lost_nodes: Counter::<u64, AtomicU64>::default(),
            events: Counter::default(),
            report_messages: Counter::default(),
            questions: Family::default(),
            // From a millisecond to half a minute. Shifts compute the powers: floating-point powers need a library that each command would
            // load.
            fan_out: Histogram::new((0..16).map(|doublings| 0.001 * f64::from(1_u32 << doublings))),
            registry: Mutex::default(),
        };
        registry.register("nodes", "Nodes by state", metrics.nodes.clone());
        registry.register("launches", "Launches that have not ended, by state", metrics.launches.clone());
        registry.register("launches_ended", "Launches that have ended, by outcome", metrics.ended.clone());
        registry.register("nodes_lost", "Nodes that launches lost", metrics.lost_nodes.clone());
        registry.register("events", "Events that nodes reported", metrics.events.clone());
        registry.register(
            "report_messages",
            "Messages in which nodes report of launches, each on a stream of its own or several by way of a relay",
            metrics.report_messages.clone(),
        );
        registry.register(
            "rank_questions",
            "Questions to nodes about their ranks, by scope of the answer: the node alone, or several that it asks",
            metrics.questions.clone(),
        );
        registry.register(
            "fan_out_seconds",
            "From the first request to the last node's answer",
            metrics.fan_out.clone(),
        );
        *metrics.registry.lock() = registry;
        // The rate of an event that has not occurred yet is 0, and not absent.
        for outcome in OUTCOMES {
            drop(metrics.ended.get_or_create(&[("outcome", outcome)]));
        }
        for to in QUESTIONS {
            drop(metrics.questions.get_or_create(&[("to", to)]));
        }
        metrics
    }
}

/// Measures one fan-out.
pub(crate) struct FanOutTimer {
    histogram: Histogram,
    begun: Instant,
}

impl FanOutTimer {
    /// Ends the measurement.
    pub(crate) fn stop(self) {
        self.histogram.observe(self.begun.elapsed().as_secs_f64());
    }
}

impl Metrics {
    pub(crate) fn time_fan_out(&self) -> FanOutTimer {
        FanOutTimer { histogram: self.fan_out.clone(), begun: Instant::now() }
    }

    pub(crate) fn count_event(&self) {
        self.events.inc();
    }

    /// Counts a message with the reports of one or more nodes about a launch.
    pub(crate) fn count_report_message(&self) {
        self.report_messages.inc();
    }

    /// Counts a question that one node answers alone.
    pub(crate) fn count_question_to_node(&self) {
        self.questions.get_or_create(&[("to", QUESTIONS[0])]).inc();
    }

    /// Counts a question that several nodes answer through their tree.
    pub(crate) fn count_question_to_tree(&self) {
        self.questions.get_or_create(&[("to", QUESTIONS[1])]).inc();
    }

    pub(crate) fn count_lost_node(&self) {
        self.lost_nodes.inc();
    }

    pub(crate) fn count_ended(&self, success: bool) {
        let [succeeded, failed] = OUTCOMES;
        let outcome = if success { succeeded } else { failed };
        self.ended.get_or_create(&[("outcome", outcome)]).inc();
    }

    /// All metrics in the text format of Prometheus.
    pub(crate) fn text(&self, census: Census) -> String {
        let set = |family: &Family<Labels, Gauge>, state, count: usize| {
            family.get_or_create(&[("state", state)]).set(count as i64);
        };
        set(&self.nodes, "up", census.nodes_up);
        set(&self.nodes, "away", census.nodes_away);
        set(&self.nodes, "lost", census.nodes_lost);
        set(&self.launches, "starting", census.starting);
        set(&self.launches, "active", census.active);
        set(&self.launches, "ending", census.ending);
        let mut text = String::new();
        // Writing to a string does not fail.
        let _ = encode(&mut text, &self.registry.lock());
        text
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn what_was_counted_is_told_beside_what_there_is() {
        let metrics = Metrics::default();
        metrics.count_ended(true);
        let text = metrics.text(Census { nodes_up: 3, ..Default::default() });
        for expected in [
            r#"lattice_api_nodes{state="up"} 3"#,
            r#"lattice_api_launches_ended_total{outcome="succeeded"} 1"#,
            r#"lattice_api_launches_ended_total{outcome="failed"} 0"#,
            r#"lattice_api_rank_questions_total{to="tree"} 0"#,
        ] {
            assert!(text.contains(expected), "{text}");
        }
    }

    #[test]
    fn the_manual_lists_each_metric_and_no_other() {
        let text = Metrics::default().text(Census::default());
        let types = text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' '));
        let known: BTreeSet<String> =
            types.map(|(name, kind)| format!("{name}{}", if kind == "counter" { "_total" } else { "" })).collect();
        let manual = include_str!("../../docs/operate/monitoring.md");
        let table = manual.lines().filter(|line| line.starts_with("| `lattice_api_"));
        // Cells of a row have names with their labels, such as `lattice_api_nodes{state}`.
        let names =
            table.filter_map(|line| line.split(" | ").next()).flat_map(|cell| cell.split('`').skip(1).step_by(2));
        let listed: BTreeSet<String> = names.filter_map(|name| Some(name.split('{').next()?.to_owned())).collect();
        assert_eq!(listed, known);
    }
}
