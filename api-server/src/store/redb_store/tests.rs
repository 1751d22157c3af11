//! Tests of the store in a file.

use std::sync::atomic::AtomicBool;

use bytes::Bytes;
use parking_lot::Mutex;
use pmi_transport::proto::v1::{AppSpec, LaunchSpec, LaunchSummary};
use redb::StorageBackend;

use super::*;
use crate::allocations::allocation::RequeuePolicy;
use crate::inventories::InventoryChanges;
use crate::nodes::tests::drain;
use crate::store::KeptNames;

fn allocation(id: &str, state: AllocationState) -> Allocation {
    let nodes = vec!["node0".to_owned(), "node1".to_owned()];
    Allocation { state, requeue: RequeuePolicy::OnNodeFailure, ..Allocation::running(id, 1000, nodes) }
}

fn record(id: &str, argument: &[u8]) -> LaunchRecord {
    let app = AppSpec { args: vec![Bytes::copy_from_slice(argument)], ..Default::default() };
    LaunchRecord {
        summary: Some(LaunchSummary { id: id.to_owned(), ..Default::default() }),
        spec: Some(LaunchSpec { apps: vec![app], ..Default::default() }),
        ..Default::default()
    }
}

fn running(id: &str) -> Change {
    Change::Launch(Box::new(record(id, b"")))
}

fn ended(id: &str) -> Change {
    Change::Ended(Box::new(EndedLaunch::of(&record(id, b""))))
}

fn runs(store: &RedbStore, id: &str) -> bool {
    let launches = store.read().unwrap().launches;
    launches.iter().any(|record| record.summary.as_ref().is_some_and(|summary| summary.id == id))
}

/// After any part of the file of a cleanly ended server is overwritten, the next server continues or reports the damage.
#[test]
fn a_damaged_state_file_is_told_of() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("state");
    let store = RedbStore::open(&path).unwrap();
    for number in 0..40 {
        store.write(&[running(&format!("launch{number}")), ended(&format!("ended{number}"))]).unwrap();
    }
    drop(store);
    let sound = fs::read(&path).unwrap();
    let mut damaged = 0;
    for seed in 1..=60_u64 {
        let mut bytes = sound.clone();
        let mut random = seed;
        for _ in 0..60 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let place = (random >> 33) as usize % bytes.len();
            bytes[place] = (random >> 20) as u8;
        }
        fs::write(&path, bytes).unwrap();
        match RedbStore::open(&path) {
            Ok(store) => drop(store.read().unwrap()),
            Err(StoreError::Damaged { .. }) => damaged += 1,
            Err(other) => panic!("{seed}: {other:?}"),
        }
    }
    assert!(damaged > 20, "{damaged}");
    fs::write(&path, "another file, for sure").unwrap();
    let error = RedbStore::open(&path).map(drop).unwrap_err().to_string();
    assert!(error.starts_with("the state file is damaged (") && error.contains("; put back a copy"), "{error}");
}

#[test]
fn a_state_file_that_another_server_has_is_told_of_with_its_process() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("state");
    let _first = RedbStore::open(&path).unwrap();
    let error = RedbStore::open(&path).map(drop).unwrap_err().to_string();
    let expected = format!("another `lattice api` has it open, process {};", std::process::id());
    assert!(error.starts_with(&expected), "{error}");
}

#[test]
fn names_go_with_their_launch() {
    let store = RedbStore::in_memory().unwrap();
    let change = |launch: &str, service: &'static str, is_there: bool| {
        let service = Bytes::from(service);
        let names = KeptNames { names: is_there.then(|| service.clone()).into_iter().collect() };
        store.write(&[Change::Name { launch: launch.into(), service, names }]).unwrap();
        let kept = store.read().unwrap().names;
        kept.get(launch).map(|kept| kept.names.len())
    };
    assert_eq!(change("l", "a", true), None, "there is no such launch");
    store.write(&[running("l"), running("l2")]).unwrap();
    assert_eq!((change("l", "a", true), change("l", "b", true), change("l", "a", true)), (Some(1), Some(2), Some(2)));
    assert_eq!(
        (change("l", "a", false), change("l", "a", false), change("l2", "b", true)),
        (Some(1), Some(1), Some(1))
    );
    store.write(&[ended("l")]).unwrap();
    assert_eq!(Vec::from_iter(store.read().unwrap().names.into_keys()), ["l2".into()], "others keep theirs");
    assert_eq!(change("l", "late", true), None);
}

