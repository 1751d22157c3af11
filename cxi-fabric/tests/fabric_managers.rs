//! Tests the back ends against a misbehaving manager, over real HTTP.

mod scene;

use std::io::{BufRead, BufReader, Write};
use std::sync::mpsc;

use cxi_fabric::error::Trouble;
use cxi_fabric::fabric::Credentials;
use cxi_fabric::fake::{Access, CallKind, FakeFabric, Fault, Options, Rule};
use cxi_fabric::{FabricError, FabricManager};
use scene::{fake, fake_with, oauth, request, rest, shortly, soon, vnid};

use CallKind::{Auth, Create, Delete, List, Other, Token};

fn busy(retry_after: Option<u64>) -> Fault {
    Fault::Status { status: 503, retry_after, detail: Some("draining".into()) }
}

#[test]
fn a_service_is_made_read_and_ended_by_the_three_calls() {
    let fake = fake();
    let manager = rest(&fake);
    let service = manager.create(&request(0), soon()).expect("made");
    let Credentials { vni, auth_key, svc_id, lifetime, .. } =
        manager.credentials(&service, soon()).expect("answered").expect("it exists");
    assert_eq!((vni.get(), svc_id, lifetime), (1024, 0, None));
    assert_eq!(auth_key.expect("a key").expose().len(), 16);
    manager.delete(&service.id, soon()).expect("deleted");
    let calls: Vec<_> =
        fake.exchanges().iter().map(|exchange| format!("{} {}", exchange.method, exchange.path)).collect();
    assert_eq!(
        calls,
        ["POST /fabric/cxi/services", "GET /fabric/cxi/services/svc-1/auth", "DELETE /fabric/cxi/services/svc-1"]
    );
    assert!(fake.services().is_empty());
}

#[test]
fn whatever_passes_is_retried() {
    let faults =
        [busy(None), Fault::Down, Fault::status(500), Fault::status(429), Fault::status(408), Fault::LoseAnswer];
    for fault in faults {
        let fake = fake();
        fake.script([Create, Auth, Delete].map(|on| Rule::times(2, on, fault.clone())));
        let manager = rest(&fake);
        let service = manager.create(&request(0), soon()).unwrap_or_else(|error| panic!("{fault:?}: {error}"));
        assert_eq!(fake.services(), ["daint.4711.0"], "{fault:?}");
        assert!(manager.credentials(&service, soon()).is_ok_and(|credentials| credentials.is_some()), "{fault:?}");
        manager.delete(&service.id, soon()).unwrap_or_else(|error| panic!("{fault:?}: {error}"));
        assert!(fake.services().is_empty(), "{fault:?}");
    }
}

#[test]
fn deleting_may_fail_three_times() {
    let fake = fake();
    let manager = rest(&fake);
    let service = manager.create(&request(0), soon()).expect("made");
    fake.script([Rule::times(3, Delete, Fault::status(500))]);
    manager.delete(&service.id, soon()).expect("deleted");
    manager.delete(&service.id, soon()).expect("a second time");
    assert_eq!(fake.asked(), [Create, Delete, Delete, Delete, Delete, Delete]);
}

#[test]
fn a_manager_that_is_down_is_told_of_with_address_path_and_tries() {
    let fake = fake();
    let (manager, url) = (rest(&fake), fake.url());
    drop(fake);
    let error = manager.create(&request(0), shortly()).expect_err("nobody is there");
    let text = error.to_string();
    assert!(text.contains(&format!("fabric manager {url}: POST /fabric/cxi/services (")), "{text}");
    assert!(text.contains("cannot be reached") && text.contains("see whether the service runs"), "{text}");
    assert!(matches!(error, FabricError::OutOfTime { last: Trouble::Unreachable(_), .. }), "{error:?}");
}

