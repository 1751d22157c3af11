//! Ranks of two launches with methods that call each other back, a hundred deep:
//!
//! ```text
//! lattice launch -n 2 call_back &                    # prints its addresses
//! lattice launch -n 2 call_back &
//! lattice set call lattice://SET/0 303 'lattice://SET/0 lattice://OTHER/1 100'      # 100 hops
//! ```
//! A participant that waits for an answer serves the calls that arrive meanwhile, so none waits indefinitely.
#![forbid(unsafe_code)]

use std::error::Error;
use std::time::Duration;

use lattice_overlay::address::Uid;
use lattice_overlay::error::Fault;
use lattice_overlay::method::Method;
use lattice_overlay::participant::Participant;

const BOUNCE: Method = Method(303);
const SAIL: Method = Method(304);
/// Answers with the process id.
const PROCESS: Method = Method(305);

fn main() -> Result<(), Box<dyn Error>> {
    let participant = Participant::of_launch()?;
    participant.serve(BOUNCE, bounce);
    participant.accept(b"bay", |own, from, data| {
        Ok(format!("{from} sails to {} with {}", own.me(), String::from_utf8_lossy(data)).into())
    });
    participant.serve(SAIL, |own, _, to| {
        let to = String::from_utf8_lossy(to).parse::<Uid>().map_err(|error| Fault(error.to_string()))?;
        own.connect_to(to, b"bay", b"goods", Duration::from_secs(30)).map_err(|error| Fault(error.to_string()))
    });
    participant.serve(PROCESS, |_, _, _| Ok(std::process::id().to_string().into()));
    println!("{} serves", participant.me());
    loop {
        participant.progress(None)?;
    }
}

/// Forwards the remaining hops to the other of two addresses, and returns the number of hops.
fn bounce(participant: &Participant, _: Uid, body: &[u8]) -> Result<bytes::Bytes, Fault> {
    let text = String::from_utf8_lossy(body);
    let words: Vec<&str> = text.split(' ').collect();
    let [me, other, hops] = words[..] else { return Err(Fault("two addresses and a number are wanted".to_owned())) };
    let (to, hops) = (other.parse::<Uid>().map_err(|error| Fault(error.to_string()))?, number(hops)?);
    if hops == 0 {
        return Ok("0 hops".into());
    }
    let further = format!("{other} {me} {}", hops - 1);
    let answer = participant.call(to, BOUNCE, further.as_bytes(), Duration::from_secs(30));
    let answer = answer.map_err(|error| Fault(error.to_string()))?;
    Ok(format!("{} hops", number(String::from_utf8_lossy(&answer).trim_end_matches(" hops"))? + 1).into())
}

fn number(text: &str) -> Result<u64, Fault> {
    text.parse().map_err(|_| Fault("no number came".to_owned()))
}
