//! Metrics of the agent, for Prometheus.

use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use super::Node;

/// Counters since the start of the agent.
#[derive(Default)]
pub(super) struct Metrics {
    /// Sessions that were started for launches.
    pub(super) started: Counter,
    /// Launches that were refused.
    pub(super) refused: Counter,
    /// Sessions that ended without a report.
    pub(super) lost: Counter,
}

/// Encodes all metrics as OpenMetrics text.
pub(super) fn text(node: &Node) -> String {
    let mut registry = Registry::with_prefix("lattice_agent");
    let Metrics { started, refused, lost } = &node.metrics;
    registry.register("launches_started", "Launches with a session that was started", started.clone());
    registry.register("launches_refused", "Launches that were refused", refused.clone());
    registry.register("sessions_lost", "Sessions that ended without a report", lost.clone());
    let gauge = |registry: &mut Registry, name: &str, help: &str, value: i64| {
        let gauge: Gauge = Gauge::default();
        gauge.set(value);
        registry.register(name, help, gauge);
    };
    let fences = node.fences.counters();
    gauge(&mut registry, "launches", "Launches that have not ended", node.launches.count() as i64);
    gauge(&mut registry, "links", "Nodes that there is a link to", node.fences.links() as i64);
    gauge(&mut registry, "fences_completed", "Fences that all nodes came to", fences.completed as i64);
    gauge(&mut registry, "fences_failed", "Fences that failed", fences.failed as i64);
    let mut text = String::new();
    // Writing to a string does not fail.
    let _ = encode(&mut text, &registry);
    text
}
