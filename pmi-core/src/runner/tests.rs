//! A runner over real sockets, with a protocol that executes each byte.

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::yield_now;

use super::state::READ_SIZE;
use super::*;
use crate::connections::ConnectionId;

/// Length of the answer to an [`ASK`].
const ANSWER: usize = 100 * 1024;

/// Requests an answer.
const ASK: u8 = b'a';
/// Requests an answer, after which the server closes the connection.
const LAST: u8 = b'l';
/// Makes the rank's child process write once more.
const AGAIN: u8 = b'w';
/// Maximum number of these writes.
const WRITTEN_MAX: usize = 100_000;
/// Sets a timer that never expires within a test.
const TIMER: u8 = b't';

/// Makes the server panic.
const PANIC: u8 = b'p';
/// Makes the host panic in a task.
const HOST_PANIC: u8 = b'h';

/// Handles single bytes of one rank.
#[derive(Default)]
struct Bytewise {
    /// Texts of panics.
    panics: Vec<String>,
    waiting: VecDeque<u8>,
    handled: usize,
    effects: VecDeque<Effect<Self>>,
    /// The rank's end of the socket in a child process.
    child: Option<UnixStream>,
}

impl Protocol for Bytewise {
    type Event = ();
    type Timer = u8;

    fn accept(&mut self) -> ConnectionId {
        ConnectionId(0)
    }

    fn is_claimed(&self, _: ConnectionId) -> bool {
        true
    }

    fn push_bytes(&mut self, _: ConnectionId, bytes: &[u8]) {
        self.waiting.extend(bytes);
    }

    fn handle_next(&mut self, connection: ConnectionId) -> bool {
        let Some(byte) = self.waiting.pop_front() else { return false };
        self.handled += 1;
        let answer = || Effect::Send { connection, bytes: vec![byte; ANSWER].into() };
        match byte {
            ASK => self.effects.push_back(answer()),
            LAST => self.effects.extend([answer(), answer(), answer(), Effect::Close { connection }]),
            AGAIN if self.handled < WRITTEN_MAX => {
                self.waiting.clear();
                self.child.as_mut().unwrap().write_all(&[AGAIN; READ_SIZE]).unwrap();
            }
            TIMER => self.effects.push_back(Effect::SetTimer { timer: byte, after: Duration::MAX }),
            PANIC => panic!("the server {byte}"),
            HOST_PANIC => self.effects.push_back(Effect::Run(Box::pin(async { panic!("the host") }))),
            _ => {}
        }
        true
    }

    fn handle_disconnect(&mut self, _: ConnectionId) {}

    fn handle_event(&mut self, (): ()) {}

    fn handle_timer(&mut self, _: u8) {}

    fn handle_panic(&mut self, text: &str) {
        self.panics.push(text.to_owned());
    }

    fn poll_effect(&mut self) -> Option<Effect<Self>> {
        self.effects.pop_front()
    }
}

/// A runner, and the rank's end of its connection.
fn connected() -> (Runner<Bytewise>, UnixStream) {
    let runner = Runner::new(Bytewise::default());
    let (ours, theirs) = UnixStream::pair().unwrap();
    runner.connect(ours, |bytewise| Ok(bytewise.accept())).unwrap();
    (runner, theirs)
}

fn handled(runner: &Runner<Bytewise>) -> usize {
    runner.with(|bytewise| bytewise.handled)
}

/// Lets the runner do all pending work.
async fn settle(runner: &Runner<Bytewise>) {
    let mut before = None;
    while before != Some(handled(runner)) {
        before = Some(handled(runner));
        for _ in 0..100 {
            yield_now().await;
        }
    }
}

#[tokio::test]
async fn requests_wait_in_their_order_while_the_rank_does_not_read_its_answers() {
    const ASKED: usize = 100;
    let (runner, mut rank) = connected();
    rank.write_all(&[ASK; ASKED]).unwrap();
    settle(&runner).await;
    assert!((1..10).contains(&handled(&runner)), "{} requests were handled", handled(&runner));
    rank.set_nonblocking(true).unwrap();
    let (mut read, mut buffer) = (0, vec![0; 1 << 20]);
    while read < ASKED * ANSWER {
        match rank.read(&mut buffer) {
            Ok(length) => read += length,
            Err(_) => yield_now().await,
        }
    }
    assert_eq!(handled(&runner), ASKED);
}

#[tokio::test]
async fn a_connection_that_is_closed_takes_what_was_sent_before() {
    let (runner, mut rank) = connected();
    rank.write_all(&[LAST, ASK]).unwrap();
    settle(&runner).await;
    rank.set_nonblocking(true).unwrap();
    let (mut read, mut buffer) = (0, vec![0; 1 << 20]);
    loop {
        match rank.read(&mut buffer) {
            Ok(0) => break,
            Ok(length) => read += length,
            Err(_) => yield_now().await,
        }
    }
    assert_eq!(read, 3 * ANSWER);
}

#[tokio::test]
async fn a_process_that_goes_on_writing_after_its_rank_has_ended_holds_nobody_up() {
    let (runner, mut rank) = connected();
    rank.write_all(&[AGAIN]).unwrap();
    runner.with(|bytewise| bytewise.child = Some(rank));
    runner.drain(|_| Some(ConnectionId(0)));
    let handled = handled(&runner);
    assert!(1 < handled && handled < WRITTEN_MAX, "the process wrote {handled} times, and was always listened to");
}

#[tokio::test]
async fn a_panic_of_the_server_or_the_host_is_told_at_once() {
    for (request, text) in [(PANIC, "the server 112"), (HOST_PANIC, "the host")] {
        let (runner, mut rank) = connected();
        rank.write_all(&[request]).unwrap();
        settle(&runner).await;
        assert_eq!(runner.with(|bytewise| bytewise.panics.clone()), [text]);
    }
}

#[tokio::test]
async fn a_timer_may_be_as_late_as_it_likes() {
    let (runner, mut rank) = connected();
    rank.write_all(&[TIMER]).unwrap();
    settle(&runner).await;
    assert_eq!(handled(&runner), 1);
}

#[tokio::test]
async fn nothing_is_left_of_a_runner_that_is_dropped_while_an_input_waits_for_the_lock() {
    let (runner, _rank) = connected();
    let shared = Arc::clone(&runner.shared);
    drop(runner);
    // The input begins a task that never ends.
    let task_holds = Arc::clone(&shared);
    shared.state.lock().spawn(async move {
        std::future::pending::<()>().await;
        drop(task_holds);
    });
    for _ in 0..100 {
        yield_now().await;
    }
    assert_eq!(Arc::strong_count(&shared), 1);
}