#[test]
fn what_was_written_is_there_after_a_restart() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("deep/state.redb");
    let allocation = allocation("a", AllocationState::Running);
    let store = RedbStore::open(&path).unwrap();
    let drain = |node: &str| drain(node, "why");
    let drained = [Change::Drain(drain("a")), Change::Drain(drain("b")), Change::Resume("a".to_owned())];
    store.write(&[Change::Allocation(allocation.clone()), running("l")]).unwrap();
    store.write(&drained).unwrap();
    let names = ["a0", "a1"].map(str::to_owned).to_vec();
    store.write(&[Change::Registered(names), Change::Missing(vec!["a0".to_owned()])]).unwrap();
    store.write(&[Change::Serial(Serial(7)), Change::Serial(Serial(5))]).unwrap();
    let told = InventoryChanges {
        nodes: vec![("a0".to_owned(), Some(vec![1])), ("a1".to_owned(), Some(vec![2])), ("a0".to_owned(), None)],
        kinds: vec![(vec![7], Some(vec![3])), (vec![8], Some(vec![4])), (vec![8], None)],
    };
    store.write(&[Change::Inventories(told)]).unwrap();
    assert!(RedbStore::open(&path).is_err(), "it is open already");
    drop(store);

    let store = RedbStore::open(&path).unwrap();
    let kept = store.read().unwrap();
    assert_eq!((kept.allocations, kept.launches.len()), (vec![allocation.clone()], 1));
    assert_eq!(kept.drains, [drain("b")]);
    assert_eq!(kept.inventories.nodes, [("a1".to_owned(), vec![2])]);
    assert_eq!(kept.inventories.kinds, [(vec![7], vec![3])]);
    assert_eq!((kept.nodes, kept.serial), (vec!["a1".to_owned()], Serial(7)));
    assert_eq!(store.allocation("a").unwrap(), Some(allocation));
    assert!(store.allocation("b").unwrap().is_none());
    assert!(runs(&store, "l") && !runs(&store, "m"));
}

/// A disk that keeps its bytes when a database is closed, and that may be full.
#[derive(Clone, Debug, Default)]
struct Disk {
    bytes: Arc<Mutex<Vec<u8>>>,
    full: Arc<AtomicBool>,
}

impl Disk {
    fn change<T>(&self, change: impl FnOnce(&mut Vec<u8>) -> T) -> io::Result<T> {
        match self.full.load(Ordering::Relaxed) {
            true => Err(io::ErrorKind::StorageFull.into()),
            false => Ok(change(&mut self.bytes.lock())),
        }
    }
}

impl StorageBackend for Disk {
    fn len(&self) -> io::Result<u64> {
        Ok(self.bytes.lock().len() as u64)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        out.copy_from_slice(&self.bytes.lock()[offset as usize..][..out.len()]);
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.change(|bytes| bytes.resize(len as usize, 0))
    }

    fn sync_data(&self) -> io::Result<()> {
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.change(|bytes| bytes[offset as usize..][..data.len()].copy_from_slice(data))
    }
}

#[test]
fn a_disk_that_was_full_for_a_while_is_written_to_again() {
    let disk = Disk::default();
    let full = Arc::clone(&disk.full);
    let open = move || Ok(Database::builder().create_with_backend(disk.clone()).map_err(redb::Error::from)?);
    let store = RedbStore::with(tempfile::tempfile().unwrap(), open).unwrap();
    store.write(&[running("before")]).unwrap();
    full.store(true, Ordering::Relaxed);
    for _ in 0..2 {
        assert!(matches!(store.write(&[running("lost")]), Err(StoreError::Database(_))));
    }
    full.store(false, Ordering::Relaxed);
    store.write(&[running("after")]).unwrap();
    assert!(runs(&store, "before") && runs(&store, "after") && !runs(&store, "lost"));
}

