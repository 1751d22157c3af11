//! Names that ranks publish, find and withdraw: the infos that are names, and the wait of a lookup.

use std::time::Duration;

use pmix_core::services::Call;
use pmix_core::wire::Encoding::{Fixed, Flex};
use pmix_core::wire::reader::{Proc, Reader};
use pmix_core::wire::request::command;
use pmix_core::wire::value::{Info, Value};
use pmix_core::wire::{status, types};

use super::world::{Client, World, seat};

fn publish(world: &mut World, client: Client, infos: &[Info<'_>]) -> i32 {
    world.send(client, 101, command::PUBLISH, |out| {
        out.one();
        out.u32(0);
        out.count(infos.len());
        out.group(infos.len());
        infos.iter().for_each(|info| out.info(info));
    });
    world.status(client).unwrap().0
}

/// The found names, or the status of the refusal.
fn look_up(world: &mut World, client: Client, names: &[&str], infos: &[Info<'_>]) -> Result<Vec<String>, i32> {
    world.send(client, 102, command::LOOKUP, |out| {
        write_names(out, names);
        out.count(infos.len());
        out.group(infos.len());
        infos.iter().for_each(|info| out.info(info));
    });
    let (code, rest) = world.status(client).unwrap();
    if code != status::SUCCESS {
        return Err(code);
    }
    let mut reader = Reader::new(client.encoding, &rest);
    let count = reader.count().unwrap();
    reader.group_of(count).unwrap();
    let name = |_| {
        reader.proc().unwrap();
        let name = String::from_utf8(reader.required_text("a name").unwrap().to_vec()).unwrap();
        reader.value().unwrap();
        name
    };
    Ok((0..count).map(name).collect())
}

fn unpublish(world: &mut World, client: Client, names: &[&str]) -> i32 {
    world.send(client, 103, command::UNPUBLISH, |out| {
        write_names(out, names);
        out.count(0);
    });
    world.status(client).unwrap().0
}

fn write_names(out: &mut pmix_core::wire::writer::Writer, names: &[&str]) {
    out.one();
    out.u32(0);
    out.count(names.len());
    for name in names {
        out.one();
        out.text(Some(name.as_bytes()));
    }
}

fn two() -> (World, [Client; 2]) {
    let mut world = World::new(2, &[1]);
    let clients = [("job0", Flex), ("job1", Fixed)].map(|(job, encoding)| world.join(0, job, 0, encoding).unwrap());
    (world, clients)
}

#[test]
fn values_are_published_and_directives_are_not() {
    let (mut world, [a, b]) = two();
    let number = |key: &'static str| Info::new(key, Value::U32(1));
    let range = Info::new("pmix.range", Value::Range(types::RANGE_SESSION));
    assert_eq!(publish(&mut world, a, &[number("x"), range, number("y"), number("pmix.euid")]), status::SUCCESS);
    assert_eq!(look_up(&mut world, b, &["x", "y"], &[]), Ok(vec!["x".to_owned(), "y".to_owned()]));
    for directive in ["pmix.range", "pmix.euid"] {
        assert_eq!(look_up(&mut world, b, &[directive], &[]), Err(status::NOT_FOUND), "{directive}");
    }
}

#[test]
fn a_look_up_that_does_not_wait_brings_what_there_is() {
    let (mut world, [a, b]) = two();
    publish(&mut world, a, &[Info::new("x", Value::Bool(true))]);
    assert_eq!(look_up(&mut world, b, &["w", "x", "y"], &[]), Ok(vec!["x".to_owned()]));
    assert_eq!(look_up(&mut world, b, &["w", "y"], &[]), Err(status::NOT_FOUND));
    assert_eq!(look_up(&mut world, b, &[], &[]), Err(status::NOT_FOUND));
}

#[test]
fn a_name_that_was_withdrawn_can_be_published_again_by_another_job() {
    let (mut world, [a, b]) = two();
    let x = [Info::new("x", Value::Bool(true))];
    assert_eq!(publish(&mut world, a, &x), status::SUCCESS);
    assert_eq!(publish(&mut world, b, &x), status::DUPLICATE_KEY);
    assert_eq!(unpublish(&mut world, a, &["x", "never"]), status::SUCCESS);
    assert_eq!(look_up(&mut world, b, &["x"], &[]), Err(status::NOT_FOUND));
    assert_eq!(publish(&mut world, b, &x), status::SUCCESS);
    assert_eq!(look_up(&mut world, a, &["x"], &[]), Ok(vec!["x".to_owned()]));
}

#[test]
fn of_several_names_all_are_published_or_none() {
    let (mut world, [a, b]) = two();
    let large = vec![7; 60 << 10];
    publish(&mut world, b, &[Info::new("y", Value::Bool(true))]);
    let all =
        [Info::new("x", Value::Bytes(&large)), Info::new("y", Value::Bool(true)), Info::new("z", Value::Bool(true))];
    for _ in 0..200 {
        assert_eq!(publish(&mut world, a, &all), status::DUPLICATE_KEY, "its bytes are given back");
        assert_eq!(look_up(&mut world, b, &["x", "y", "z"], &[]), Ok(vec!["y".to_owned()]));
    }
    assert_eq!(unpublish(&mut world, b, &["y"]), status::SUCCESS);
    assert_eq!(publish(&mut world, a, &all), status::SUCCESS);
    assert_eq!(look_up(&mut world, b, &["x", "y", "z"], &[]).unwrap().len(), 3);
}

#[test]
fn a_look_up_waits_when_it_says_so_and_as_long_as_it_says() {
    let year = Duration::from_secs(365 * 24 * 3600);
    let seconds = |seconds| Some(Duration::from_secs(seconds));
    let timeout = |seconds| Info::new("pmix.timeout", Value::Int(seconds));
    let wait = |names| Info::new("pmix.wait", Value::Int(names));
    let cases = [
        (vec![], None),
        (vec![timeout(3)], None),
        (vec![wait(0)], Some(year)),
        (vec![wait(1), timeout(3)], seconds(3)),
        (vec![timeout(3), wait(2)], seconds(3)),
        (vec![wait(0), timeout(0)], Some(year)),
        (vec![wait(0), timeout(-1)], Some(year)),
    ];
    for (directives, expected) in cases {
        let (mut world, [client, _]) = two();
        publish(&mut world, client, &[Info::new("x", Value::Bool(true))]);
        assert!(look_up(&mut world, client, &["x"], &directives).is_ok());
        let Some(Call::Lookup { timeout, .. }) = world.calls.last() else { panic!("{:?}", world.calls) };
        assert_eq!(*timeout, expected, "{directives:?}");
    }
}

#[test]
fn a_rank_publishes_and_withdraws_as_often_as_it_likes() {
    let (mut world, [a, b]) = two();
    let large = vec![7; 60 << 10];
    for number in 0..2000 {
        let name = format!("name {number}");
        assert_eq!(publish(&mut world, a, &[Info::new(&name, Value::Bytes(&large))]), status::SUCCESS, "{name}");
        assert_eq!(unpublish(&mut world, a, &[&name]), status::SUCCESS);
    }
    let longer = vec![7; 64 << 10];
    assert_eq!(publish(&mut world, a, &[Info::new("long", Value::Bytes(&longer))]), status::OUT_OF_RESOURCE);
    assert_eq!(look_up(&mut world, b, &["long"], &[]), Err(status::NOT_FOUND));
}

/// Ranks 0 and 1 of a job on node 0, rank 2 of it on node 1, and rank 0 of another job on node 0.
fn four() -> (World, [Client; 4]) {
    let mut world = World::new(2, &[2, 1]);
    let clients = [(0, "job0", 0, Flex), (0, "job0", 1, Fixed), (1, "job0", 2, Flex), (0, "job1", 0, Flex)];
    let clients = clients.map(|(node, job, rank, encoding)| world.join(node, job, rank, encoding).unwrap());
    (world, clients)
}

#[test]
fn a_value_is_found_within_its_range_and_that_of_the_look_up() {
    let listed = [Proc { namespace: b"job0.secret", rank: 2 }, Proc { namespace: b"job1", rank: types::RANK_WILDCARD }];
    let chosen = || Info::new("pmix.evrange", Value::Procs(listed.to_vec()));
    let permissions = || Info::new("pmix.auids", Value::U32(0));
    let range = |range| Info::new("pmix.range", Value::Range(range));
    let all = [true; 4];
    let cases = [
        (vec![], all, Some(all)),
        (vec![range(types::RANGE_UNDEFINED)], all, Some(all)),
        (vec![range(types::RANGE_RM)], [false; 4], Some([false; 4])),
        (vec![range(types::RANGE_LOCAL)], [true, true, false, true], Some([true, true, false, true])),
        (vec![range(types::RANGE_NAMESPACE)], [true, true, true, false], Some([true, true, true, false])),
        (vec![range(types::RANGE_SESSION)], all, Some(all)),
        (vec![range(types::RANGE_GLOBAL)], all, Some(all)),
        (vec![range(types::RANGE_CUSTOM), chosen()], [false, false, true, true], None),
        (vec![range(types::RANGE_CUSTOM), permissions()], all, None),
        (vec![range(types::RANGE_PROC_LOCAL)], [true, false, false, false], Some([true, false, false, false])),
        // As Open MPI 4 sends it.
        (vec![Info::new("pmix.range", Value::Int(3))], [true, true, true, false], Some([true, true, true, false])),
    ];
    for (directives, published, searched) in cases {
        let found = |world: &mut World, clients: [Client; 4], infos: &[Info<'_>]| {
            clients.map(|client| look_up(world, client, &["x"], infos).is_ok())
        };
        let (mut world, clients) = four();
        let infos = [&[Info::new("x", Value::Bool(true))], &directives[..]].concat();
        assert_eq!(publish(&mut world, clients[0], &infos), status::SUCCESS);
        assert_eq!(found(&mut world, clients, &[]), published, "published in {directives:?}");
        let (mut world, clients) = four();
        let Some(searched) = searched else { continue };
        publish(&mut world, clients[0], &[Info::new("x", Value::Bool(true)), range(types::RANGE_GLOBAL)]);
        assert_eq!(found(&mut world, clients, &directives), searched, "searched in {directives:?}");
    }
    let (mut world, [client, ..]) = four();
    for refused in [range(types::RANGE_CUSTOM), range(8), Info::new("pmix.persist", Value::Persistence(9))] {
        let infos = [Info::new("x", Value::Bool(true)), refused];
        assert_eq!(publish(&mut world, client, &infos), status::BAD_PARAM, "{infos:?}");
    }
    // A number that Open MPI has not initialized.
    publish(&mut world, client, &[Info::new("x", Value::Bool(true))]);
    assert!(look_up(&mut world, client, &["x"], &[range(200)]).is_ok());
}

#[test]
fn a_value_is_withdrawn_by_its_publisher_alone_and_may_go_with_its_process() {
    let (mut world, [a, other, ..]) = four();
    let of_process = Info::new("pmix.persist", Value::Persistence(types::PERSIST_PROC));
    publish(&mut world, a, &[Info::new("stays", Value::Bool(true))]);
    publish(&mut world, a, &[Info::new("goes", Value::Bool(true)), of_process]);
    assert_eq!(unpublish(&mut world, other, &["stays"]), status::NO_PERMISSIONS);
    let names = ["goes", "stays"];
    assert_eq!(look_up(&mut world, other, &names, &[]).unwrap(), names);
    world.nodes[0].handle_death(seat(0, 0));
    world.run();
    assert_eq!(look_up(&mut world, other, &names, &[]).unwrap(), ["stays"]);
}
