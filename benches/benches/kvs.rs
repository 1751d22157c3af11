//! How fast is the key-value space of one node, and how much memory does it use in addition to the bytes of the
//! pairs?
//!
//! Pairs have a key of 19 bytes and a value of 72 bytes, like business cards. As a test, the bench uses a hundredth
//! of the pairs.

use std::hint::black_box;

use criterion::{BatchSize, Criterion, Throughput, criterion_group};
use lattice_benches::machine;
use pmi_core::fence::Merged;
use pmi_core::kvs::{Kvs, Segment};

/// A job with one contribution per node, and one pair per rank.
struct Job {
    nodes: usize,
    ranks: usize,
}

impl Job {
    /// A thousand times a thousand pairs, or fewer if the bench only proves that it works.
    fn of_a_million() -> Self {
        let is_measured =
            std::env::args().any(|word| word == "--bench") && std::env::args().all(|word| word != "--test");
        let side = if is_measured { 1000 } else { 100 };
        Self { nodes: side, ranks: side }
    }

    fn pairs(&self) -> usize {
        self.nodes * self.ranks
    }

    fn key(&self, pair: usize) -> String {
        format!("bc-{:06}-{:09}", pair / self.ranks, pair % self.ranks * 7919)
    }

    fn segment(&self, pairs: std::ops::Range<usize>) -> Segment {
        pairs.map(|pair| (self.key(pair), format!("{pair:072}"))).collect()
    }

    fn merged(&self) -> Merged {
        let node = |node| self.segment(node * self.ranks..(node + 1) * self.ranks);
        (0..self.nodes).map(node).collect::<Vec<_>>().into()
    }

    fn kvs(&self) -> Kvs {
        let mut kvs = Kvs::new();
        kvs.commit(self.merged());
        kvs
    }

    /// Returns keys that are far from each other, the same in every run. Depending on `prefix`, the keys exist or
    /// not.
    fn scattered_keys(&self, prefix: &str) -> Vec<String> {
        /// A prime larger than any job here, so that steps of this length reach every pair.
        const STEP: usize = 2_147_483_647;
        (0..self.pairs().min(1 << 16))
            .map(|index| format!("{prefix}{}", self.key(index * STEP % self.pairs())))
            .collect()
    }
}

fn put(c: &mut Criterion) {
    let keys = Job { nodes: 100, ranks: 100 }.scattered_keys("");
    let mut kvs = Kvs::new();
    let mut next = keys.iter().cycle();
    c.bench_function("kvs/put_1", |b| {
        b.iter(|| kvs.put(next.next().expect("a cycle has no end").as_bytes(), &[b'v'; 72]));
    });
}

fn get(c: &mut Criterion) {
    let job = Job::of_a_million();
    let kvs = job.kvs();
    for (name, prefix) in [("kvs/get_hit_1e6", ""), ("kvs/get_miss", "no-")] {
        let keys = job.scattered_keys(prefix);
        assert!(keys.iter().all(|key| kvs.get(key.as_bytes()).is_some() == prefix.is_empty()));
        let mut next = keys.iter().cycle();
        c.bench_function(name, |b| {
            b.iter(|| black_box(kvs.get(next.next().expect("a cycle has no end").as_bytes())));
        });
    }
}

fn merge(c: &mut Criterion) {
    let job = Job::of_a_million();
    let mut group = c.benchmark_group("kvs");
    group.sample_size(20).throughput(Throughput::Elements(job.pairs() as u64));
    let inputs = [("index_1e6", vec![job.segment(0..job.pairs())].into()), ("merge_1000x1000", job.merged())];
    for (name, merged) in inputs {
        let commit = |(mut kvs, merged): (Kvs, Merged)| {
            kvs.commit(merged);
            kvs
        };
        group.bench_function(name, |b| {
            b.iter_batched(|| (Kvs::new(), merged.clone()), commit, BatchSize::PerIteration);
        });
        group.bench_function(format!("{name}_again"), |b| {
            let mut kvs = commit((Kvs::new(), merged.clone()));
            b.iter_batched(|| merged.clone(), |merged| kvs.commit(merged), BatchSize::PerIteration);
        });
    }
    let bytes = job.segment(0..job.pairs()).into_bytes();
    group.bench_function("decode_1e6", |b| b.iter(|| Segment::decode(black_box(bytes.clone())).expect("well formed")));
    group.finish();
}

/// Prints the memory of a node for each byte that ranks put. This is not a time.
fn memory(_: &mut Criterion) {
    let job = Job::of_a_million();
    let mut kvs = job.kvs();
    let raw: usize =
        (0..kvs.len()).filter_map(|index| kvs.nth(index)).map(|(key, value)| key.len() + value.len()).sum();
    let ratio = |kvs: &Kvs| kvs.memory() as f64 / raw as f64;
    let first = ratio(&kvs);
    kvs.commit(job.merged());
    let again = ratio(&kvs);
    let pairs = job.pairs();
    println!(
        "kvs/memory: {first:.3} bytes per byte of {pairs} pairs, {again:.3} after a second fence with the same keys,"
    );
    println!("            {} bytes without pairs", Kvs::new().memory());
}

criterion_group!(benches, put, get, merge, memory);

fn main() {
    println!("{}", machine::line());
    benches();
    Criterion::default().configure_from_args().final_summary();
}
