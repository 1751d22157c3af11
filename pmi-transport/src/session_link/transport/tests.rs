use tokio::net::TcpListener;

use super::*;

const LAUNCH: &str = "launch";
const NEXT_VERSION: u8 = VERSION + 1;

fn links() -> SessionLinks {
    let member = |name: &str| Member { name: name.to_owned(), address: String::new() };
    SessionLinks::new(LinkKey::from_bytes([7; 32]), LAUNCH, NodeIndex(0), [member("a"), member("b")].into())
}

/// Both ends of a connection.
async fn connection() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (calling, called) = tokio::join!(TcpStream::connect(listener.local_addr().unwrap()), listener.accept());
    (calling.unwrap(), called.unwrap().0)
}

#[tokio::test]
async fn a_session_that_calls_one_of_another_version_says_which_versions_they_have() {
    let links = links();
    let greeting = Greeting::new(links.launch(), NodeIndex(0), NodeIndex(1), [1; 16], &links.key.gate_key());
    let (mut calling, mut called) = connection().await;
    let next = async {
        let mut opening = [0; Greeting::LEN + HANDSHAKE_LEN];
        called.read_exact(&mut opening).await.unwrap();
        let mut handshake = Handshake::of_called(&links.key.handshake_key(), greeting.as_bytes()).unwrap();
        let theirs = handshake.read(opening[Greeting::LEN..].try_into().unwrap()).unwrap();
        called.write_all(&handshake.write(NEXT_VERSION).unwrap()).await.unwrap();
        theirs
    };
    let (error, heard) = tokio::join!(links.call(&mut calling, &greeting, "here:1"), next);
    let CallFailure::Link(error) = error.unwrap_err() else { panic!("it has answered") };
    assert_eq!(error.to_string(), "here:1: its session has frames of version 2, this one has 1");
    assert_eq!(heard, VERSION);
}

#[tokio::test]
async fn a_session_of_another_version_that_calls_hears_which_one_this_is() {
    let links = links();
    let greeting = Greeting::new(links.launch(), NodeIndex(1), NodeIndex(0), [1; 16], &links.key.gate_key());
    let (mut calling, mut called) = connection().await;
    let next = async {
        let mut handshake = Handshake::of_caller(&links.key.handshake_key(), greeting.as_bytes()).unwrap();
        calling.write_all(&handshake.write(NEXT_VERSION).unwrap()).await.unwrap();
        let mut answer = [0; HANDSHAKE_LEN];
        calling.read_exact(&mut answer).await.unwrap();
        handshake.read(&answer).unwrap()
    };
    let (error, heard) = tokio::join!(links.answer(&mut called, &greeting), next);
    assert_eq!(error.unwrap_err().to_string(), "it has frames of version 2, and this session has 1");
    assert_eq!(heard, VERSION);
}

/// Opens a link at a port that closes the first `closed` connections without an answer, and answers the next one. Returns the outcome, and the
/// number of connections.
async fn open_at(closed: usize, agent_lease: Duration) -> (Result<(), LinkError>, usize) {
    let links = links().with_agent_lease(agent_lease);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let mut came = 0;
    let serving = async {
        loop {
            let (mut called, _) = listener.accept().await.unwrap();
            came += 1;
            if came > closed {
                let mut greeting = [0; Greeting::LEN];
                called.read_exact(&mut greeting).await.unwrap();
                let mut opening = [0; HANDSHAKE_LEN];
                called.read_exact(&mut opening).await.unwrap();
                let mut handshake = Handshake::of_called(&links.key.handshake_key(), &greeting).unwrap();
                handshake.read(&opening).unwrap();
                called.write_all(&handshake.write(VERSION).unwrap()).await.unwrap();
            }
        }
    };
    let opened = tokio::select! {
        opened = links.establish("b", &address) => opened.map(drop),
        () = serving => unreachable!("it serves for ever"),
    };
    (opened, came)
}

#[tokio::test]
async fn a_link_is_opened_once_more_where_the_agent_goes_after_it_has_taken_it() {
    let lease = Duration::from_secs(60);
    let (opened, came) = open_at(1, lease).await;
    assert_eq!((opened.map_err(|error| error.to_string()), came), (Ok(()), 2));
    let (refused, came) = open_at(9, lease).await;
    assert!(matches!(refused, Err(LinkError::Refused { .. })));
    assert_eq!(came, 2, "an agent that lets nobody in is not asked for ever");
    let (refused, came) = open_at(1, Duration::ZERO).await;
    assert!(matches!(refused, Err(LinkError::Refused { .. })));
    assert_eq!(came, 1, "no other agent comes");
}
