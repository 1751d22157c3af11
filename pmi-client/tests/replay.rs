//! Recorded exchanges between real MPI libraries and real servers, repeated by this client: once with whole replies,
//! once with replies that arrive byte by byte.

mod support;

use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::thread;

use pmi_client::{Client, ClientError, Protocol, SpawnApp, SpawnRequest};
use support::{Delivery, Transcript};

const DELIVERIES: [Delivery; 2] = [Delivery::Whole, Delivery::ByteByByte];

/// Runs a client with `rank` and `size` against the server of this rank in `file`.
fn replay(file: &str, protocol: Protocol, (rank, size): (u32, u32), conversation: fn(Client)) {
    let transcript = Transcript::load(file, &[&rank.to_string()]);
    for delivery in DELIVERIES {
        let (ours, theirs) = UnixStream::pair().unwrap();
        thread::scope(|scope| {
            scope.spawn(|| transcript.play(theirs, delivery));
            let client = Client::over(ours, protocol, rank, size).unwrap();
            assert_eq!((client.rank(), client.size()), (rank, size));
            conversation(client);
        });
    }
}

/// Returns the result of a get as text.
fn text(found: Result<Option<Vec<u8>>, ClientError>) -> Option<String> {
    found.unwrap().map(|bytes| String::from_utf8(bytes).unwrap())
}

fn error<T: std::fmt::Debug>(result: Result<T, ClientError>) -> String {
    result.unwrap_err().to_string()
}

#[test]
fn pmi1_one_rank_under_hydra_4_0() {
    replay("pmi1-init-1rank-mpich-4.0.2.txt", Protocol::Auto, (0, 1), |mut client| {
        assert_eq!((client.job_id(), client.appnum()), ("kvs_22940_0_555074696_vm", Some(0)));
        client.fence().unwrap();
        assert_eq!(client.universe_size().unwrap(), None);
        client.fence().unwrap();
        client.finalize().unwrap();
    });
}

#[test]
fn pmi1_business_cards_between_two_nodes() {
    replay("pmi1-init-2nodes-mpich-5.0.2.txt", Protocol::Pmi1, (1, 2), |mut client| {
        assert_eq!(text(client.job_attribute("PMI_process_mapping")).as_deref(), Some("(vector,(0,2,1))"));
        assert_eq!(text(client.job_attribute("PMI_hwloc_xmlfile")), None);
        assert_eq!(text(client.job_attribute("PMI_mpi_memory_alloc_kinds")), None);
        client.put("-allgather-1-1", "0200B03FC0000202[8]").unwrap();
        client.fence().unwrap();
        assert_eq!(text(client.get("-allgather-1-0")).as_deref(), Some("0200AFCFC0000202[8]"));
        assert_eq!(text(client.get("-allgather-1-1")).as_deref(), Some("0200B03FC0000202[8]"));
        assert_eq!(client.universe_size().unwrap(), Some(8));
        client.finalize().unwrap();
    });
}

#[test]
fn pmi1_found_true_behind_the_value() {
    replay("pmi1-init-2ranks-mpich-4.1.3.txt", Protocol::Pmi1, (0, 2), |mut client| {
        assert_eq!(text(client.get("PMI_process_mapping")).as_deref(), Some("(vector,(0,1,2))"));
        assert_eq!(text(client.get("PMI_hwloc_xmlfile")).as_deref(), Some("/tmp/hydra_hwloc_xmlfile_XXXXXX"));
        client.fence().unwrap();
        client.put("-bcast-1-0", "2F6465762F73686D2F6D706963685F736861725F746D7042395064796600").unwrap();
        client.fence().unwrap();
        client.put("-allgather-shm-1-0", "020088FFC00002020000000000000000").unwrap();
        client.fence().unwrap();
        let card = text(client.get("-allgather-shm-1-0"));
        assert_eq!(card.as_deref(), Some("020088FFC00002020000000000000000"));
        assert_eq!(client.universe_size().unwrap(), None);
        client.finalize().unwrap();
    });
}

#[test]
fn pmi1_a_server_that_offers_1_2() {
    replay("pmi1.2-init-2nodes-mpich-5.0.2.txt", Protocol::Pmi1, (0, 2), |mut client| {
        for (key, known) in
            [("PMI_process_mapping", true), ("PMI_hwloc_xmlfile", false), ("PMI_mpi_memory_alloc_kinds", false)]
        {
            assert_eq!(client.job_attribute(key).unwrap().is_some(), known, "{key}");
        }
        client.put("-allgather-1-0", "0200A7EDC0000202[8]").unwrap();
        client.fence().unwrap();
        assert_eq!(text(client.get("-allgather-1-0")).as_deref(), Some("0200A7EDC0000202[8]"));
        assert_eq!(text(client.get("-allgather-1-1")).as_deref(), Some("02008AE7C0000202[8]"));
        assert_eq!(client.universe_size().unwrap(), Some(8));
        client.finalize().unwrap();
    });
}

