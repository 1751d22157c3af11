//! Servers that send too little, too much or invalid data. In each case the client returns a typed error with the
//! received bytes, and never panics or waits indefinitely.

use std::io::Write;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;

use pmi_client::{Client, ClientError, Defect, Protocol, SpawnRequest};

const PMI1_HELLO: &str = "cmd=response_to_init rc=0 pmi_version=1 pmi_subversion=1\n\
    cmd=maxes rc=0 kvsname_max=256 keylen_max=64 vallen_max=1024\n\
    cmd=appnum rc=0 appnum=-1\n\
    cmd=my_kvsname rc=0 kvsname=job\n";

fn pmi2_hello() -> String {
    let frames = ["cmd=fullinit-response;rc=0;rank=0;size=2;appnum=0;", "cmd=job-getid-response;rc=0;jobid=job;"];
    "cmd=response_to_init rc=0 pmi_version=2 pmi_subversion=0\n".to_owned() + &frames.map(frame).concat()
}

fn frame(body: &str) -> String {
    format!("{:6}{body}", body.len())
}

/// A server that has sent all its data before the first request.
fn server(says: &[u8]) -> (UnixStream, UnixStream) {
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    theirs.write_all(says).unwrap();
    theirs.shutdown(Shutdown::Write).unwrap();
    (ours, theirs)
}

fn join(says: impl AsRef<[u8]>, protocol: Protocol) -> Result<Client, ClientError> {
    let (ours, _theirs) = server(says.as_ref());
    Client::over(ours, protocol, 0, 2)
}

/// Returns the result of `call` if a correct server suddenly sends `reply`.
fn answered<T>(
    protocol: Protocol,
    reply: impl AsRef<[u8]>,
    call: impl Fn(&mut Client) -> Result<T, ClientError>,
) -> Result<T, ClientError> {
    let hello = if protocol == Protocol::Pmi2 { pmi2_hello() } else { PMI1_HELLO.to_owned() };
    let (ours, _theirs) = server(&[hello.as_bytes(), reply.as_ref()].concat());
    call(&mut Client::over(ours, protocol, 0, 2).unwrap())
}

#[test]
fn introductions_that_fail() {
    let check = |protocol, says: &str, expected: &str| {
        assert_eq!(join(says, protocol).unwrap_err().to_string(), expected);
    };
    check(Protocol::Pmi1, "", "the PMI server closed the connection before it answered `init`");
    check(
        Protocol::Pmi1,
        "cmd=response_to_init rc=0 pmi_version=2 pmi_subversion=0\n",
        "the PMI server speaks version 2, this client asked for version 1",
    );
    check(
        Protocol::Pmi2,
        "cmd=response_to_init rc=-1 pmi_version=1 pmi_subversion=1\n",
        "the PMI server speaks version 1, this client asked for version 2",
    );
    check(
        Protocol::Pmi1,
        "cmd=response_to_init rc=0\n",
        "the PMI server answered `init` with \"cmd=response_to_init rc=0\": field `pmi_version` is missing",
    );
    check(
        Protocol::Pmi1,
        "cmd=response_to_init rc=7 pmi_version=1 msg=job_is_ending\n",
        "the PMI server refused `init`: rc=7, job_is_ending",
    );
    let hello = "cmd=response_to_init rc=0 pmi_version=2 pmi_subversion=0\n";
    let full = frame("cmd=fullinit-response;rc=0;rank=2;size=2;appnum=0;");
    check(
        Protocol::Pmi2,
        &(hello.to_owned() + &full),
        "the PMI server answered `fullinit` with \"cmd=fullinit-response;rc=0;rank=2;size=2;appnum=0;\": \
         rank 2 does not exist in a job of 2",
    );
}

