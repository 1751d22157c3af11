//! Credentials from the first launch of an allocation to the confirmation of the last node, with a misbehaving manager and a
//! server that is killed.

mod scene;

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use cxi_fabric::Grants;
use cxi_fabric::clock::SystemClock;
use cxi_fabric::config::Backend;
use cxi_fabric::fabric::FabricManager;
use cxi_fabric::fake::{CallKind, FakeFabric, Fault, Options, Rule};
use cxi_fabric::grants::{GrantError, Journal};
use cxi_fabric::ledger::{Entry, Need};
use parking_lot::Mutex;
use scene::{config, fake, fake_with, rest, shortly, soon, vnid};

use CallKind::{Auth, Create, Delete, List};

/// Storage that survives: lines of JSON, as in a file.
#[derive(Clone, Default)]
struct Disk {
    lines: Arc<Mutex<Vec<String>>>,
    is_full: Arc<AtomicBool>,
}

impl Disk {
    fn entries(&self) -> Vec<Entry> {
        self.lines.lock().iter().map(|line| serde_json::from_str(line).expect("an entry")).collect()
    }
}

impl Journal for Disk {
    fn write(&mut self, entries: &[Entry]) -> io::Result<()> {
        if self.is_full.load(Ordering::Relaxed) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        let line = |entry: &Entry| serde_json::to_string(entry).expect("serialisable");
        self.lines.lock().extend(entries.iter().map(line));
        Ok(())
    }

    fn replace(&mut self, entries: &[Entry]) -> io::Result<()> {
        let lines = std::mem::take(&mut *self.lines.lock());
        self.write(entries).inspect_err(|_| *self.lines.lock() = lines)
    }
}

fn start_with(manager: Box<dyn FabricManager>, disk: &Disk, range: &str) -> Grants {
    let range = range.parse().expect("a range");
    Grants::recover(
        &"daint".parse().expect("a name"),
        manager,
        range,
        Arc::new(SystemClock),
        disk.entries(),
        Box::new(disk.clone()),
    )
    .expect("recovered")
}

fn start(fake: &FakeFabric, disk: &Disk) -> Grants {
    start_with(rest(fake), disk, "1024-1027")
}

fn need(allocation: &str) -> Need {
    Need { allocation: allocation.to_owned(), nodes: vec!["n0".into(), "n1".into()], uid: 1000 }
}

fn settle(grants: &Grants) {
    let errors = grants.settle(soon());
    assert!(errors.is_empty(), "{errors:?}");
}

/// Reports that every node holds nothing.
fn confirm_all(grants: &Grants) {
    for awaited in grants.awaited() {
        grants.confirmed(&awaited.name, awaited.nodes.iter().map(String::as_str)).expect("journalled");
    }
}

#[test]
fn two_launches_at_once_make_one_post_and_the_third_asks_nobody() {
    let fake = fake_with(Options { delay: std::time::Duration::from_millis(20), ..Options::default() });
    let grants = start(&fake, &Disk::default());
    assert!(grants.ready("a").is_none());
    let credentials: Vec<_> = std::thread::scope(|scope| {
        let launch = || grants.acquire(&need("a"), soon()).expect("credentials");
        let launches: Vec<_> = (0..4).map(|_| scope.spawn(launch)).collect();
        launches.into_iter().map(|launch| launch.join().expect("no panic")).collect()
    });
    assert!(credentials.windows(2).all(|pair| pair[0] == pair[1]));
    assert_eq!(fake.asked(), [Create, Auth]);
    assert_eq!(grants.ready("a").as_ref(), credentials.first());
    grants.acquire(&need("a"), soon()).expect("cached");
    assert_eq!(fake.asked().len(), 2);
    grants.acquire(&need("b"), soon()).expect("another allocation");
    assert_eq!(fake.asked(), [Create, Auth, Create, Auth]);
}

