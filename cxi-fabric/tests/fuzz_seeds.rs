//! The fuzz targets as ordinary tests. Answers of the fake manager and of HPE's program, and mutations of them, go through the
//! same functions that the targets in `fuzz/` call.
//!
//! `cargo test -p cxi-fabric --test fuzz_seeds -- --ignored` writes the seeds to `fuzz/corpus/`.

mod scene;

use cxi_fabric::fuzzing;
use lattice_fuzz_seeds::{Target, mutations};
use proptest::prelude::*;
use scene::{fake, request, rest, soon, vnid};

/// All answers of a fake manager during the life of a service, for each back end and call.
fn answers() -> Vec<Vec<u8>> {
    let mut bodies = Vec::new();
    for make in [rest, vnid] {
        let fake = fake();
        let manager = make(&fake);
        let service = manager.create(&request(0), soon()).expect("made");
        manager.credentials(&service, soon()).expect("answered");
        manager.list(soon()).expect("listed");
        manager.delete(&service.id, soon()).expect("deleted");
        bodies.extend(fake.exchanges().into_iter().map(|exchange| match exchange.response {
            Some(body) => body.to_string().into_bytes(),
            None => Vec::new(),
        }));
    }
    bodies.push(b"<html>502</html>".to_vec());
    bodies.push(br#"{"detail": "no hunter22 here"}"#.to_vec());
    let statuses = [200_u16, 404, 409, 503, 400];
    let seeds = bodies
        .iter()
        .enumerate()
        .flat_map(|(number, body)| statuses.map(|status| [&[number as u8][..], &status.to_be_bytes(), body].concat()));
    seeds.collect()
}

/// Output of `cxi_service`, as in its manual page.
fn outputs() -> Vec<Vec<u8>> {
    let list = "cxi0\n----\n Total Device Resources\n ACs:  1022\n ID: 1 (DEFAULT)\n   LNIs/RGID          : 1\n   \
                Restricted Members : No\n   ---> Valid Members : All uids/gids\n   VNIs               : 1 10\n ID: 2\n   \
                ---> Valid Members : uid=1 gid=2\n   VNIs               : 64-127\n";
    vec![list.as_bytes().to_vec(), b"Successfully created service: 7\n".to_vec()]
}

fn texts() -> Vec<Vec<u8>> {
    let key = "ab12".repeat(8);
    let texts = ["no hunter22,\nno DEADBEEF", "Sun, 06 Nov 1994 08:49:37 GMT", "7", key.as_str()];
    texts.iter().map(|text| [b"\x08hunter22", text.as_bytes()].concat()).collect()
}

fn targets() -> [Target; 3] {
    [
        Target { name: "manager_answer", run: fuzzing::manager_answer, seeds: answers() },
        Target { name: "cxi_service", run: fuzzing::cxi_service, seeds: outputs() },
        Target { name: "error_text", run: fuzzing::error_text, seeds: texts() },
    ]
}

#[test]
fn every_seed_keeps_the_promises() {
    targets().iter().for_each(Target::run_seeds);
}

proptest! {
    #[test]
    fn an_answer_that_makes_no_sense_is_refused_by_the_deadline(bytes in mutations(answers())) {
        fuzzing::manager_answer(&bytes);
    }

    #[test]
    fn output_that_makes_no_sense_is_passed_over(bytes in mutations(outputs())) {
        fuzzing::cxi_service(&bytes);
    }

    #[test]
    fn no_secret_is_left_in_a_text_of_others(bytes in mutations(texts())) {
        fuzzing::error_text(&bytes);
    }
}

#[test]
#[ignore = "writes files: the seeds for cargo fuzz"]
fn write_seeds() {
    targets().iter().for_each(Target::write_seeds);
}