/// The service exists: another client made it, or the first try made it and its answer was lost.
#[test]
fn a_conflict_whose_service_cannot_be_looked_up_is_not_nothing() {
    for refusal in [400, 401, 403] {
        let fake = fake_with(Options { conflicts: true, ..Options::default() });
        let faults = |asked| [Rule::once(Create, Fault::LoseAnswer), Rule::once(asked, Fault::status(refusal))];
        fake.script(faults(List));
        let error = rest(&fake).create(&request(0), soon()).expect_err("no list");
        assert!(!error.nothing_was_done(), "{error}");
        fake.script(faults(Other));
        let error = vnid(&fake).create(&request(1), soon()).expect_err("no look-up");
        assert!(!error.nothing_was_done(), "{error}");
        assert_eq!(fake.services().len(), 2);
    }
}

#[test]
fn a_manager_slower_than_the_deadline_costs_no_more_than_that() {
    let fake = fake();
    fake.script([Rule::once(Create, Fault::Slow { milliseconds: 5_000 })]);
    let error = rest(&fake).create(&request(0), shortly()).expect_err("too slow");
    assert!(matches!(error, FabricError::OutOfTime { last: Trouble::Slow(_), .. }), "{error}");
    assert!(!error.nothing_was_done(), "it may come yet");
}

#[test]
fn a_pause_that_the_manager_asks_for_is_not_sat_out_in_vain() {
    let fake = fake();
    fake.script([Rule::once(Create, busy(Some(3600)))]);
    let error = rest(&fake).create(&request(0), soon()).expect_err("an hour");
    let text = error.to_string();
    assert!(text.contains("(1 try)") && text.contains("\"draining\"") && text.contains("again in 3600 s"), "{text}");
}

#[test]
fn a_token_that_ended_is_replaced_once_and_a_wrong_secret_is_told_of() {
    let directory = tempfile::tempdir().expect("a directory");
    let fake = fake_with(Options { access: Access::Token { client_secret: "s3cret".into() }, ..Options::default() });
    let manager = oauth(&fake.url(), "s3cret\n", &directory).manager().expect("a manager");
    let service = manager.create(&request(0), soon()).expect("made");
    fake.expire_tokens();
    manager.delete(&service.id, soon()).expect("deleted");
    assert_eq!(fake.asked(), [Token, Create, Delete, Token, Delete]);

    let manager = oauth(&fake.url(), "mistaken", &directory).manager().expect("a manager");
    let text = manager.create(&request(1), soon()).expect_err("refused").to_string();
    assert!(text.contains("POST /token (1 try)") && text.contains("unknown client or wrong secret"), "{text}");
    assert!(text.contains("check the credentials"), "{text}");
}

#[test]
fn the_managers_own_words_reach_the_user_bounded() {
    let fake = fake();
    let detail = format!("no such node\nn17 {}", "x".repeat(5_000));
    fake.script([Rule::once(Create, Fault::Status { status: 422, retry_after: None, detail: Some(detail) })]);
    let error = rest(&fake).create(&request(0), soon()).expect_err("refused");
    assert!(error.nothing_was_done());
    let text = error.to_string();
    assert!(text.contains("it answered 422 with \"no such node n17 xxx") && text.len() < 600, "{text}");
}

#[test]
fn nonsense_is_no_answer_and_does_not_reach_the_user() {
    for (fault, expected) in
        [(Fault::Garbage, "the body is no JSON"), (Fault::WrongTypes, "field `id` is another number, not a text")]
    {
        let fake = fake();
        fake.script([Rule::once(Create, fault)]);
        let error = rest(&fake).create(&request(0), soon()).expect_err("nonsense");
        assert!(matches!(error, FabricError::Unintelligible { .. }) && !error.nothing_was_done(), "{error:?}");
        assert!(error.to_string().contains(expected), "{error}");
    }
}

/// A repeated creation under one name finds the first service, however the manager reports it.
#[test]
fn creating_twice_makes_one_service() {
    for (conflicts, offers_list) in [(false, true), (false, false), (true, true)] {
        let fake = fake_with(Options { conflicts, offers_list, ..Options::default() });
        let manager = rest(&fake);
        let first = manager.create(&request(0), soon()).expect("made");
        let second = manager.create(&request(0), soon()).expect("found");
        assert_eq!(first, second);
        assert_eq!(manager.find(&request(0), soon()).expect("answered"), Some(first));
        assert_eq!(fake.services().len(), 1);
    }
}