#[test]
fn a_release_deletes_at_once_and_frees_the_vni_when_all_nodes_confirmed() {
    let (fake, disk) = (fake(), Disk::default());
    let grants = start_with(rest(&fake), &disk, "1024-1024");
    grants.acquire(&need("a"), soon()).expect("credentials");
    grants.release("a").expect("journalled");
    settle(&grants);
    assert!(fake.services().is_empty());
    let error = grants.acquire(&need("b"), soon()).expect_err("in quarantine").to_string();
    assert!(error.contains("VNI pool exhausted (1/1 in use, 1 of them in quarantine"), "{error}");
    // A lost agent keeps the number taken, also after a restart.
    let name = grants.awaited()[0].name.clone();
    grants.confirmed(&name, ["n0"]).expect("journalled");
    drop(grants);
    let grants = start_with(rest(&fake), &disk, "1024-1024");
    assert_eq!(grants.awaited()[0].nodes, ["n1"]);
    assert!(grants.acquire(&need("b"), soon()).is_err());
    grants.node_is_empty("n1").expect("journalled");
    assert_eq!(grants.acquire(&need("b"), soon()).expect("credentials").vni.get(), 1024);
}

#[test]
fn a_manager_that_numbers_itself_is_asked_to_delete_after_the_nodes_confirmed() {
    let fake = fake();
    let grants = start_with(vnid(&fake), &Disk::default(), "1-9");
    assert_eq!(grants.acquire(&need("a"), soon()).expect("credentials").vni.get(), 2048);
    grants.release("a").expect("journalled");
    settle(&grants);
    assert_eq!(fake.services().len(), 1, "it would give the number to others");
    confirm_all(&grants);
    settle(&grants);
    assert!(fake.services().is_empty() && grants.views().is_empty());
}

#[test]
fn a_pool_alone_needs_no_manager() {
    let manager = cxi_fabric::FabricConfig { url: None, ..config(Backend::Pool, "") }.manager().expect("a manager");
    let grants = start_with(manager, &Disk::default(), "1024-1027");
    let credentials = grants.acquire(&need("a"), soon()).expect("credentials");
    assert_eq!((credentials.vni.get(), credentials.auth_key, credentials.svc_id), (1024, None, 0));
    assert_eq!(credentials.job_vni, None);
    grants.release("a").expect("journalled");
    settle(&grants);
    confirm_all(&grants);
    assert_eq!(grants.acquire(&need("b"), soon()).expect("credentials").vni.get(), 1025, "it goes round");
}

#[test]
fn a_lost_answer_leaves_nothing_behind() {
    for offers_list in [true, false] {
        let fake = fake_with(Options { offers_list, ..Options::default() });
        let grants = start(&fake, &Disk::default());
        fake.script([Rule::times(99, Create, Fault::LoseAnswer)]);
        let error = grants.acquire(&need("a"), shortly()).expect_err("no answer came");
        assert!(matches!(error, GrantError::Fabric(_)), "{error}");
        assert_eq!(fake.services().len(), 1, "made, and nobody heard of it");
        fake.clear_script();
        settle(&grants);
        assert!(fake.services().is_empty() && grants.views().is_empty(), "{:?}", grants.views());
    }
}

#[test]
fn a_deletion_that_fails_stays_due() {
    let fake = fake();
    let grants = start(&fake, &Disk::default());
    grants.acquire(&need("a"), soon()).expect("credentials");
    grants.release("a").expect("journalled");
    fake.script([Rule::times(99, Delete, Fault::status(503))]);
    assert_eq!(grants.settle(shortly()).len(), 1);
    fake.clear_script();
    settle(&grants);
    assert!(fake.services().is_empty());
}