#[test]
fn nothing_is_asked_after_a_reply_to_something_else() {
    let good = "cmd=get_result rc=0 value=1\n";
    for (bad, goes_on) in [
        ("cmd=barrier_out rc=0\n", false),
        ("\n", false),
        ("cmd=get_result rc=zero value=1\n", true),
        ("cmd=get_result rc=-1 msg=no\n", true),
    ] {
        let (ours, _theirs) = server([PMI1_HELLO, bad, good].concat().as_bytes());
        let mut client = Client::over(ours, Protocol::Pmi1, 0, 2).unwrap();
        client.get("k").unwrap_err();
        match client.get("k") {
            Ok(value) => assert!(goes_on && value == Some(b"1".to_vec()), "{bad}"),
            Err(error) => {
                assert!(!goes_on && matches!(error, ClientError::Closed { command: "get" }), "{bad}: {error}");
            }
        }
    }
}

#[test]
fn replies_that_are_none() {
    let check = |protocol, reply: &[u8], expected: &str| {
        let seen = answered(protocol, reply, |client| client.get("k")).unwrap_err().to_string();
        assert_eq!(seen, expected, "{}", reply.escape_ascii());
    };
    let pmi1 = |reply: &[u8], expected: &str| check(Protocol::Pmi1, reply, expected);
    let pmi2 = |reply: &[u8], expected: &str| check(Protocol::Pmi2, reply, expected);

    pmi1(b"cmd=get_res", "the PMI server closed the connection before it answered `get`");
    pmi1(b"\n", "the PMI server answered `get` with \"\": expected `cmd=get_result` first");
    pmi1(b"\xff\0=\n", "the PMI server answered `get` with \"\\xff\\x00=\": expected `cmd=get_result` first");
    pmi1(
        b"rc=0 cmd=get_result value=1\n",
        "the PMI server answered `get` with \"rc=0 cmd=get_result value=1\": expected `cmd=get_result` first",
    );
    pmi1(
        b"cmd=barrier_out rc=0\n",
        "the PMI server answered `get` with \"cmd=barrier_out rc=0\": expected `cmd=get_result` first",
    );
    pmi1(
        b"cmd=get_result rc=0\n",
        "the PMI server answered `get` with \"cmd=get_result rc=0\": field `value` is missing",
    );
    pmi1(
        b"cmd=get_result rc=zero value=1\n",
        "the PMI server answered `get` with \"cmd=get_result rc=zero value=1\": field `rc` is not a number in range",
    );
    pmi1(b"cmd=get_result rc=9 msg=out_of_order\n", "the PMI server refused `get`: rc=9, out_of_order");

    pmi2(b"    40cmd=kvs-get-response;", "the PMI server closed the connection before it answered `kvs-get`");
    pmi2(
        b"cmd=get_result rc=0\n",
        "the PMI server answered `kvs-get` with \"cmd=get_result rc=0\\n\": \
         the first 6 bytes are not a length from 1 to 66560",
    );
    pmi2(
        b"     0",
        "the PMI server answered `kvs-get` with \"     0\": the first 6 bytes are not a length from 1 to 66560",
    );
    pmi2(
        frame(";;;;").as_bytes(),
        "the PMI server answered `kvs-get` with \";;;;\": expected `cmd=kvs-get-response` first",
    );
    pmi2(
        frame("cmd=kvs-get-response;rc=0;found=TRUE;").as_bytes(),
        "the PMI server answered `kvs-get` with \"cmd=kvs-get-response;rc=0;found=TRUE;\": field `value` is missing",
    );
    pmi2(
        frame("cmd=kvs-get-response;rc=14;errmsg=unknown;;command;").as_bytes(),
        "the PMI server refused `kvs-get`: rc=14, unknown;command",
    );
}

#[test]
fn an_endless_line_is_given_up() {
    let line = [b'a'; 70_000];
    for tail in ["", "\n"] {
        let error = answered(Protocol::Pmi1, [&line, tail.as_bytes()].concat(), Client::fence).unwrap_err();
        let expected = Defect::TooLong { max: 66_560 };
        assert!(matches!(error, ClientError::Malformed { defect, .. } if defect == expected), "{error}");
        assert!(error.to_string().len() < 300, "{error}");
    }
}

