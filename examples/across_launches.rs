//! Programs of different launches call each other, and so does one that a plain shell starts:
//!
//! ```text
//! lattice launch -n 2 across_launches serve &        # prints its addresses
//! lattice launch -n 2 across_launches serve &
//! across_launches call lattice://SET/RANK 21         # 42
//! across_launches bounce lattice://SET/0 lattice://OTHER/1 100
//! ```
#![forbid(unsafe_code)]

use std::cell::Cell;
use std::error::Error;
use std::rc::Rc;
use std::time::Duration;

use lattice_overlay::address::Uid;
use lattice_overlay::error::Fault;
use lattice_overlay::method::Method;
use lattice_overlay::participant::Participant;

const DOUBLE: Method = Method(300);
const END: Method = Method(302);
const BOUNCE: Method = Method(303);
const TIMEOUT: Duration = Duration::from_secs(30);

fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match &words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["serve"] => serve(),
        ["call", to, number] => ask(to, DOUBLE, number),
        ["bounce", first, second, hops] => ask(first, BOUNCE, &format!("{first} {second} {hops}")),
        _ => Err("usage: across_launches serve | call UID NUMBER | bounce UID UID HOPS".into()),
    }
}

/// Calls a method as a guest of the set that it calls, and prints the answer.
fn ask(to: &str, method: Method, body: &str) -> Result<(), Box<dyn Error>> {
    let to: Uid = to.parse()?;
    let answer = Participant::guest_of(to.set())?.call(to, method, body.as_bytes(), TIMEOUT)?;
    println!("{}", String::from_utf8_lossy(&answer));
    Ok(())
}

/// Serves as a rank of a launch until it is told to end.
fn serve() -> Result<(), Box<dyn Error>> {
    let participant = Participant::of_launch()?;
    participant.serve(DOUBLE, |_, _, body| Ok((number(body)? * 2).to_string().into()));
    participant.serve(BOUNCE, bounce);
    let is_over = Rc::new(Cell::new(false));
    participant.serve(END, {
        let is_over = Rc::clone(&is_over);
        move |_, _, _| Ok(if is_over.replace(true) { "again" } else { "the end" }.into())
    });
    println!("{} serves", participant.me());
    while !is_over.get() {
        participant.progress(None)?;
    }
    Ok(())
}

/// Hands on to the other of two addresses what is left of the hops, and tells how many there were.
fn bounce(participant: &Participant, _: Uid, body: &[u8]) -> Result<bytes::Bytes, Fault> {
    let text = String::from_utf8_lossy(body);
    let words: Vec<&str> = text.split(' ').collect();
    let [me, other, hops] = words[..] else { return Err(Fault("two addresses and a number are wanted".to_owned())) };
    let (to, hops) = (other.parse::<Uid>().map_err(|error| Fault(error.to_string()))?, number(hops.as_bytes())?);
    if hops == 0 {
        return Ok("0 hops".into());
    }
    let further = format!("{other} {me} {}", hops - 1);
    let answer = participant.call(to, BOUNCE, further.as_bytes(), TIMEOUT).map_err(|error| Fault(error.to_string()))?;
    Ok(format!("{} hops", number(answer.strip_suffix(b" hops").unwrap_or(&answer))? + 1).into())
}

fn number(text: &[u8]) -> Result<u64, Fault> {
    let number = std::str::from_utf8(text).ok().and_then(|text| text.parse().ok());
    number.ok_or_else(|| Fault("no number came".to_owned()))
}
