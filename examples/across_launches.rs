//! Programs of different launches call each other, and a program in a plain shell calls them too:
//!
//! ```text
//! lattice launch -n 2 across_launches serve &        # prints its addresses
//! across_launches call lattice://SET/RANK 21         # 42
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

fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match &words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["serve"] => serve(),
        ["call", to, number] => ask(to.parse()?, number),
        _ => Err("usage: across_launches serve | call UID NUMBER".into()),
    }
}

/// Calls a method as a guest of the method's set, and prints the answer.
fn ask(to: Uid, number: &str) -> Result<(), Box<dyn Error>> {
    let answer = Participant::guest_of(to.set())?.call(to, DOUBLE, number.as_bytes(), Duration::from_secs(30))?;
    println!("{}", String::from_utf8_lossy(&answer));
    Ok(())
}

/// Serves as a rank of a launch until a call ends it.
fn serve() -> Result<(), Box<dyn Error>> {
    let participant = Participant::of_launch()?;
    participant.serve(DOUBLE, |_, _, body| {
        let number = std::str::from_utf8(body).ok().and_then(|text| text.parse::<u64>().ok());
        let number = number.ok_or_else(|| Fault("no number came".to_owned()))?;
        Ok((number * 2).to_string().into())
    });
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
