//! The part of HTTP/1.1 that the client of this crate uses: requests and answers with a length, one after the other.

use std::collections::BTreeMap;
use std::io::{self, BufRead, BufReader, Read, Write};

use super::Shared;

/// Limits on the length of a request's head and body, in bytes.
const LONGEST_HEAD: u64 = 16 << 10;
const LONGEST_BODY: usize = 1 << 20;

/// Complete request.
pub(super) struct Request {
    pub(super) method: String,
    pub(super) path: String,
    /// Values by lower-case name.
    pub(super) headers: BTreeMap<String, String>,
    pub(super) body: Vec<u8>,
}

/// Answer to a request; without one the connection is closed.
pub(super) struct Response {
    pub(super) status: u16,
    pub(super) content_type: &'static str,
    pub(super) retry_after: Option<String>,
    pub(super) date: Option<String>,
    pub(super) body: String,
}

/// Answers requests until the client disconnects or sends invalid data.
pub(super) fn serve(stream: impl Read + Write, shared: &Shared) {
    let mut stream = BufReader::new(stream);
    while let Ok(request) = read(&mut stream) {
        let (response, pause) = shared.state.lock().answer(&request);
        std::thread::sleep(shared.delay + pause);
        let Some(response) = response else { return };
        if stream.get_mut().write_all(&response.bytes()).and_then(|()| stream.get_mut().flush()).is_err() {
            return;
        }
    }
}

fn read(stream: &mut impl BufRead) -> io::Result<Request> {
    let bad = || io::Error::from(io::ErrorKind::InvalidData);
    let mut head = stream.take(LONGEST_HEAD);
    let mut line = |text: &mut String| -> io::Result<bool> {
        text.clear();
        head.read_line(text)?;
        if !text.ends_with("\r\n") {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        text.truncate(text.len() - 2);
        Ok(!text.is_empty())
    };
    let mut text = String::new();
    line(&mut text)?;
    let mut words = text.split(' ');
    let (method, path) = (words.next().ok_or_else(bad)?.to_owned(), words.next().ok_or_else(bad)?.to_owned());
    let mut headers = BTreeMap::new();
    while line(&mut text)? {
        let (name, value) = text.split_once(':').ok_or_else(bad)?;
        headers.insert(name.to_ascii_lowercase(), value.trim().to_owned());
    }
    let length = headers.get("content-length").map_or(Ok(0), |length| length.parse()).map_err(|_| bad())?;
    if length > LONGEST_BODY {
        return Err(bad());
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body)?;
    Ok(Request { method, path, headers, body })
}

impl Response {
    fn bytes(&self) -> Vec<u8> {
        let Self { status, content_type, body, .. } = self;
        let line = |name, value: &Option<String>| {
            value.as_ref().map(|value| format!("{name}: {value}\r\n")).unwrap_or_default()
        };
        let times = line("retry-after", &self.retry_after) + &line("date", &self.date);
        let length = body.len();
        format!("HTTP/1.1 {status} .\r\ncontent-type: {content_type}\r\n{times}content-length: {length}\r\n\r\n{body}")
            .into_bytes()
    }
}