#[test]
fn a_conflict_that_nobody_can_explain_is_an_error() {
    let fake = fake_with(Options { conflicts: true, offers_list: false, ..Options::default() });
    let manager = rest(&fake);
    manager.create(&request(0), soon()).expect("made");
    let error = manager.create(&request(0), soon()).expect_err("which one is it?");
    assert!(error.to_string().contains("409 with \"exists\", and shows no service called daint.4711.0"), "{error}");
}

#[test]
fn a_service_with_another_vni_is_refused() {
    let fake = fake();
    fake.add_service("daint.4711.0", 4000);
    let error = rest(&fake).create(&request(0), soon()).expect_err("not what was asked for");
    assert!(error.to_string().contains("asked for VNI 1024, it gave 4000"), "{error}");
}

#[test]
fn a_list_names_what_is_ours() {
    let fake = fake();
    fake.add_service("somebody/else", 9);
    let manager = rest(&fake);
    manager.create(&request(0), soon()).expect("made");
    let names: Vec<_> = manager.list(soon()).expect("listed").into_iter().filter_map(|listed| listed.name).collect();
    assert_eq!(names, [request(0).name]);
    fake.script([Rule::once(List, Fault::status(501))]);
    assert!(matches!(manager.list(soon()), Err(FabricError::NotOffered { .. })));
}

#[test]
fn absent_credentials_are_an_answer() {
    let fake = fake();
    let manager = rest(&fake);
    let service = manager.create(&request(0), soon()).expect("made");
    fake.remove_service("daint.4711.0");
    assert_eq!(manager.credentials(&service, soon()), Ok(None));
}

#[test]
fn vnid_chooses_the_number_and_finds_its_job_again() {
    let fake = fake();
    let manager = vnid(&fake);
    fake.script([Rule::once(Create, Fault::LoseAnswer)]);
    let wanted = cxi_fabric::fabric::ServiceRequest { vni: None, ..request(0) };
    let service = manager.create(&wanted, soon()).expect("made, and found after 409");
    assert_eq!(fake.asked(), [Create, Create, Other]);
    assert_eq!((service.id.0.as_str(), service.vni.get()), ("daint.4711.0", 2048));
    let credentials = manager.credentials(&service, soon()).expect("answered").expect("it exists");
    assert_eq!((credentials.vni, credentials.auth_key), (service.vni, None));
    assert_eq!(manager.list(soon()).expect("listed").len(), 1);
    manager.delete(&service.id, soon()).expect("deleted");
    assert_eq!(manager.find(&wanted, soon()), Ok(None));
    assert_eq!(manager.credentials(&service, soon()), Ok(None));
    assert!(fake.services().is_empty());
}

#[test]
fn vnid_gives_a_second_number_where_one_is_wanted() {
    let fake = fake();
    let config =
        cxi_fabric::FabricConfig { job_vni: true, ..scene::config(cxi_fabric::config::Backend::Vnid, &fake.url()) };
    let manager = config.manager().expect("a manager");
    let wanted = cxi_fabric::fabric::ServiceRequest { vni: None, ..request(0) };
    let service = manager.create(&wanted, soon()).expect("made");
    let credentials = manager.credentials(&service, soon()).expect("answered").expect("it exists");
    assert_eq!((credentials.vni.get(), credentials.job_vni.map(cxi_fabric::Vni::get)), (2048, Some(2049)));
}

#[test]
fn bytes_that_are_no_http_end_in_an_error() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("http://{}", listener.local_addr().expect("an address"));
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let _ = Write::write_all(&mut &stream, b"SSH-2.0-OpenSSH_9.6 canary-banner\r\n\r\n");
        }
    });
    let manager = scene::config(cxi_fabric::config::Backend::Rest, &url).manager().expect("a manager");
    let error = manager.create(&request(0), shortly()).expect_err("not HTTP").to_string();
    assert!(error.contains("gave up at the deadline") && !error.contains("canary"), "{error}");
}

