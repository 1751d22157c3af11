//! What do fabric credentials cost a launch: the first of an allocation, which calls the manager twice, and every later
//! one?
//!
//! The manager is a fake that answers at once over loopback HTTP. The time of a real manager must be added to the first
//! figure.

use std::hint::black_box;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use criterion::{Criterion, criterion_group};
use cxi_fabric::clock::SystemClock;
use cxi_fabric::config::{Authentication, Backend, FabricConfig};
use cxi_fabric::fake::{FakeFabric, Options};
use cxi_fabric::grants::Journal;
use cxi_fabric::ledger::{Entry, Need};
use cxi_fabric::{Grants, VniRange};
use lattice_benches::machine;

/// Stores nothing, because this bench does not measure the disk.
struct NoJournal;

impl Journal for NoJournal {
    fn write(&mut self, _entries: &[Entry]) -> io::Result<()> {
        Ok(())
    }

    fn replace(&mut self, _entries: &[Entry]) -> io::Result<()> {
        Ok(())
    }
}

fn grants(fake: &FakeFabric) -> Grants {
    let config = FabricConfig {
        backend: Backend::Rest,
        url: Some(fake.url()),
        partition: String::new(),
        vnis: VniRange::default(),
        foreign_vnis: Vec::new(),
        job_vni: false,
        traffic_classes: Default::default(),
        tls: None,
        auth: Authentication::None,
    };
    let manager = config.manager().expect("a manager");
    Grants::recover(
        &"bench".parse().expect("a name"),
        manager,
        config.vnis,
        Arc::new(SystemClock),
        [],
        Box::new(NoJournal),
    )
    .expect("grants")
}

fn need(allocation: &str) -> Need {
    Need { allocation: allocation.to_owned(), nodes: (0..16).map(|node| format!("n{node}")).collect(), uid: 1000 }
}

fn deadline() -> Instant {
    Instant::now() + Duration::from_secs(60)
}

fn first_launch(c: &mut Criterion) {
    let fake = FakeFabric::start(Options::default()).expect("a port");
    let grants = grants(&fake);
    c.bench_function("fabric/first_launch", |b| {
        b.iter_custom(|rounds| {
            let mut spent = Duration::ZERO;
            for _ in 0..rounds {
                let start = Instant::now();
                black_box(grants.acquire(&need("a"), deadline()).expect("credentials"));
                spent += start.elapsed();
                // The time of the release does not count, because the release happens after the launch.
                grants.release("a").expect("released");
                assert!(grants.settle(deadline()).is_empty());
                for node in need("a").nodes {
                    grants.node_is_empty(&node).expect("confirmed");
                }
            }
            spent
        });
    });
}

fn later_launch(c: &mut Criterion) {
    let fake = FakeFabric::start(Options::default()).expect("a port");
    let grants = grants(&fake);
    // Another 100 allocations have credentials as well.
    for allocation in 0..100 {
        grants.acquire(&need(&allocation.to_string()), deadline()).expect("credentials");
    }
    let calls = fake.asked().len();
    c.bench_function("fabric/later_launch_of_100", |b| b.iter(|| black_box(grants.ready(black_box("42"))).is_some()));
    assert_eq!(fake.asked().len(), calls, "a later launch asked the manager");
}

criterion_group!(benches, first_launch, later_launch);

fn main() {
    println!("{}", machine::line());
    benches();
    Criterion::default().configure_from_args().final_summary();
}
