//! Valid passes, and all kinds of invalid ones.

use std::net::{SocketAddr, TcpListener};

use super::*;

const NOW: u64 = 1_000_000;
const TICKET: Ticket = Ticket { from: 7, to: 8, uid: 1000, expires: NOW + 60 };

fn link_key(byte: u8) -> LinkKey {
    LinkKey::from_bytes([byte; LinkKey::LEN])
}

fn pass(ticket: Ticket) -> Pass {
    Pass::issue(&link_key(1), "launch", ticket, [9; 16])
}

fn entrance() -> Entrance {
    Entrance::new(link_key(1), TICKET.to, TICKET.uid)
}

/// Plays the agent: reads the greeting, and hands over the connection.
fn handed(listener: &TcpListener) -> Handed {
    use std::io::Read;
    let (mut socket, _) = listener.accept().unwrap();
    let mut greeting = [0; Greeting::LEN];
    socket.read_exact(&mut greeting).unwrap();
    Handed { greeting: Greeting::from_bytes(greeting).unwrap(), socket }
}

type Ends = (Result<Entered, EnterError>, Result<(u32, Entered), AdmitError>);

/// Both ends of a connection with this pass to this entrance.
async fn connect(pass: &Pass, entrance: &Entrance, now: u64) -> Ends {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address: SocketAddr = listener.local_addr().unwrap();
    let admitting = async {
        let handed = tokio::task::spawn_blocking(move || handed(&listener)).await.unwrap();
        entrance.admit(handed, now).await
    };
    let address = address.to_string();
    tokio::join!(pass.enter(&address), admitting)
}

#[tokio::test]
async fn whoever_has_a_pass_comes_in_as_its_set() {
    let (entered, admitted) = connect(&pass(TICKET), &entrance(), NOW).await;
    let (mut entered, (from, mut admitted)) = (entered.unwrap(), admitted.unwrap());
    assert_eq!(from, 7);
    entered.writer.write_all(b"question").await.unwrap();
    assert_eq!(admitted.reader.next().await.unwrap(), &b"question"[..]);
    admitted.writer.write_all(b"answer").await.unwrap();
    let answer = if entered.ahead.is_empty() { entered.reader.next().await.unwrap() } else { entered.ahead };
    assert_eq!(answer, &b"answer"[..]);
}

#[tokio::test]
async fn a_ticket_that_is_old_foreign_or_replayed_is_refused_with_the_reason() {
    let used = entrance();
    connect(&pass(TICKET), &used, NOW).await.0.unwrap();
    for (ticket, entrance, now, expected) in [
        (TICKET, &used, NOW, Refusal::Used),
        (TICKET, &entrance(), NOW + 61, Refusal::TooOld),
        (Ticket { to: 9, ..TICKET }, &entrance(), NOW, Refusal::Foreign),
        (Ticket { uid: 1001, ..TICKET }, &entrance(), NOW, Refusal::Foreign),
        (Ticket { from: TICKET.to, ..TICKET }, &entrance(), NOW, Refusal::Foreign),
    ] {
        let (entered, admitted) = connect(&pass(ticket), entrance, now).await;
        assert!(matches!(entered, Err(EnterError::Refused(seen)) if seen == expected), "{expected:?}: {entered:?}");
        assert!(matches!(admitted, Err(AdmitError::Refused(seen)) if seen == expected), "{expected:?}: {admitted:?}");
    }
}

/// A changed byte, an overheard opening, or the key of another launch does not yield the right key.
#[tokio::test]
async fn a_forged_ticket_opens_nothing() {
    let whole = pass(TICKET);
    let mut forged: Vec<Pass> = (Greeting::LEN..Pass::OPENING_LEN)
        .map(|at| {
            let mut pass = whole.clone();
            pass.opening[at] ^= 1;
            pass
        })
        .collect();
    forged.push(Pass { key: SharedKey::from_bytes([0; 32]), ..whole });
    forged.push(Pass::issue(&link_key(2), "launch", TICKET, [9; 16]));
    for pass in forged {
        let (entered, admitted) = connect(&pass, &entrance(), NOW).await;
        assert!(matches!(entered, Err(EnterError::Sealed { .. })), "{pass:?}: {entered:?}");
        assert!(matches!(admitted, Err(AdmitError::Sealed(_))), "{pass:?}: {admitted:?}");
    }
}

#[test]
fn passes_that_were_used_are_remembered_as_long_as_they_count_and_no_more_than_there_is_room_for() {
    let entrance = entrance();
    let check = |number: u32, now| {
        let mut nonce = [0; 16];
        nonce[..4].copy_from_slice(&number.to_be_bytes());
        entrance.check(TICKET, nonce, now)
    };
    let most = USED_MAX as u32;
    (0..most).for_each(|number| check(number, NOW).unwrap());
    assert_eq!(check(most, NOW), Err(Refusal::Full));
    let later = Ticket { expires: NOW + 120, ..TICKET };
    assert_eq!(entrance.check(later, [9; 16], NOW + 61), Ok(()));
    assert_eq!(entrance.used.lock().len(), 1);
}

#[test]
fn a_pass_passes_through_messages_and_shows_no_key() {
    let pass = pass(TICKET);
    let read = Pass::from_parts(pass.opening(), pass.key().as_bytes()).unwrap();
    assert_eq!((read.opening(), read.key().as_bytes()), (pass.opening(), pass.key().as_bytes()));
    assert!(Pass::from_parts(&pass.opening()[1..], pass.key().as_bytes()).is_none());
    assert!(Pass::from_parts(pass.opening(), &[0; 31]).is_none());
    assert_eq!(format!("{pass:?}"), "Ticket { from: 7, to: 8, uid: 1000, expires: 1000060 }");
    for code in 0..=255 {
        assert_eq!(Refusal::of(code).code(), code);
    }
}