#[test]
fn a_record_that_this_version_has_no_meaning_for_is_refused() {
    let refused = |record: proto::Allocation| {
        let store = RedbStore::in_memory().unwrap();
        let put = |database: &Database| {
            let transaction = database.begin_write()?;
            transaction.open_table(ALLOCATIONS)?.insert("a", record.encode_to_vec().as_slice())?;
            Ok(transaction.commit()?)
        };
        store.file.ask(put).unwrap();
        [store.read().map(drop), store.allocation("a").map(drop)].map(|answer| answer.unwrap_err().to_string())
    };
    let expected = "the state file holds a record that this version cannot read";
    let running = proto::AllocationState::Running.into();
    assert_eq!(refused(proto::Allocation { state: 77, ..Default::default() }), [expected; 2]);
    assert_eq!(refused(proto::Allocation { state: running, requeue: 9, ..Default::default() }), [expected; 2]);
}

#[test]
fn nobody_else_reads_the_state() {
    let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o777;
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("state.redb");
    drop(RedbStore::open(&path).unwrap());
    assert_eq!((mode(&path), mode(&keys_path(&path))), (0o600, 0o600));
    fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
    drop(RedbStore::open(&path).unwrap());
    assert_eq!(mode(&path), 0o600, "a state that others could read so far");
}

#[test]
fn the_oldest_of_many_released_allocations_is_forgotten() {
    let allocation = |id: &str, state| Change::Allocation(allocation(id, state));
    let store = RedbStore::in_memory().unwrap();
    // The id of the second allocation is reused.
    let released = ["first", "again"].map(|id| allocation(id, AllocationState::Released));
    store.write(&released).unwrap();
    let more = (2..ENDED_MAX + 2).map(|number| allocation(&format!("a{number}"), AllocationState::Released));
    let lives = std::iter::once(allocation("again", AllocationState::Running));
    store.write(&lives.chain(more).collect::<Vec<_>>()).unwrap();
    assert!(store.allocation("first").unwrap().is_none() && store.allocation("a2").unwrap().is_some());
    assert_eq!(store.allocation("again").unwrap().unwrap().state, AllocationState::Running);
    assert_eq!(store.read().unwrap().allocations.len() as u64, ENDED_MAX + 1);
}

#[test]
fn the_oldest_of_many_ended_launches_is_forgotten() {
    let store = RedbStore::in_memory().unwrap();
    let ended = (0..=ENDED_MAX).map(|number| ended(&format!("l{number}")));
    store.write(&std::iter::once(running("running")).chain(ended).collect::<Vec<_>>()).unwrap();
    assert!(store.ended_launch("l0").unwrap().is_none() && store.ended_launch("l1").unwrap().is_some());
    assert_eq!(store.ended().unwrap().len() as u64, ENDED_MAX);
    assert!(runs(&store, "running") && store.ended_launch("running").unwrap().is_none());
}

/// Launches of 1 MiB each pass through a file that never grows larger than a few running launches require. At the end the file holds no
/// part of their arguments.
#[test]
fn the_file_stays_small_however_many_launches_have_ended() {
    const SECRET: &[u8] = b"TOKEN=0123456789abcdef";
    let disk = Disk::default();
    let bytes = Arc::clone(&disk.bytes);
    let open = move || Ok(Database::builder().create_with_backend(disk.clone()).map_err(redb::Error::from)?);
    let store = RedbStore::with(tempfile::tempfile().unwrap(), open).unwrap();
    let argument = SECRET.repeat((1 << 20) / SECRET.len());
    for number in 0..40 {
        let id = format!("l{number}");
        store.write(&[Change::Launch(Box::new(record(&id, &argument)))]).unwrap();
        store.write(&[ended(&id)]).unwrap();
    }
    assert!(bytes.lock().len() < 16 << 20, "{} bytes", bytes.lock().len());
    store.file.compact().unwrap();
    let left = bytes.lock().clone();
    assert!(left.len() < 2 << 20, "{} bytes", left.len());
    assert!(!left.windows(SECRET.len()).any(|window| window == SECRET));
    assert_eq!((store.ended().unwrap().len(), store.read().unwrap().launches.len()), (40, 0));
}

