//! Rank of a job that exchanges its data over PMIx. In a round it puts a value, commits, fences, gets the values of the next ranks, and fences
//! without data. Arguments: rounds, bytes, then numbers of peers. For each number of peers rank 0 prints the median time of a round, in
//! microseconds.
#![forbid(unsafe_code)]

use std::error::Error;
use std::time::Instant;

use lattice_benches::sample::median;
use pmi_client::pmix::{Collect, PmixClient, Value};

const KEY: &str = "card";

fn main() -> Result<(), Box<dyn Error>> {
    let numbers = std::env::args().skip(1).map(|word| word.parse());
    let numbers: Vec<u32> = numbers.collect::<Result<_, _>>()?;
    let [rounds, bytes, peers @ ..] = &numbers[..] else {
        return Err("usage: pmix_wiring ROUNDS BYTES PEERS...".into());
    };
    let bytes = *bytes as usize;
    let mut client = PmixClient::from_env()?;
    for &peers in peers {
        // The first round is not measured, because the server creates some resources at their first use.
        wire(&mut client, bytes, peers)?;
        let times = (0..*rounds).map(|_| wire(&mut client, bytes, peers)).collect::<Result<Vec<f64>, _>>()?;
        if client.rank() == 0 {
            println!("{peers} {:.1}", median(&times));
        }
    }
    Ok(client.finalize()?)
}

/// Exchanges data between this rank and the next `peers` ranks. Returns the time in microseconds from the put until all ranks have finished.
fn wire(client: &mut PmixClient, bytes: usize, peers: u32) -> Result<f64, Box<dyn Error>> {
    client.fence(Collect::Nothing)?;
    let begun = Instant::now();
    client.put(KEY, Value::Bytes(vec![client.rank() as u8; bytes]));
    client.commit()?;
    client.fence(Collect::Data)?;
    for next in 1..=peers {
        let peer = (client.rank() + next) % client.size();
        let value = client.get(peer, KEY)?.ok_or("a peer has put nothing")?;
        if value != Value::Bytes(vec![peer as u8; bytes]) {
            return Err(format!("rank {peer} has put {value}").into());
        }
    }
    client.fence(Collect::Nothing)?;
    Ok(begun.elapsed().as_secs_f64() * 1e6)
}
