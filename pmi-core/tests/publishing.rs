//! Data that a driver publishes, and when: before the ranks leave a fence, and only after a rank has requested it.

use std::collections::HashMap;
use std::os::unix::net::UnixStream as StdUnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use pmi_core::driver::{Driver, Publisher};
use pmi_core::fence::LocalFence;
use pmi_core::ids::{JobId, LocalRank, NodeIndex};
use pmi_core::job::Job;
use pmi_core::server::{Server, Settings};
use pmi_core::services::NoServices;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

/// The published data, and the answers of the publisher.
#[derive(Default)]
struct Shown {
    wanted: AtomicBool,
    full: AtomicBool,
    pairs: Mutex<HashMap<String, String>>,
    fences: Mutex<Vec<u64>>,
}

struct Recorder(Arc<Shown>);

impl Publisher for Recorder {
    fn is_wanted(&self) -> bool {
        self.0.wanted.load(Ordering::Relaxed)
    }

    fn reserve(&mut self, _: usize) -> bool {
        true
    }

    fn publish(&mut self, key: &[u8], value: &[u8]) -> bool {
        let [key, value] = [key, value].map(|text| String::from_utf8(text.to_vec()).unwrap());
        self.0.pairs.lock().unwrap().insert(key, value);
        !self.0.full.load(Ordering::Relaxed)
    }

    fn complete(&mut self, fences: u64) {
        self.0.fences.lock().unwrap().push(fences);
    }
}

/// A job of one rank, the rank, and its published data.
async fn job() -> (Driver, Rank, Arc<Shown>) {
    let job = Job { preput: vec![("early".into(), "0".into())], ..Job::on_one_node(JobId::new("j").unwrap(), 1) };
    let server = Server::new(job, NodeIndex(0), Settings::default());
    let (driver, _) = Driver::new(server, Arc::new(LocalFence), Arc::new(NoServices), None);
    let shown = Arc::new(Shown::default());
    driver.publish_to(Box::new(Recorder(Arc::clone(&shown))));
    let (ours, theirs) = StdUnixStream::pair().unwrap();
    driver.connect(LocalRank(0), ours).unwrap();
    theirs.set_nonblocking(true).unwrap();
    let mut rank = Rank(UnixStream::from_std(theirs).unwrap());
    rank.ask("cmd=init pmi_version=1 pmi_subversion=1").await;
    (driver, rank, shown)
}

struct Rank(UnixStream);

impl Rank {
    async fn ask(&mut self, request: &str) {
        self.0.write_all(format!("{request}\n").as_bytes()).await.unwrap();
        while self.0.read_u8().await.unwrap() != b'\n' {}
    }

    async fn put_and_fence(&mut self, key: &str, value: &str) {
        self.ask(&format!("cmd=put kvsname=j key={key} value={value}")).await;
        self.ask("cmd=barrier_in").await;
    }
}

#[track_caller]
fn check(shown: &Shown, fences: &[u64], expected: &[(&str, &str)]) {
    assert_eq!(*shown.fences.lock().unwrap(), fences);
    let expected: HashMap<_, _> = expected.iter().map(|&(key, value)| (key.to_owned(), value.to_owned())).collect();
    assert_eq!(*shown.pairs.lock().unwrap(), expected);
}

#[tokio::test]
async fn pairs_are_shown_from_the_first_fence_after_they_are_wanted() {
    let (_driver, mut rank, shown) = job().await;
    rank.put_and_fence("a", "1").await;
    check(&shown, &[], &[]);
    shown.wanted.store(true, Ordering::Relaxed);
    check(&shown, &[], &[]);
    rank.put_and_fence("b", "2").await;
    check(&shown, &[2], &[("early", "0"), ("a", "1"), ("b", "2")]);
    rank.put_and_fence("a", "3").await;
    check(&shown, &[2, 3], &[("early", "0"), ("a", "3"), ("b", "2")]);
    rank.ask("cmd=barrier_in").await;
    check(&shown, &[2, 3, 4], &[("early", "0"), ("a", "3"), ("b", "2")]);
}

#[tokio::test]
async fn a_publisher_without_room_is_left_alone_and_the_ranks_go_on() {
    let (_driver, mut rank, shown) = job().await;
    shown.wanted.store(true, Ordering::Relaxed);
    rank.put_and_fence("a", "1").await;
    shown.full.store(true, Ordering::Relaxed);
    rank.put_and_fence("b", "2").await;
    shown.full.store(false, Ordering::Relaxed);
    rank.put_and_fence("c", "3").await;
    check(&shown, &[1], &[("early", "0"), ("a", "1"), ("b", "2")]);
}