#[test]
fn pmi1_names_under_hydra_3_4() {
    replay("pmi1-names-mpich-3.4.3.txt", Protocol::Pmi1, (0, 1), |mut client| {
        let port = "tag#0$connentry#020086D8C00002020000000000000000$";
        client.publish("svc one", port).unwrap();
        client.publish("svc1", port).unwrap();
        let refused = error(client.publish("svc1", port));
        assert_eq!(refused, "the PMI server refused `publish_name`: rc=1, key_already_present");
        assert_eq!(text(client.lookup("svc1")).as_deref(), Some(port));
        assert_eq!(text(client.lookup("nosuch")), None);
        client.unpublish("svc1").unwrap();
        let refused = error(client.unpublish("nosuch"));
        assert_eq!(refused, "the PMI server refused `unpublish_name`: rc=1, service_not_found");
        client.finalize().unwrap();
    });
}

#[test]
fn pmi1_names_under_hydra_5_give_no_reasons() {
    replay("pmi1-names-mpich-5.0.2.txt", Protocol::Pmi1, (0, 1), |mut client| {
        let port = "tag#0$connentry#766D00020092B9C0000202[8]$";
        assert!(client.get("PMI_hwloc_xmlfile").unwrap().is_some());
        assert_eq!(text(client.get("PMI_mpi_memory_alloc_kinds")), None);
        client.publish("svc one", port).unwrap();
        client.publish("svc1", port).unwrap();
        assert_eq!(error(client.publish("svc1", port)), "the PMI server refused `publish_name`: rc=1");
        assert_eq!(text(client.lookup("svc1")).as_deref(), Some(port));
        assert_eq!(text(client.lookup("nosuch")), None);
        client.unpublish("svc1").unwrap();
        assert_eq!(error(client.unpublish("nosuch")), "the PMI server refused `unpublish_name`: rc=1");
        client.finalize().unwrap();
    });
}

#[test]
fn pmi1_over_tcp_claims_its_rank() {
    let transcript = Transcript::load("pmi1-port-initack-mpich-4.0.2.txt", &["?", "0"]);
    for delivery in DELIVERIES {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        thread::scope(|scope| {
            scope.spawn(|| {
                let accepted: OwnedFd = listener.accept().unwrap().0.into();
                transcript.play(accepted.into(), delivery);
            });
            let mut client = Client::connect(&address, Protocol::Auto, 0).unwrap();
            assert_eq!((client.rank(), client.size(), client.job_id()), (0, 1, "kvs_23164.0"));
            client.fence().unwrap();
            assert_eq!(client.universe_size().unwrap(), None);
            client.fence().unwrap();
            client.finalize().unwrap();
        });
    }
}

#[test]
fn pmi1_spawn_of_two_programs_in_one_write() {
    replay("pmi1-spawn-multiple-mpich-5.0.2.txt", Protocol::Pmi1, (0, 1), |mut client| {
        assert_eq!(text(client.get("PMI_hwloc_xmlfile")), None);
        assert_eq!(text(client.get("PMI_mpi_memory_alloc_kinds")), None);
        let app = SpawnApp {
            program: "/opt/example/app/tap.py".into(),
            args: ["/opt/example/app/bin/m502/spawn", "hello world", "a=b;c"].map(String::from).into(),
            ranks: 1,
            info: Vec::new(),
        };
        let info = vec![("wdir".into(), "/tmp".into()), ("mykey".into(), "my value".into())];
        let request = SpawnRequest {
            apps: vec![SpawnApp { info, ..app.clone() }, app],
            preput: vec![("PARENT_ROOT_PORT_NAME".into(), "tag#0$connentry#766D0002009039C0000202[8]$".into())],
        };
        assert_eq!(client.spawn(&request).unwrap().as_deref(), Some("kvs_23208.1"));
        client.finalize().unwrap();
    });
}

#[test]
fn pmi1_abort_has_no_reply() {
    replay("pmi1-abort-2ranks-mpich-5.0.2.txt", Protocol::Pmi1, (0, 2), |mut client| {
        assert!(client.get("PMI_process_mapping").unwrap().is_some());
        assert!(client.get("PMI_hwloc_xmlfile").unwrap().is_some());
        assert!(client.get("PMI_mpi_memory_alloc_kinds").unwrap().is_none());
        client.abort(42, "abort").unwrap();
    });
}

#[test]
fn pmi2_every_call_of_mpichs_client() {
    replay("pmi2-all-2ranks-mpichlib.txt", Protocol::Pmi2, (0, 2), |mut client| {
        assert_eq!((client.job_id(), client.appnum()), ("kvs_23706.0", Some(0)));
        pmi2_pairs_and_attributes(&mut client);
        client.put_node_attribute("na", "nodevalue").unwrap();
        assert_eq!(client.await_node_attribute("na").unwrap(), b"nodevalue");
        client.publish("s 1", "po rt").unwrap();
        assert_eq!(text(client.lookup("s 1")).as_deref(), Some("po rt"));
        assert_eq!(text(client.lookup("no")), None);
        client.unpublish("s 1").unwrap();
        client.finalize().unwrap();
    });
}

