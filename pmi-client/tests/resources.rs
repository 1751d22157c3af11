//! Requests of a client about resources, to a server that lists the extension and to one that does not.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::thread;

use pmi_client::{Client, ClientError, Protocol};

/// Runs a client against a server that sends these replies in turn. Returns the requests of the client from `init` on.
fn sent(protocol: Protocol, answers: &[String], conversation: impl FnOnce(&mut Client)) -> Vec<String> {
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    thread::scope(|scope| {
        let server = scope.spawn(move || {
            let mut seen = Vec::new();
            for answer in answers {
                let mut bytes = [0; 1024];
                let length = theirs.read(&mut bytes).unwrap();
                seen.push(String::from_utf8(bytes[..length].to_vec()).unwrap());
                theirs.write_all(answer.as_bytes()).unwrap();
            }
            let mut rest = String::new();
            theirs.read_to_string(&mut rest).unwrap();
            assert_eq!(rest, "", "the client said more");
            seen
        });
        let mut client = Client::over(ours, protocol, 0, 1).unwrap();
        conversation(&mut client);
        drop(client);
        server.join().unwrap()
    })
}

fn pmi1(extensions: &str) -> Vec<String> {
    let greeting = [
        "cmd=response_to_init rc=0 pmi_version=1 pmi_subversion=1\n",
        "cmd=maxes rc=0 kvsname_max=256 keylen_max=64 vallen_max=1024\n",
        "cmd=appnum rc=0 appnum=0\n",
        "cmd=my_kvsname rc=0 kvsname=j\n",
    ];
    greeting.into_iter().map(str::to_owned).chain([format!("cmd=get_result {extensions}\n")]).collect()
}

fn framed(body: &str) -> String {
    format!("{:>6}{body}", body.len())
}

fn pmi2(extensions: &str) -> Vec<String> {
    let bodies = [
        "cmd=fullinit-response;rc=0;pmi-version=2;pmi-subversion=0;rank=0;size=1;appnum=0;".to_owned(),
        "cmd=job-getid-response;rc=0;jobid=j;".to_owned(),
        format!("cmd=info-getjobattr-response;{extensions}"),
    ];
    let init = "cmd=response_to_init rc=0 pmi_version=2 pmi_subversion=0\n".to_owned();
    [init].into_iter().chain(bodies.iter().map(|body| framed(body))).collect()
}

fn all_calls(client: &mut Client) {
    client.intend_resource("shm:").unwrap();
    client.register_resource("file:/a b;c").unwrap();
    client.begin_release("file:/a b;c", 10).unwrap();
    client.end_release("file:/a b;c").unwrap();
}

#[test]
fn pmi1_registers_and_releases() {
    let results = ["register", "register", "release_begin", "release_end"];
    let results = results.map(|name| format!("cmd=resource_{name}_result rc=0\n"));
    let answers: Vec<_> = pmi1("rc=0 value=getbyidx,resource").into_iter().chain(results).collect();
    let seen = sent(Protocol::Pmi1, &answers, all_calls);
    let expected = [
        "cmd=resource_register phase=intent name=shm:\n",
        "cmd=resource_register phase=done name=file:/a b;c\n",
        "cmd=resource_release_begin timeout=10 name=file:/a b;c\n",
        "cmd=resource_release_end name=file:/a b;c\n",
    ];
    assert_eq!(seen[5..], expected);
}

#[test]
fn pmi2_registers_and_releases() {
    let results = ["register", "register", "release-begin", "release-end"];
    let results = results.map(|name| framed(&format!("cmd=resource-{name}-response;rc=0;")));
    let answers: Vec<_> = pmi2("rc=0;found=TRUE;value=getbyidx,resource;").into_iter().chain(results).collect();
    let seen = sent(Protocol::Pmi2, &answers, all_calls);
    let expected = [
        "cmd=resource-register;name=shm:;phase=intent;",
        "cmd=resource-register;name=file:/a b;;c;phase=done;",
        "cmd=resource-release-begin;name=file:/a b;;c;timeout=10;",
        "cmd=resource-release-end;name=file:/a b;;c;",
    ];
    assert_eq!(seen[4..], expected.map(framed));
}

#[test]
fn a_server_that_does_not_name_the_extension_is_asked_once_and_sent_nothing() {
    let servers = [
        (Protocol::Pmi1, pmi1("rc=0 value=getbyidx,create_kvs")),
        (Protocol::Pmi1, pmi1("rc=-1 msg=key_lattice.ext_not_found value=unknown")),
        (Protocol::Pmi2, pmi2("rc=0;found=FALSE;")),
        (Protocol::Pmi2, pmi2("rc=14;errmsg=unknown;")),
    ];
    for (protocol, answers) in servers {
        let seen = sent(protocol, &answers, |client| {
            for _ in 0..2 {
                let refused = client.intend_resource("shm:");
                assert!(matches!(refused, Err(ClientError::Unsupported { .. })), "{refused:?}");
            }
            let refused = client.intend_resource("myipc");
            assert!(matches!(refused, Err(ClientError::ResourceName { .. })), "{refused:?}");
        });
        assert_eq!(seen.len(), answers.len());
    }
    let refused = Client::alone().register_resource("shm:1");
    assert!(matches!(refused, Err(ClientError::Unsupported { .. })), "{refused:?}");
}
