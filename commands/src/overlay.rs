//! `lattice set ping` and `lattice set call`: calls to a process of a set. The command is a set of its own while it runs.

use std::os::unix::ffi::OsStrExt;
use std::time::{Duration, Instant};

use bytes::Bytes;
use lattice_console::{exit, print, print_json};
use lattice_overlay::error::CallError;
use lattice_overlay::method::{self, Method};
use serde::Serialize;

use super::error::CommandError;
use super::own_sets::as_set;
use crate::args::{CallArgs, PingArgs};

/// Payload of a ping, which the answer repeats.
const PING: &[u8] = b"are you there?";

/// Result of a ping in the JSON output.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(super) struct Pinged {
    /// Address of the process.
    address: String,
    sent: u32,
    received: u32,
    /// Round-trip times of the answered calls.
    round_trip_s: Vec<f64>,
    /// Reason of the last failure.
    error: Option<String>,
}

/// Pings a process. Returns the exit code, which is not 0 if an answer is missing.
pub(super) fn ping(args: &PingArgs) -> Result<u8, CommandError> {
    let PingArgs { to, count, timeout, json, api } = args.clone();
    let pinged = as_set("lattice set ping", &api, async |sets| {
        // Outside of the measured times.
        let way = sets.way_to(to.set()).await?;
        let (mut round_trip_s, mut error) = (Vec::new(), None);
        for number in 1..=count {
            let begun = Instant::now();
            match way.call(to, Method::PING, Bytes::from_static(PING), timeout).await {
                Ok(_) => {
                    let took = begun.elapsed();
                    round_trip_s.push(took.as_secs_f64());
                    if !json {
                        print(format!("{to}: answer {number} after {}\n", milliseconds(took)).as_bytes())?;
                    }
                }
                Err(failure) => error = Some(failure),
            }
        }
        let (address, received) = (to.to_string(), round_trip_s.len() as u32);
        Ok(Pinged { address, sent: count, received, round_trip_s, error: error.map(reason) })
    })?;
    let code = if pinged.received == count { 0 } else { exit::PROBE_FAILED };
    if json {
        print_json(&pinged)?;
    } else {
        print(summary(&pinged).as_bytes())?;
    }
    Ok(code)
}

fn summary(pinged: &Pinged) -> String {
    let Pinged { address, sent, received, round_trip_s, error } = pinged;
    let mut text = format!("{address}: {received} of {sent} calls were answered");
    if let (Some(least), Some(most)) =
        (round_trip_s.iter().copied().reduce(f64::min), round_trip_s.iter().copied().reduce(f64::max))
    {
        let mean = round_trip_s.iter().sum::<f64>() / round_trip_s.len() as f64;
        let [least, mean, most] = [least, mean, most].map(|seconds| milliseconds(Duration::from_secs_f64(seconds)));
        text += &format!("; shortest {least}, mean {mean}, longest {most}");
    }
    if let Some(error) = error {
        text += &format!("\n{address}: {error}");
    }
    text + "\n"
}

fn milliseconds(time: Duration) -> String {
    format!("{:.3} ms", time.as_secs_f64() * 1e3)
}

fn reason(error: CallError) -> String {
    error.to_string()
}

/// Calls a method and prints the answer as it is; returns the exit code.
pub(super) fn call(args: &CallArgs) -> Result<u8, CommandError> {
    let CallArgs { to, method, body, timeout, api } = args;
    let body = body_of(*method, body.as_bytes()).map_err(|error| CommandError::Call { to: *to, error })?;
    let answer = as_set("lattice set call", api, async |sets| sets.call(*to, *method, body, *timeout).await)?;
    let mut line = answer.to_vec();
    line.push(b'\n');
    Ok(print(&line)?)
}

/// Body of a call. For a method that takes a name, the first word is the name.
fn body_of(method: Method, words: &[u8]) -> Result<Bytes, CallError> {
    if !method.is_named() {
        return Ok(Bytes::copy_from_slice(words));
    }
    let mut parts = words.splitn(2, |byte| *byte == b' ');
    let (name, rest) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
    let why = || "this method is called with a name of 1 to 255 bytes, and what follows after a blank".to_owned();
    method::named(name, rest).ok_or_else(|| CallError::Refused { why: why() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ping_is_summed_up_in_a_line() {
        let pinged = |round_trip_s: &[f64], error: Option<&str>| Pinged {
            address: "lattice://1/2".to_owned(),
            sent: 2,
            received: round_trip_s.len() as u32,
            round_trip_s: round_trip_s.to_vec(),
            error: error.map(str::to_owned),
        };
        assert_eq!(
            summary(&pinged(&[100e-6, 300e-6], None)),
            "lattice://1/2: 2 of 2 calls were answered; shortest 0.100 ms, mean 0.200 ms, longest 0.300 ms\n"
        );
        assert_eq!(
            summary(&pinged(&[], Some("the set has no such process"))),
            "lattice://1/2: 0 of 2 calls were answered\nlattice://1/2: the set has no such process\n"
        );
    }

    #[test]
    fn a_name_is_the_first_word_where_a_method_takes_one() {
        for (method, words, body) in [
            (Method(300), &b"some words"[..], Some(&b"some words"[..])),
            (Method::LOOKUP, b"bay", Some(b"bay")),
            (Method::PUBLISH, b"bay a port", Some(b"\x03baya port")),
            (Method::CONNECT, b"bay", Some(b"\x03bay")),
            (Method::CONNECT, b"", None),
        ] {
            assert_eq!(body_of(method, words).ok().as_deref(), body, "{method:?}");
        }
    }
}
