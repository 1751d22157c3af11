//! Seeds for every run of the tests. `SIMULATION_SEEDS=100000` runs more seeds.

use std::sync::atomic::{AtomicU64, Ordering};

use lattice_simulation::{Lines, Plan};

/// Seeds that once violated an invariant in launches without input, PMIx and spawned jobs.
const ONCE_BROKEN: [u64; 61] = [
    25, 73, 173, 186, 279, 365, 514, 1005, 1022, 1276, 2202, 2856, 8878, 9203, 9695, 16_123, 23_225, 31_204, 31_589,
    33_027, 33_265, 34_462, 34_520, 34_699, 37_697, 37_705, 39_377, 39_564, 39_694, 45_016, 56_963, 78_055, 86_959,
    86_965, 226_233, 271_034, 192_605, 134_443, 258_215, 549_138, 885_365, 803_848, 136_451, 551_336, 745_858,
    7_005_906, 7_014_910, 7_048_851, 7_050_908, 7_071_520, 8_076_868, 8_092_176, 8_115_607, 8_231_833, 8_233_634,
    8_313_701, 8_323_276, 8_370_386, 8_553_042, 8_554_980, 8_967_240,
];

/// Seeds that once violated an invariant in complete launches.
const ONCE_BROKEN_WHOLE: [u64; 17] = [
    2103,
    50_008_301,
    50_008_351,
    50_008_473,
    50_008_646,
    50_009_402,
    50_009_991,
    62_432_325,
    65_626_786,
    67_011_308,
    67_122_384,
    67_470_505,
    67_704_268,
    530_731_069,
    900_472_954,
    598_533_858_551_298_321,
    1_068_511_095_935_030_379,
];

#[test]
fn no_seed_breaks_an_invariant() {
    let seeds = std::env::var("SIMULATION_SEEDS");
    let seeds = seeds.map_or(2000, |seeds| seeds.parse().expect("SIMULATION_SEEDS is a number"));
    let next = AtomicU64::new(0);
    let run = || {
        let mut broken = Vec::new();
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= seeds {
                return broken;
            }
            broken.extend(violations_of(seed));
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let broken: Vec<String> = std::thread::scope(|scope| {
        let running: Vec<_> = (0..threads).map(|_| scope.spawn(run)).collect();
        running.into_iter().flat_map(|thread| thread.join().expect("a machine has panicked")).collect()
    });
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

#[test]
fn seeds_that_broke_an_invariant_once_do_not_any_more() {
    let broken: Vec<String> = ONCE_BROKEN
        .into_iter()
        .map(|seed| (seed, Plan::plain(seed)))
        .chain(ONCE_BROKEN_WHOLE.into_iter().map(|seed| (seed, Plan::of(seed))))
        .filter_map(|(seed, plan)| violations(seed, &plan))
        .collect();
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

#[test]
fn a_seed_replays_byte_for_byte() {
    for seed in 0..100 {
        let plan = Plan::of(seed);
        let (one, other) = (plan.run(Lines::Kept), plan.run(Lines::Dropped));
        assert_eq!((one.digest, one.events), (other.digest, other.events), "seed {seed}");
        assert_eq!(one.lines.len() as u64, one.events);
    }
}

#[test]
fn seeds_differ() {
    let digests: std::collections::BTreeSet<u64> =
        (0..50).map(|seed| Plan::of(seed).run(Lines::Dropped).digest).collect();
    assert_eq!(digests.len(), 50);
}

/// Returns the violations of a seed, with the fewest faults that cause them.
fn violations_of(seed: u64) -> Option<String> {
    violations(seed, &Plan::of(seed))
}

fn violations(seed: u64, plan: &Plan) -> Option<String> {
    let violations = plan.run(Lines::Dropped).violations;
    (!violations.is_empty()).then(|| {
        let only: Vec<String> = plan.shrink().kept().iter().map(ToString::to_string).collect();
        let again = format!("cargo run -p lattice-simulation -- --seed {seed} --only {}", only.join(","));
        format!("seed {seed}: {}\n    {again}", violations.join("; "))
    })
}