#[test]
fn not_found_has_many_forms() {
    let pmi1 = |fields: &str| {
        let reply = format!("cmd=get_result {fields}\n");
        answered(Protocol::Pmi1, reply, |client| client.get("k")).unwrap()
    };
    for fields in ["rc=1", "rc=-1 msg=key_k_not_found value=unknown", "rc=1 msg=key_not_found", "rc=0 found=FALSE"] {
        assert_eq!(pmi1(fields), None, "{fields}");
    }
    let pmi2 = |fields: &str| {
        let reply = frame(&format!("cmd=kvs-get-response;{fields}"));
        answered(Protocol::Pmi2, reply, |client| client.get("k")).unwrap()
    };
    for fields in ["rc=1;", "found=FALSE;rc=0;", "rc=0;found=FALSE"] {
        assert_eq!(pmi2(fields), None, "{fields}");
    }
    assert_eq!(pmi2("value=v;found=TRUE;rc=0;"), Some(b"v".to_vec()));
}

#[test]
fn what_the_server_cannot_carry_is_not_sent() {
    let refused = |protocol, key: &str, value: &[u8]| {
        answered(protocol, "", |client| client.put(key, value)).unwrap_err().to_string()
    };
    assert_eq!(refused(Protocol::Pmi1, "a b", b""), "a key cannot hold ' ': \"a b\"");
    for protocol in [Protocol::Pmi1, Protocol::Pmi2] {
        assert_eq!(refused(protocol, "a\nb", b""), "a key cannot hold '\\n': \"a\\\\nb\"");
        assert_eq!(refused(protocol, "k", b"a\nb"), "a value cannot hold '\\n': \"a\\\\nb\"");
    }
    assert_eq!(refused(Protocol::Pmi1, "k", &[b'v'; 1024]), "a value has 0 to 1023 bytes, not 1024");
    assert_eq!(refused(Protocol::Pmi2, "k", &[b'v'; 1025]), "a value has 0 to 1023 bytes, not 1025");
    let nothing = answered(Protocol::Pmi1, "", |client| client.spawn(&SpawnRequest::default()));
    assert!(matches!(nothing, Err(ClientError::NothingToSpawn)));
}

#[test]
fn pmi1_says_what_it_lacks() {
    let ring = answered(Protocol::Pmi1, "", |client| client.ring("x")).unwrap_err();
    assert_eq!(ring.to_string(), "ring does not exist in PMI-1");
    let attribute = answered(Protocol::Pmi1, "", |client| client.node_attribute("x")).unwrap_err();
    assert_eq!(attribute.to_string(), "node_attribute does not exist in PMI-1");
}

#[test]
fn a_program_runs_alone() {
    let mut client = Client::alone();
    assert!(client.is_singleton());
    assert_eq!((client.rank(), client.size(), client.appnum()), (0, 1, None));
    client.put("k", "v").unwrap();
    client.fence().unwrap();
    assert_eq!(client.get("k").unwrap(), Some(b"v".to_vec()));
    assert_eq!(client.get("other").unwrap(), None);
    assert_eq!(client.job_attribute("PMI_process_mapping").unwrap().as_deref(), Some(&b"(vector,(0,1,1))"[..]));
    client.put_node_attribute("n", "w").unwrap();
    assert_eq!(client.await_node_attribute("n").unwrap(), b"w");
    // waiting for another rank would never end
    assert!(matches!(client.await_node_attribute("m"), Err(ClientError::NotFound { .. })));
    assert_eq!(client.ring("me").unwrap().left, b"me");
    client.put("l", "w").unwrap();
    client.put("k", "x").unwrap();
    let keys = (0..3).map_while(|index| client.pair_at(None, index).unwrap()).map(|pair| (pair.key, pair.value));
    assert_eq!(keys.collect::<Vec<_>>(), [("k".into(), b"x".to_vec()), ("l".into(), b"w".to_vec())]);
    assert_eq!(client.local_ranks().unwrap(), [0]);
    client.publish("s", "p").unwrap();
    assert!(client.publish("s", "q").is_err());
    assert_eq!(client.lookup("s").unwrap(), Some(b"p".to_vec()));
    client.unpublish("s").unwrap();
    assert_eq!(client.lookup("s").unwrap(), None);
    client.finalize().unwrap();
}
