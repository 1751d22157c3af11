//! What the agent counts, for Prometheus: one plain HTTP answer, whatever is asked.

use std::sync::Arc;
use std::time::Duration;

use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};

use super::Node;

/// How long one who asks may take.
const PATIENCE: Duration = Duration::from_secs(5);

/// The longest question that is read.
const QUESTION_MAX: usize = 8 << 10;

/// How many may ask at once.
const ASKERS_MAX: usize = 16;

/// What happened since the agent started.
#[derive(Default)]
pub(super) struct Metrics {
    /// Launches whose session was started.
    pub(super) started: Counter,
    /// Launches that were refused.
    pub(super) refused: Counter,
    /// Sessions that ended without a report.
    pub(super) lost: Counter,
}

/// Answers for ever.
pub(super) async fn serve(listener: TcpListener, node: Arc<Node>) {
    let askers = Arc::new(Semaphore::new(ASKERS_MAX));
    loop {
        let Ok(permit) = Arc::clone(&askers).acquire_owned().await else { return };
        match listener.accept().await {
            Ok((stream, _)) => {
                let node = Arc::clone(&node);
                tokio::spawn(async move {
                    // Who does not listen gets no answer.
                    let _ = timeout(PATIENCE, answer(stream, &node)).await;
                    drop(permit);
                });
            }
            // Out of descriptors, for one; it passes.
            Err(_) => sleep(Duration::from_millis(100)).await,
        }
    }
}

async fn answer(mut stream: TcpStream, node: &Node) -> std::io::Result<()> {
    let mut question = vec![0; QUESTION_MAX];
    let mut len = 0;
    while len < QUESTION_MAX && !question[..len].windows(4).any(|end| end == b"\r\n\r\n") {
        match stream.read(&mut question[len..]).await? {
            0 => break,
            more => len += more,
        }
    }
    let body = text(node);
    let head = format!(
        "HTTP/1.1 200 OK\r\nContent-Type: application/openmetrics-text; version=1.0.0; charset=utf-8\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).await?;
    stream.write_all(body.as_bytes()).await?;
    stream.shutdown().await
}

fn text(node: &Node) -> String {
    let mut registry = Registry::with_prefix("lattice_agent");
    let Metrics { started, refused, lost } = &node.metrics;
    registry.register("launches_started", "Launches whose session was started", started.clone());
    registry.register("launches_refused", "Launches that were refused", refused.clone());
    registry.register("sessions_lost", "Sessions that ended without a report", lost.clone());
    let gauge = |registry: &mut Registry, name: &str, help: &str, value: i64| {
        let gauge: Gauge = Gauge::default();
        gauge.set(value);
        registry.register(name, help, gauge);
    };
    let fences = node.fences.counted();
    gauge(&mut registry, "launches", "Launches that have not ended", node.launches.count() as i64);
    gauge(&mut registry, "links", "Nodes that there is a link to", node.fences.links() as i64);
    gauge(&mut registry, "fences_completed", "Fences that all nodes came to", fences.completed as i64);
    gauge(&mut registry, "fences_failed", "Fences that failed", fences.failed as i64);
    let mut text = String::new();
    // Writing to a string does not fail.
    let _ = encode(&mut text, &registry);
    text
}