#[test]
fn pmi2_every_call_under_hydra_5() {
    replay("pmi2-all-2ranks-mpichlib-hydra.txt", Protocol::Pmi2, (0, 2), |mut client| {
        pmi2_pairs_and_attributes(&mut client);
        client.put_node_attribute("na", "nodevalue").unwrap();
        assert_eq!(client.await_node_attribute("na").unwrap(), b"nodevalue");
        client.publish("s 1", "po rt").unwrap();
        assert_eq!(text(client.lookup("s 1")).as_deref(), Some("po rt"));
        assert_eq!(text(client.lookup("no")), None);
        client.unpublish("s 1").unwrap();
        client.finalize().unwrap();
    });
}

/// The first half of both recordings: one server sends `found=FALSE`, the other one `rc=1`.
fn pmi2_pairs_and_attributes(client: &mut Client) {
    client.put("key-0", "a b=c-0").unwrap();
    client.fence().unwrap();
    assert_eq!(text(client.get("key-1")).as_deref(), Some("a b=c-1"));
    assert_eq!(text(client.get("nokey")), None);
    assert_eq!(text(client.job_attribute("PMI_process_mapping")).as_deref(), Some("(vector,(0,1,2))"));
    assert_eq!(text(client.job_attribute("nonesuch")), None);
    assert_eq!(text(client.node_attribute("na")), None);
}

#[test]
fn pmi2_semicolons_and_the_ring_under_slurm() {
    replay("pmi2-all-2ranks-slurmlib.txt", Protocol::Pmi2, (1, 2), |mut client| {
        client.put("key-1", "a;b;;c=d e-1;").unwrap();
        client.put("empty", "").unwrap();
        client.fence().unwrap();
        assert_eq!(text(client.get("key-0")).as_deref(), Some("a;b;;c=d e-0;"));
        assert_eq!(text(client.get("empty")).as_deref(), Some(""));
        assert_eq!(text(client.get("nokey")), None);
        assert_eq!(text(client.job_attribute("PMI_process_mapping")).as_deref(), Some("(vector,(0,1,2))"));
        assert_eq!(text(client.job_attribute("nonesuch")), None);
        assert_eq!(text(client.job_attribute("intarr")), None);
        assert_eq!(text(client.node_attribute("na")), None);
        assert_eq!(client.await_node_attribute("na").unwrap(), b"node;value");
        let neighbours = client.ring("ring1").unwrap();
        assert_eq!((neighbours.position, &*neighbours.left, &*neighbours.right), (1, &b"ring0"[..], &b"ring0"[..]));
        client.finalize().unwrap();
    });
}

#[test]
fn pmi2_names_under_slurm() {
    replay("pmi2-names-intelmpi-slurmlib.txt", Protocol::Pmi2, (0, 1), |mut client| {
        let port = "tag#0$connentry#020087B9C00002020000000000000000$";
        client.fence().unwrap();
        client.put("bc-0", "mpi#020087B9C00002020000000000000000$").unwrap();
        client.fence().unwrap();
        assert_eq!(text(client.get("bc-0")).as_deref(), Some("mpi#020087B9C00002020000000000000000$"));
        client.publish("svc one", port).unwrap();
        client.publish("svc1", port).unwrap();
        let refused = error(client.publish("svc1", port));
        assert_eq!(refused, "the PMI server refused `name-publish`: rc=1, duplicate");
        assert_eq!(text(client.lookup("svc1")).as_deref(), Some(port));
        assert_eq!(text(client.lookup("nosuch")), None);
        client.unpublish("svc1").unwrap();
        assert_eq!(error(client.unpublish("nosuch")), "the PMI server refused `name-unpublish`: rc=1");
        client.finalize().unwrap();
    });
}

#[test]
fn pmi2_spawn_of_two_programs() {
    replay("pmi2-spawn-mpichlib.txt", Protocol::Pmi2, (0, 1), |mut client| {
        let app = |args: &[&str]| SpawnApp {
            program: "/opt/example/app/bin/p2m".into(),
            args: args.iter().map(ToString::to_string).collect(),
            ranks: 1,
            info: Vec::new(),
        };
        let first = SpawnApp { info: vec![("wdir".into(), "/tmp".into())], ..app(&["child", "x y"]) };
        let request = SpawnRequest {
            apps: vec![first, app(&["child"])],
            preput: vec![("PARENT_ROOT_PORT_NAME".into(), "the port".into())],
        };
        assert_eq!(client.spawn(&request).unwrap().as_deref(), Some("kvs_23750.1"));
        client.finalize().unwrap();
    });
}