/// In every state of the server, no file holds a byte of the environment of a launch or a batch job that is over. The next server can read
/// the environments of the launches and jobs that continue.
#[test]
fn the_environment_of_what_is_over_is_in_no_file() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("state.redb");
    let has = |word: &str| {
        let files = fs::read_dir(directory.path()).unwrap();
        let texts: Vec<_> = files.map(|file| fs::read(file.unwrap().path()).unwrap()).collect();
        assert_eq!(texts.len(), 2, "the state and its keys");
        texts.iter().any(|text| text.windows(word.len()).any(|window| window == word.as_bytes()))
    };
    let script = |id: &str| Change::Script { allocation: id.to_owned(), request: format!("SCRIPT={id}").into() };
    let launch = |id: &str| Change::Launch(Box::new(record(id, format!("LAUNCH={id}").as_bytes())));
    let allocation = |id: &str, state| Change::Allocation(allocation(id, state));
    let store = RedbStore::open(&path).unwrap();
    for id in ["over", "stays"] {
        store.write(&[allocation(id, AllocationState::Running), script(id), launch(id)]).unwrap();
        store.write(&[launch(id)]).unwrap();
    }
    let copies = ["state.redb", "state.redb.keys"].map(|name| fs::read(directory.path().join(name)).unwrap());
    store.write(&[ended("over"), allocation("over", AllocationState::Released)]).unwrap();
    drop(store);
    let keys_after = fs::read(directory.path().join("state.redb.keys")).unwrap();
    assert_eq!(keys_after.len(), copies[1].len());
    let kept = |key: &&[u8]| **key != [0; 32];
    assert_eq!(keys_after.chunks(32).filter(kept).count(), 2, "of four keys");
    for word in ["SCRIPT=", "LAUNCH="] {
        assert!(!has(word), "{word}");
    }
    let store = RedbStore::open(&path).unwrap();
    assert!(runs(&store, "stays") && !runs(&store, "over"));
    assert_eq!(store.script("stays").unwrap().unwrap(), b"SCRIPT=stays");
    drop(store);
    // A repair restores the record of a launch after its key was overwritten: the record stays removed.
    fs::write(&path, &copies[0]).unwrap();
    let store = RedbStore::open(&path).unwrap();
    assert!(runs(&store, "stays") && !runs(&store, "over") && store.script("over").unwrap().is_none());
    drop(store);
    fs::remove_file(directory.path().join("state.redb.keys")).unwrap();
    let refused = RedbStore::open(&path).map(drop).unwrap_err();
    assert!(matches!(refused, StoreError::Keys(_)), "{refused}");
}

/// The server is killed, and another one starts with its files.
#[test]
fn a_server_that_begins_gives_back_what_the_one_before_had_no_time_for() {
    let directory = tempfile::tempdir().unwrap();
    let [path, left] = ["state.redb", "left.redb"].map(|name| directory.path().join(name));
    let store = RedbStore::open(&path).unwrap();
    let argument = vec![0; 1 << 20];
    let ids: Vec<String> = (0..24).map(|number| format!("l{number}")).collect();
    ids.iter().for_each(|id| store.write(&[Change::Launch(Box::new(record(id, &argument)))]).unwrap());
    ids.iter().for_each(|id| store.write(&[ended(id)]).unwrap());
    fs::copy(&path, &left).unwrap();
    let store = RedbStore::open(&left).unwrap();
    assert_eq!(store.ended().unwrap().len(), ids.len());
    assert!(left.metadata().unwrap().len() < 1 << 20, "{} bytes", left.metadata().unwrap().len());
}
