//! What the server counts, and a very small HTTP server that shows it to Prometheus.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use parking_lot::Mutex;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout};

/// The most requests at once; more have to wait.
const REQUESTS_MAX: usize = 16;
/// The longest request.
const REQUEST_MAX: usize = 8 << 10;
/// How long a request may take, reading and answering.
const PATIENCE: Duration = Duration::from_secs(5);

type Labels = [(&'static str, &'static str); 1];

/// Everything that is counted.
#[derive(Debug)]
pub(crate) struct Metrics {
    registry: Mutex<Registry>,
    nodes: Family<Labels, Gauge>,
    launches: Family<Labels, Gauge>,
    ended: Family<Labels, Counter>,
    lost_nodes: Counter,
    events: Counter,
    fan_out: Histogram,
}

/// What there is at present, which is counted when somebody asks.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Census {
    pub nodes_up: usize,
    pub nodes_lost: usize,
    pub starting: usize,
    pub active: usize,
    pub ending: usize,
}

impl Default for Metrics {
    fn default() -> Self {
        let mut registry = Registry::with_prefix("lattice_api");
        // From a millisecond to half a minute.
        let metrics = Self {
            nodes: Family::default(),
            launches: Family::default(),
            ended: Family::default(),
            lost_nodes: Counter::<u64, AtomicU64>::default(),
            events: Counter::default(),
            fan_out: Histogram::new(exponential_buckets(0.001, 2.0, 15)),
            registry: Mutex::default(),
        };
        registry.register("nodes", "Nodes by state", metrics.nodes.clone());
        registry.register("launches", "Launches that have not ended, by state", metrics.launches.clone());
        registry.register("launches_ended", "Launches that have ended, by outcome", metrics.ended.clone());
        registry.register("nodes_lost", "Nodes that launches lost", metrics.lost_nodes.clone());
        registry.register("events", "Events that nodes reported", metrics.events.clone());
        registry.register(
            "fan_out_seconds",
            "From the first request to the last node's answer",
            metrics.fan_out.clone(),
        );
        *metrics.registry.lock() = registry;
        metrics
    }
}

/// Measures one fan-out.
pub(crate) struct FanOutTimer {
    histogram: Histogram,
    begun: Instant,
}

impl FanOutTimer {
    /// It is done.
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

    pub(crate) fn count_lost_node(&self) {
        self.lost_nodes.inc();
    }

    pub(crate) fn count_ended(&self, success: bool) {
        let outcome = if success { "succeeded" } else { "failed" };
        self.ended.get_or_create(&[("outcome", outcome)]).inc();
    }

    /// All metrics as Prometheus reads them.
    fn text(&self, census: Census) -> String {
        let set = |family: &Family<Labels, Gauge>, state, count: usize| {
            family.get_or_create(&[("state", state)]).set(count as i64);
        };
        set(&self.nodes, "up", census.nodes_up);
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

/// Where metrics are served.
pub(crate) async fn bind(address: SocketAddr) -> std::io::Result<TcpListener> {
    TcpListener::bind(address).await
}

/// Answers whoever asks, for ever.
pub(crate) async fn serve(listener: TcpListener, metrics: Arc<Metrics>, census: impl Fn() -> Census) {
    let places = Arc::new(Semaphore::new(REQUESTS_MAX));
    loop {
        let Ok(place) = Arc::clone(&places).acquire_owned().await else { return };
        match listener.accept().await {
            Ok((stream, _)) => {
                let text = metrics.text(census());
                tokio::spawn(async move {
                    // A peer that is slow or gone is not answered.
                    let _ = timeout(PATIENCE, answer(stream, text)).await;
                    drop(place);
                });
            }
            Err(error) => {
                tracing::warn!(%error, "cannot accept a request for metrics; trying on");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

/// Reads one request up to its empty line, and answers it.
async fn answer(mut stream: TcpStream, text: String) -> std::io::Result<()> {
    let mut request = Vec::new();
    while !request.windows(4).any(|end| end == b"\r\n\r\n") && request.len() < REQUEST_MAX {
        if stream.read_buf(&mut request).await? == 0 {
            return Ok(());
        }
    }
    let (status, body) = match request.starts_with(b"GET /metrics ") {
        true => ("200 OK", text),
        false => ("404 Not Found", "metrics are at /metrics\n".to_owned()),
    };
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    let length = body.len();
    let head =
        format!("HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n");
    stream.write_all(head.as_bytes()).await?;
    stream.write_all(body.as_bytes()).await?;
    stream.shutdown().await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn metrics_are_told_to_whoever_asks() {
        let metrics = Arc::new(Metrics::default());
        metrics.count_ended(true);
        let listener = bind("127.0.0.1:0".parse().unwrap()).await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(serve(listener, metrics, || Census { nodes_up: 3, ..Default::default() }));
        for (path, expected) in [("/metrics", "lattice_api_nodes{state=\"up\"} 3"), ("/", "404 Not Found")] {
            let mut stream = TcpStream::connect(address).await.unwrap();
            stream.write_all(format!("GET {path} HTTP/1.1\r\n\r\n").as_bytes()).await.unwrap();
            let mut answer = String::new();
            stream.read_to_string(&mut answer).await.unwrap();
            assert!(answer.contains(expected), "{answer}");
        }
    }
}
