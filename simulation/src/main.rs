//! Runs seeds: `cargo run --release -p lattice-simulation -- --seeds 0..1000000`.

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use clap::Parser;
use lattice_simulation::{Lines, Plan};

/// Runs a simulated cluster for each seed, and shows which ones break an invariant.
#[derive(Debug, Parser)]
struct Args {
    /// Seeds to run, as FIRST..LAST; the last one is left out.
    #[arg(long, value_parser = range, conflicts_with = "seed")]
    seeds: Option<Range<u64>>,
    /// Run one seed, and print everything that happens.
    #[arg(long)]
    seed: Option<u64>,
    /// With --seed: leave out all faults but these.
    #[arg(long, value_delimiter = ',', requires = "seed")]
    only: Option<Vec<usize>>,
    /// Leave out input, PMIx and spawned jobs.
    #[arg(long)]
    plain: bool,
    /// Threads.
    #[arg(long, default_value_t = 1)]
    threads: u64,
}

fn range(text: &str) -> Result<Range<u64>, String> {
    let (first, last) = text.split_once("..").ok_or("two numbers with .. between them are wanted")?;
    let number = |text: &str| text.parse::<u64>().map_err(|error| error.to_string());
    Ok(number(first)?..number(last)?)
}

fn main() -> ExitCode {
    let args = Args::parse();
    let plan_of = if args.plain { Plan::plain } else { Plan::of };
    match args.seed {
        Some(seed) => one(&plan_of(seed), args.only.as_deref()),
        None => many(args.seeds.clone().unwrap_or(0..2000), args.threads, plan_of),
    }
}

fn one(plan: &Plan, only: Option<&[usize]>) -> ExitCode {
    let plan = only.map_or(plan.clone(), |only| plan.with_only(only));
    let outcome = plan.run(Lines::Kept);
    println!("{}", plan.describe());
    outcome.lines.iter().for_each(|line| println!("{line}"));
    println!("digest {:016x}", outcome.digest);
    outcome.violations.iter().for_each(|violation| println!("VIOLATION {violation}"));
    if outcome.violations.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn many(seeds: Range<u64>, threads: u64, plan_of: fn(u64) -> Plan) -> ExitCode {
    let (begun, next) = (Instant::now(), AtomicU64::new(seeds.start));
    let (failed, events) = (AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= seeds.end {
                        return;
                    }
                    let plan = plan_of(seed);
                    // A panic is a fault of this seed, and the others run on.
                    let Ok(outcome) = catch_unwind(AssertUnwindSafe(|| plan.run(Lines::Dropped))) else {
                        failed.fetch_add(1, Ordering::Relaxed);
                        println!("seed {seed}: panic");
                        continue;
                    };
                    events.fetch_add(outcome.events, Ordering::Relaxed);
                    if outcome.violations.is_empty() {
                        continue;
                    }
                    failed.fetch_add(1, Ordering::Relaxed);
                    let shrunk = plan.shrink();
                    let only: Vec<String> = shrunk.kept().iter().map(ToString::to_string).collect();
                    println!("seed {seed}, --only {}: {}", only.join(","), outcome.violations.join("; "));
                }
            });
        }
    });
    let (failed, events) = (failed.into_inner(), events.into_inner());
    let count = seeds.end - seeds.start;
    println!("{count} seeds, {failed} failed, {events} events, {:.1} s", begun.elapsed().as_secs_f64());
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