/// A manager that answers each call with this document, and the first lines of the calls.
fn hostile(document: impl Into<Vec<u8>>) -> (Box<dyn FabricManager>, mpsc::Receiver<String>) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("http://{}", listener.local_addr().expect("an address"));
    let (called, calls) = mpsc::channel();
    let document = document.into();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let mut lines = BufReader::new(&stream).lines().map_while(Result::ok);
            let _ = called.send(lines.next().unwrap_or_default());
            lines.take_while(|line| !line.is_empty()).for_each(drop);
            let length = document.len();
            let _ = write!(&stream, "HTTP/1.1 200 OK\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n");
            // The client may have closed the connection.
            let _ = (&stream).write_all(&document);
        }
    });
    (scene::config(cxi_fabric::config::Backend::Rest, &url).manager().expect("a manager"), calls)
}

/// Numbers that are not a VNI of the launch; ids and keys with special bytes for a path, a header or a terminal; endless answers.
#[test]
fn a_hostile_manager_gains_nothing_by_its_answers() {
    let plain = |error: FabricError| {
        let text = error.to_string();
        assert!(text.len() < 1000 && !text.chars().any(char::is_control), "{text:?}");
        text
    };
    for (vni, expected) in [
        ("1", "asked for VNI 1024, it gave 1"),
        ("4000", "asked for VNI 1024, it gave 4000"),
        ("70000", "field `vni`: "),
        ("-5", "field `vni` is another number"),
        ("1e300", "field `vni` is another number"),
    ] {
        let (manager, _calls) = hostile(format!(r#"{{"id": "svc", "vni": {vni}}}"#));
        let text = plain(manager.create(&request(0), soon()).expect_err(vni));
        assert!(text.contains(expected), "{vni}: {text}");
    }
    for (id, path) in [
        (r"../../vni/1024", "..%2F..%2Fvni%2F1024"),
        (r"a\r\nX-Admin: yes\r\n\r\n", "a%0D%0AX-Admin%3A%20yes%0D%0A%0D%0A"),
        (r"\u001b[2J?x=1#y", "%1B%5B2J%3Fx%3D1%23y"),
    ] {
        let (manager, calls) = hostile(format!(r#"{{"id": "{id}", "vni": 1024, "auth_key": "00\n"}}"#));
        let service = manager.create(&request(0), soon()).expect("made");
        let text = plain(manager.credentials(&service, soon()).expect_err("a key with a line break"));
        assert!(text.contains("field `auth_key` is another text"), "{text}");
        manager.delete(&service.id, soon()).expect("deleted");
        let expected = [
            "POST /fabric/cxi/services HTTP/1.1".to_owned(),
            format!("GET /fabric/cxi/services/{path}/auth HTTP/1.1"),
            format!("DELETE /fabric/cxi/services/{path} HTTP/1.1"),
        ];
        assert_eq!(calls.try_iter().collect::<Vec<_>>(), expected);
    }
    let long = format!(r#"{{"id": "{}", "vni": 1024}}"#, "x".repeat(1000));
    let large = [br#"{"id": "svc", "vni": 1024, "rest": ""#.to_vec(), vec![b'x'; 64 << 20]].concat();
    for document in [long.into_bytes(), large] {
        let (manager, _calls) = hostile(document);
        plain(manager.create(&request(0), shortly()).expect_err("too long"));
    }
}

#[test]
fn many_calls_at_once_take_one_token() {
    let directory = tempfile::tempdir().expect("a directory");
    let fake: FakeFabric =
        fake_with(Options { access: Access::Token { client_secret: "s".into() }, ..Options::default() });
    let manager = oauth(&fake.url(), "s", &directory).manager().expect("a manager");
    std::thread::scope(|scope| {
        for serial in 0..8 {
            let manager = &manager;
            scope.spawn(move || manager.create(&request(serial), soon()).expect("made"));
        }
    });
    assert_eq!(fake.asked().into_iter().filter(|asked| *asked == Token).count(), 1);
    assert_eq!(fake.services().len(), 8);
}
