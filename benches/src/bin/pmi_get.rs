//! A rank that measures the gets of `pmi-client`, under any launcher that serves PMI-1, and prints one line of figures.
//!
//! Usage: `pmi_get KEYS GETS`. Each rank puts KEYS values of 64 bytes. After a fence rank 0 alone performs GETS gets of all ranks'
//! keys, in a pseudo-random order. Then all ranks do the same at once. The line has `name=figure` words, with all times in nanoseconds:
//!
//! ```text
//! rank=0 shared=1 alone=212 together=230
//! ```
//! `shared` is 1 if the job has memory that the ranks share. `alone` (only of rank 0) and `together` are means of one get.

use std::env;
use std::error::Error;
use std::io::Write;
use std::time::Instant;

use pmi_client::{Client, Protocol};

type Outcome<T> = Result<T, Box<dyn Error>>;

const VALUE: [u8; 64] = [b'v'; 64];

fn main() -> Outcome<()> {
    let counts = env::args().skip(1).map(|word| word.parse()).collect::<Result<Vec<u32>, _>>()?;
    let [own_keys, gets] = counts[..] else { return Err("usage: pmi_get KEYS GETS".into()) };
    let mut client = Client::from_env(Protocol::Auto)?;
    let (rank, size) = (client.rank(), client.size());
    let key = |number: u32| format!("key-{}-{}", number % size, number / size);
    for number in 0..own_keys {
        client.put(&key(number * size + rank), VALUE)?;
    }
    // The keys are ready before the measurement, as in a program that needs certain keys.
    let keys: Vec<String> = (0..own_keys * size).map(key).collect();
    client.fence()?;
    let alone = if rank == 0 { mean_get(&mut client, &keys, gets)? } else { 0 };
    client.fence()?;
    let together = mean_get(&mut client, &keys, gets)?;
    client.fence()?;
    let shared = u8::from(client.has_shared_memory());
    client.finalize()?;
    let line = format!("rank={rank} shared={shared} alone={alone} together={together}\n");
    // A single write, so that lines of several ranks do not mix.
    Ok(std::io::stdout().write_all(line.as_bytes())?)
}

/// Mean time of a get, in nanoseconds.
fn mean_get(client: &mut Client, keys: &[String], gets: u32) -> Outcome<u128> {
    let mut at = 0;
    let start = Instant::now();
    for _ in 0..gets {
        // A step that has no divisor in common with any power of two or ten reaches every key.
        at = (at + 7919) % keys.len();
        if client.get(&keys[at])?.as_deref() != Some(&VALUE) {
            return Err(format!("{} has another value", keys[at]).into());
        }
    }
    Ok(start.elapsed().as_nanos() / u128::from(gets.max(1)))
}
