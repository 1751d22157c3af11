//! A name server for tests: `dns-stand-in ADDRESS FILE` answers queries for IPv4 addresses from a file in the format of /etc/hosts. It
//! reads the file for each query. Like the name server of Kubernetes, it only resolves complete names.

use std::net::{Ipv4Addr, UdpSocket};
use std::{env, fs};

/// Length of the header, and the type and class of answered queries, which follow the name.
const HEADER: usize = 12;
const TYPE_A: [u8; 2] = [0, 1];
const NO_SUCH_NAME: u8 = 3;

fn main() {
    let arguments: Vec<String> = env::args().collect();
    let [_, address, file] = &arguments[..] else { panic!("dns-stand-in ADDRESS FILE") };
    let socket = UdpSocket::bind((address.as_str(), 53)).expect("the port of name servers is free");
    let mut question = [0; 512];
    loop {
        let (length, peer) = socket.recv_from(&mut question).expect("questions can be received");
        let hosts = fs::read_to_string(file).unwrap_or_default();
        if let Some(answer) = answer(&question[..length], &hosts) {
            // The client may have closed its socket.
            let _ = socket.send_to(&answer, peer);
        }
    }
}

/// Returns the answer to a message with one question; `None` for any other message.
fn answer(message: &[u8], hosts: &str) -> Option<Vec<u8>> {
    let (name, end) = name(message)?;
    let kind = message.get(end..end + 2)?;
    let question = message.get(HEADER..end + 4)?;
    let known = hosts.lines().find_map(|line| {
        let mut words = line.split_whitespace();
        let address: Ipv4Addr = words.next()?.parse().ok()?;
        words.any(|word| word.eq_ignore_ascii_case(&name)).then_some(address)
    });
    let (address, code) = match known {
        None => (None, NO_SUCH_NAME),
        Some(address) => (Some(address).filter(|_| kind == TYPE_A), 0),
    };
    let mut answer = message[..2].to_vec();
    // An authoritative answer, with recursion requested and available.
    answer.extend([0x85, 0x80 | code, 0, 1, 0, u8::from(address.is_some()), 0, 0, 0, 0]);
    answer.extend(question);
    if let Some(address) = address {
        // The name of the question, IPv4, Internet, a time to live of zero, four bytes.
        answer.extend([0xc0, HEADER as u8, 0, 1, 0, 1, 0, 0, 0, 0, 0, 4]);
        answer.extend(address.octets());
    }
    Some(answer)
}

/// Returns the queried name, and the position after it.
fn name(message: &[u8]) -> Option<(String, usize)> {
    let (mut labels, mut at) = (Vec::new(), HEADER);
    loop {
        let length = usize::from(*message.get(at)?);
        let label = message.get(at + 1..at + 1 + length)?;
        at += 1 + length;
        if length == 0 {
            return Some((labels.join("."), at));
        }
        labels.push(str::from_utf8(label).ok()?);
    }
}