/// The server is killed after each number of journal entries in turn, that is, between any two of its actions.
#[test]
fn every_service_ends_wherever_the_server_is_killed() {
    let entries = {
        let (fake, disk) = (fake(), Disk::default());
        let grants = start(&fake, &disk);
        grants.acquire(&need("a"), soon()).expect("credentials");
        grants.release("a").expect("journalled");
        settle(&grants);
        confirm_all(&grants);
        assert!(grants.views().is_empty());
        disk.entries().len()
    };
    assert_eq!(entries, 6, "intended, made, ending, deleted, two nodes");
    for survived in 0..=entries {
        let (fake, disk) = (fake(), Disk::default());
        let grants = start(&fake, &disk);
        grants.acquire(&need("a"), soon()).expect("credentials");
        if survived > 2 {
            grants.release("a").expect("journalled");
        }
        if survived > 3 {
            settle(&grants);
            confirm_all(&grants);
        }
        drop(grants);
        disk.lines.lock().truncate(survived);

        let grants = start(&fake, &disk);
        grants.release("a").expect("journalled");
        settle(&grants);
        confirm_all(&grants);
        // Only a completely lost journal leaves services that no ledger has; the list has them.
        let reaped = grants.reap(soon()).expect("listed");
        assert_eq!(reaped.names.len(), usize::from(survived == 0), "after {survived} entries");
        assert!(
            fake.services().is_empty() && grants.views().is_empty(),
            "after {survived} entries: {:?}",
            grants.views()
        );
    }
}

#[test]
fn after_a_restart_the_key_is_fetched_again_and_nothing_made() {
    let (fake, disk) = (fake(), Disk::default());
    let before = start(&fake, &disk).acquire(&need("a"), soon()).expect("credentials");
    let grants = start(&fake, &disk);
    assert!(grants.ready("a").is_none());
    assert_eq!(grants.acquire(&need("a"), soon()).expect("credentials"), before);
    assert_eq!(fake.asked(), [Create, Auth, Auth]);
    assert_eq!(fake.services().len(), 1);
}

#[test]
fn a_journal_does_not_grow_for_ever_and_a_shortened_one_means_the_same() {
    let disk = Disk::default();
    let pool = || cxi_fabric::FabricConfig { url: None, ..config(Backend::Pool, "") }.manager().expect("a manager");
    let grants = start_with(pool(), &disk, "1024-1027");
    let before = grants.acquire(&need("a"), soon()).expect("credentials");
    let mut longest = 0;
    for _ in 0..1000 {
        grants.acquire(&need("b"), soon()).expect("credentials");
        grants.release("b").expect("journalled");
        settle(&grants);
        confirm_all(&grants);
        longest = longest.max(disk.lines.lock().len());
    }
    assert!((1000..1100).contains(&longest), "{longest} entries");
    let views = grants.views();
    let grants = start_with(pool(), &disk, "1024-1027");
    assert_eq!(grants.views(), views);
    assert_eq!(grants.acquire(&need("a"), soon()).expect("credentials"), before);
    assert_ne!(grants.acquire(&need("b"), soon()).expect("credentials").vni, before.vni);
}

#[test]
fn a_service_that_vanished_is_made_anew_by_the_next_launch() {
    let (fake, disk) = (fake(), Disk::default());
    let before = start(&fake, &disk).acquire(&need("a"), soon()).expect("credentials");
    fake.remove_service("daint.a.0");
    let grants = start(&fake, &disk);
    assert!(matches!(grants.acquire(&need("a"), soon()), Err(GrantError::Vanished(_))));
    assert_ne!(grants.acquire(&need("a"), soon()).expect("credentials").vni, before.vni);
    assert_eq!(fake.services(), ["daint.a.1"]);
}

#[test]
fn strangers_of_this_cluster_are_reaped_and_others_left() {
    let fake = fake();
    fake.add_service("daint.old.3", 1025);
    fake.add_service("eiger.a.0", 2000);
    fake.add_service("by hand", 3000);
    let grants = start(&fake, &Disk::default());
    grants.acquire(&need("a"), soon()).expect("credentials");
    assert_eq!(grants.reap(soon()).expect("listed").names, ["daint.old.3"]);
    assert_eq!(fake.services(), ["by hand", "daint.a.0", "eiger.a.0"]);
    let silent = fake_with(Options { offers_list: false, ..Options::default() });
    assert_eq!(start(&silent, &Disk::default()).reap(soon()).expect("nothing to do").names, Vec::<String>::new());
    assert_eq!(silent.asked(), [List]);
}

