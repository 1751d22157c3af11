//! A second process that sends messages as a rank: over the rank's own connection, or over one that claims the rank.

use pmi_core::claim::ClaimKeys;
use pmi_core::ids::{JobId, LocalRank, NodeIndex, Rank};
use pmi_core::job::Job;
use pmi_core::server::{Action, ConnectionId, Server, Settings};

const INIT: &str = "cmd=init pmi_version=1 pmi_subversion=1\n";
const FINALIZE: &str = "cmd=finalize\n";

fn server() -> Server {
    Server::new(Job::on_one_node(JobId::new("j").unwrap(), 2), NodeIndex(0), Settings::default())
}

/// The requests for a sender, and the reports of a second process, that follow from these messages.
fn say(server: &mut Server, connection: ConnectionId, words: &str) -> (usize, Vec<(Rank, Option<u32>)>) {
    server.handle_bytes(connection, words.as_bytes());
    taken(server)
}

fn taken(server: &mut Server) -> (usize, Vec<(Rank, Option<u32>)>) {
    let (mut asked, mut reported) = (0, Vec::new());
    while let Some(action) = server.poll_action() {
        match action {
            Action::AskForSender { .. } => asked += 1,
            Action::SecondProcess { rank, pid } => reported.push((rank, pid)),
            _ => {}
        }
    }
    (asked, reported)
}

#[test]
fn a_second_process_on_a_connection_is_reported_once_while_its_rank_has_not_finalized() {
    let mut server = server();
    let connection = server.connect(LocalRank(1)).unwrap();
    assert_eq!(say(&mut server, connection, INIT), (0, vec![]), "the first of all");
    assert_eq!(say(&mut server, connection, INIT), (1, vec![]), "another session, or another process");
    server.handle_second_sender(connection, 7);
    server.handle_second_sender(connection, 8);
    assert_eq!(taken(&mut server), (0, vec![(Rank(1), Some(7))]));
}

#[test]
fn a_program_that_follows_one_that_has_finalized_is_not_reported() {
    let mut server = server();
    let connection = server.connect(LocalRank(0)).unwrap();
    say(&mut server, connection, &[INIT, FINALIZE].concat());
    assert_eq!(say(&mut server, connection, INIT), (1, vec![]));
    server.handle_second_sender(connection, 7);
    assert_eq!(taken(&mut server), (0, vec![]));
    // The next process arrives while that one has not finalized.
    say(&mut server, connection, INIT);
    server.handle_second_sender(connection, 8);
    assert_eq!(taken(&mut server), (0, vec![(Rank(0), Some(8))]));
}

#[test]
fn a_second_claim_is_refused_and_reported_once() {
    let mut server = server();
    let mut keys = ClaimKeys::MIN..;
    server.require_keys(ClaimKeys::draw(2, || Ok::<_, ()>(keys.next().unwrap())).unwrap());
    let claim = [INIT, &format!("cmd=initack pmiid={}\n", ClaimKeys::MIN + 1)].concat();
    let [first, second, third] = [(); 3].map(|()| server.accept());
    assert_eq!(say(&mut server, first, &claim), (0, vec![]));
    assert_eq!(say(&mut server, second, &claim), (0, vec![(Rank(1), None)]));
    assert_eq!(say(&mut server, third, &claim), (0, vec![]));
}
