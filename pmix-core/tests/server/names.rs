//! Names that ranks publish, find and withdraw: which of what they send is a name, and how long a look-up may wait.

use std::time::Duration;

use pmix_core::services::Call;
use pmix_core::wire::Encoding::{Fixed, Flex};
use pmix_core::wire::reader::Reader;
use pmix_core::wire::request::command;
use pmix_core::wire::status;
use pmix_core::wire::value::{Info, Value};

use super::world::{Client, World};

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

/// The names that are found, or the status of the refusal.
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
    let range = Info::new("pmix.range", Value::U32(4));
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
    let limit = pmix_core::server::Settings::default().bytes_per_rank;
    let large = vec![7; limit / 16 * 3];
    publish(&mut world, b, &[Info::new("y", Value::Bool(true))]);
    let all =
        [Info::new("x", Value::Bytes(&large)), Info::new("y", Value::Bool(true)), Info::new("z", Value::Bool(true))];
    for _ in 0..6 {
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
fn what_a_rank_publishes_counts_as_if_it_had_committed_it() {
    let (mut world, [greedy, other]) = two();
    let limit = pmix_core::server::Settings::default().bytes_per_rank;
    let large = vec![7; limit / 16];
    for name in ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l", "m", "n", "o"] {
        assert_eq!(publish(&mut world, greedy, &[Info::new(name, Value::Bytes(&large))]), status::SUCCESS);
    }
    let sixteenth = [Info::new("p", Value::Bytes(&large))];
    assert_eq!(publish(&mut world, greedy, &sixteenth), status::OUT_OF_RESOURCE);
    assert_eq!(look_up(&mut world, other, &["p"], &[]), Err(status::NOT_FOUND), "refused, and published");
    assert_eq!(publish(&mut world, greedy, &[Info::new("small", Value::Bool(true))]), status::SUCCESS);
    assert_eq!(publish(&mut world, other, &sixteenth), status::SUCCESS, "the bytes of others do not count");
}