/// A service that ends while the manager lists it is not a leftover.
#[test]
fn a_service_that_is_just_ending_is_no_stranger() {
    let (fake, disk) = (fake(), Disk::default());
    let grants = start(&fake, &disk);
    grants.acquire(&need("a"), soon()).expect("credentials");
    fake.script([Rule::once(List, Fault::Slow { milliseconds: 500 })]);
    std::thread::scope(|scope| {
        let looking = scope.spawn(|| grants.strangers(soon()).expect("listed"));
        while !fake.asked().contains(&List) {
            std::thread::yield_now();
        }
        grants.release("a").expect("journalled");
        settle(&grants);
        confirm_all(&grants);
        assert!(grants.views().is_empty());
        assert_eq!(looking.join().expect("no panic"), []);
    });
}

#[test]
fn nothing_is_asked_for_that_cannot_be_written_down() {
    let (fake, disk) = (fake(), Disk::default());
    let grants = start(&fake, &disk);
    disk.is_full.store(true, Ordering::Relaxed);
    let error = grants.acquire(&need("a"), soon()).expect_err("the disk is full");
    assert!(matches!(error, GrantError::Journal(_)), "{error}");
    assert!(fake.asked().is_empty());
    disk.is_full.store(false, Ordering::Relaxed);
    let credentials = grants.acquire(&need("a"), soon()).expect("credentials");
    // The pending entries are in the journal, in order, so the next run has the same state.
    assert_eq!(start(&fake, &disk).acquire(&need("a"), soon()).expect("credentials"), credentials);
}

#[test]
fn a_launch_that_waits_for_another_waits_until_its_own_deadline() {
    let fake = fake();
    let grants = start(&fake, &Disk::default());
    fake.script([Rule::once(Create, Fault::Slow { milliseconds: 1_500 })]);
    std::thread::scope(|scope| {
        let first = scope.spawn(|| grants.acquire(&need("a"), soon()));
        while fake.asked().is_empty() {
            std::thread::yield_now();
        }
        let error = grants.acquire(&need("a"), shortly()).expect_err("too slow");
        assert!(matches!(error, GrantError::StillWaiting(_)), "{error}");
        first.join().expect("no panic").expect("credentials in the end");
    });
}

#[test]
fn an_allocation_that_ends_while_its_service_is_made_gets_none() {
    let fake = fake();
    let grants = start(&fake, &Disk::default());
    fake.script([Rule::once(Create, Fault::Slow { milliseconds: 300 })]);
    std::thread::scope(|scope| {
        let launch = scope.spawn(|| grants.acquire(&need("a"), soon()));
        while fake.asked().is_empty() {
            std::thread::yield_now();
        }
        grants.release("a").expect("journalled");
        let error = launch.join().expect("no panic").expect_err("it ended");
        assert!(matches!(error, GrantError::Released(_)), "{error}");
    });
    settle(&grants);
    assert!(fake.services().is_empty() && grants.views().is_empty());
}

/// The first try is refused temporarily, and the retry makes the service. A search between the two finds nothing, which has no
/// meaning.
#[test]
fn a_service_is_not_given_up_while_its_creation_is_repeated() {
    for offers_list in [true, false] {
        let fake = fake_with(Options { offers_list, ..Options::default() });
        let grants = start_with(rest(&fake), &Disk::default(), "1024-1024");
        fake.script([Rule::times(999, Create, Fault::status(503))]);
        std::thread::scope(|scope| {
            let launch = scope.spawn(|| grants.acquire(&need("a"), soon()));
            while fake.asked().is_empty() {
                std::thread::yield_now();
            }
            grants.release("a").expect("journalled");
            settle(&grants);
            assert_eq!(grants.views().len(), 1, "its VNI is not free");
            assert!(grants.acquire(&need("b"), shortly()).is_err(), "there is one VNI only");
            fake.clear_script();
            let error = launch.join().expect("no panic").expect_err("it ended");
            assert!(matches!(error, GrantError::Released(_)), "{error}");
        });
        settle(&grants);
        assert!(fake.services().is_empty() && grants.views().is_empty());
        assert_eq!(grants.acquire(&need("b"), soon()).expect("credentials").vni.get(), 1024);
    }
}
