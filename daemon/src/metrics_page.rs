//! HTTP server of a daemon's metrics, for Prometheus. The daemon supplies the metrics; hyper implements HTTP.
//!
//! Every client that can connect is answered. A bounded number of connections is served at once, each for a few seconds at most, and the oldest
//! is closed for a new one. So neither many clients nor slow clients delay the daemon, or each other.

use pmi_transport::task;
use std::collections::VecDeque;
use std::convert::Infallible;
use std::future::ready;
use std::sync::Arc;
use std::time::Duration;

use hyper::body::Incoming;
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::AbortHandle;
use tokio::time::{sleep, timeout};

/// Maximum number of connections that are served at once.
const CONNECTIONS_MAX: usize = 64;
/// Maximum length of a request's head, in bytes.
const REQUEST_MAX: usize = 8 << 10;
/// Time limit of a connection, from its start to the end of the answer.
const TIME_LIMIT: Duration = Duration::from_secs(5);
/// Pause after a connection could not be accepted, for example during a shortage of descriptors.
const PAUSE: Duration = Duration::from_millis(100);
/// Media type of the answers: OpenMetrics 1.0, whatever the request accepts.
const OPEN_METRICS: HeaderValue =
    HeaderValue::from_static("application/openmetrics-text; version=1.0.0; charset=utf-8");

/// Serves `GET /metrics` with `text`, which is called for each request. Never returns.
pub async fn serve(listener: TcpListener, text: impl Fn() -> String + Send + Sync + 'static) {
    let (mut served, text) = (VecDeque::<AbortHandle>::new(), Arc::new(text));
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                served.retain(|connection| !connection.is_finished());
                if served.len() >= CONNECTIONS_MAX
                    && let Some(oldest) = served.pop_front()
                {
                    oldest.abort();
                }
                let text = Arc::clone(&text);
                let answering = task::spawn(async move {
                    // A peer that is slow or gone is not answered.
                    let _ = timeout(TIME_LIMIT, answer(stream, &*text)).await;
                });
                served.push_back(answering.abort_handle());
            }
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection for metrics; it is tried again");
                sleep(PAUSE).await;
            }
        }
    }
}

/// Serves one request, and closes the connection.
async fn answer(stream: TcpStream, text: impl Fn() -> String) -> hyper::Result<()> {
    let service = service_fn(|request| ready(Ok::<_, Infallible>(page(&request, &text))));
    let mut server = http1::Builder::new();
    server.keep_alive(false).max_buf_size(REQUEST_MAX);
    server.serve_connection(TokioIo::new(stream), service).await
}

fn page(request: &Request<Incoming>, text: impl Fn() -> String) -> Response<String> {
    // For HEAD, hyper sends only the header.
    if [Method::GET, Method::HEAD].contains(request.method()) && request.uri().path() == "/metrics" {
        let mut page = Response::new(text());
        page.headers_mut().insert(CONTENT_TYPE, OPEN_METRICS);
        return page;
    }
    let mut page = Response::new("metrics are at /metrics\n".to_owned());
    *page.status_mut() = StatusCode::NOT_FOUND;
    page
}

#[cfg(test)]
mod tests {
    use std::io::ErrorKind;
    use std::sync::atomic::{AtomicU32, Ordering};

    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    async fn ask(request: &str) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(serve(listener, || "nodes 3\n".to_owned()));
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        // A peer that is refused during its request may receive a connection reset.
        let _ = stream.read_to_string(&mut answer).await;
        answer
    }

    #[tokio::test]
    async fn metrics_are_told_to_whoever_asks() {
        for (path, expected) in [
            ("/metrics", "200 OK"),
            ("/metrics", "content-type: application/openmetrics-text; version=1.0.0; charset=utf-8\r\n"),
            ("/metrics", "\r\n\r\nnodes 3\n"),
            ("/metrics?name=x", "200 OK"),
            ("/", "404 Not Found"),
        ] {
            let answer = ask(&format!("GET {path} HTTP/1.1\r\n\r\n")).await;
            assert!(answer.contains(expected), "{answer}");
        }
    }

    #[tokio::test]
    async fn a_balancer_that_asks_for_the_header_alone_gets_that() {
        let answer = ask("HEAD /metrics HTTP/1.1\r\n\r\n").await;
        assert!(answer.contains("200 OK") && answer.ends_with("\r\n\r\n"), "{answer}");
    }

    #[tokio::test]
    async fn what_is_no_request_for_metrics_is_refused() {
        for (request, expected) in [
            ("POST /metrics HTTP/1.1\r\nContent-Length: 0\r\n\r\n".to_owned(), "404 Not Found"),
            ("HEAD / HTTP/1.1\r\n\r\n".to_owned(), "404 Not Found"),
            ("nonsense\r\n\r\n".to_owned(), "400 Bad Request"),
            (format!("GET /metrics HTTP/1.1\r\nX: {}\r\n\r\n", "x".repeat(2 * REQUEST_MAX)), "431 "),
        ] {
            let answer = ask(&request).await;
            assert!(answer.contains(expected), "{answer}");
        }
    }

    #[tokio::test]
    async fn each_request_sees_the_metrics_of_its_moment() {
        let (count, listener) = (AtomicU32::new(0), TcpListener::bind("127.0.0.1:0").await.unwrap());
        let address = listener.local_addr().unwrap();
        tokio::spawn(serve(listener, move || format!("asked {}\n", count.fetch_add(1, Ordering::Relaxed))));
        for number in 0..3 {
            let mut stream = TcpStream::connect(address).await.unwrap();
            stream.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").await.unwrap();
            let mut answer = String::new();
            stream.read_to_string(&mut answer).await.unwrap();
            assert!(answer.ends_with(&format!("\r\n\r\nasked {number}\n")), "{answer}");
        }
    }

    #[tokio::test]
    async fn clients_that_say_nothing_give_way_to_others() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(serve(listener, || "nodes 3\n".to_owned()));
        let mut silent = Vec::new();
        for _ in 0..CONNECTIONS_MAX {
            silent.push(TcpStream::connect(address).await.unwrap());
        }
        let mut last = TcpStream::connect(address).await.unwrap();
        last.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").await.unwrap();
        let mut answer = String::new();
        last.read_to_string(&mut answer).await.unwrap();
        assert!(answer.ends_with("nodes 3\n"), "{answer}");
        assert_eq!(silent[0].read(&mut [0]).await.unwrap(), 0, "the oldest was closed");
        let youngest = silent[CONNECTIONS_MAX - 1].try_read(&mut [0]);
        assert!(youngest.is_err_and(|error| error.kind() == ErrorKind::WouldBlock), "and no more than that");
    }
}
