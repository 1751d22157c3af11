//! A very small HTTP server that shows Prometheus what a daemon counts. What is counted is the daemon's own business.
//!
//! Whoever can connect may ask. However many do, and however slowly, the daemon is not held up: only so many are answered at
//! once, each for a few seconds at most.

use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};

/// The most requests at once; more have to wait.
const REQUESTS_MAX: usize = 16;
/// The longest request that is read, in bytes.
const REQUEST_MAX: usize = 8 << 10;
/// How long a request may take, reading and answering.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long to wait when no connection can be accepted: out of descriptors, for one; it passes.
const PAUSE: Duration = Duration::from_millis(100);

/// Answers `GET /metrics` with `text`, in the format of OpenMetrics 1.0, which is asked for whenever somebody asks. Never ends.
pub async fn serve(listener: TcpListener, text: impl Fn() -> String + Send + Sync + 'static) {
    let (places, text) = (Arc::new(Semaphore::new(REQUESTS_MAX)), Arc::new(text));
    loop {
        let Ok(place) = Arc::clone(&places).acquire_owned().await else { return };
        match listener.accept().await {
            Ok((stream, _)) => {
                let text = Arc::clone(&text);
                tokio::spawn(async move {
                    // A peer that is slow or gone is not answered.
                    let _ = timeout(PATIENCE, answer(stream, &*text)).await;
                    drop(place);
                });
            }
            Err(error) => {
                tracing::warn!(%error, "cannot accept a request for metrics; trying on");
                sleep(PAUSE).await;
            }
        }
    }
}

/// Reads one request up to its empty line, and answers it.
async fn answer(mut stream: TcpStream, text: impl Fn() -> String) -> std::io::Result<()> {
    let mut request = Vec::new();
    while !request.windows(4).any(|end| end == b"\r\n\r\n") && request.len() < REQUEST_MAX {
        if stream.read_buf(&mut request).await? == 0 {
            return Ok(());
        }
    }
    let (status, body) = match request.starts_with(b"GET /metrics ") {
        true => ("200 OK", text()),
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
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(serve(listener, || "nodes 3\n".to_owned()));
        for (path, expected) in [("/metrics", "200 OK"), ("/metrics", "\r\n\r\nnodes 3\n"), ("/", "404 Not Found")] {
            let mut stream = TcpStream::connect(address).await.unwrap();
            stream.write_all(format!("GET {path} HTTP/1.1\r\n\r\n").as_bytes()).await.unwrap();
            let mut answer = String::new();
            stream.read_to_string(&mut answer).await.unwrap();
            assert!(answer.contains(expected), "{answer}");
        }
    }
}
