//! Job controls: files to remove at the end of ranks.

use std::path::PathBuf;

use pmix_core::CleanUp;
use pmix_core::wire::Encoding::Flex;
use pmix_core::wire::reader::Proc;
use pmix_core::wire::request::command;
use pmix_core::wire::status;
use pmix_core::wire::types::RANK_WILDCARD;
use pmix_core::wire::value::{Info, Value};

use super::world::{Client, World, seat};

fn scene() -> (World, Client) {
    let mut world = World::new(1, &[2]);
    let client = world.join(0, "job0", 0, Flex).unwrap();
    (world, client)
}

pub(crate) fn control(world: &mut World, client: Client, targets: &[Proc<'_>], infos: &[Info<'_>]) -> i32 {
    world.send(client, 101, command::JOB_CONTROL, |out| {
        out.count(targets.len());
        out.group(targets.len());
        targets.iter().for_each(|&target| out.proc(target));
        out.count(infos.len());
        out.group(infos.len());
        infos.iter().for_each(|info| out.info(info));
    });
    world.status(client).unwrap().0
}

fn paths(list: &[&str]) -> Vec<PathBuf> {
    list.iter().map(PathBuf::from).collect()
}

#[test]
fn each_directive_says_one_thing_about_what_is_removed() {
    let text = |key: &'static str, list: &'static str| Info::new(key, Value::Text(list.as_bytes()));
    let on = |key: &'static str| Info::new(key, Value::Bool(true));
    let nothing = CleanUp::default();
    let cases = [
        (vec![text("pmix.reg.cleanup", "/a")], CleanUp { files: paths(&["/a"]), ..nothing.clone() }),
        (vec![text("pmix.reg.cleanup", "/a,b,/c,")], CleanUp { files: paths(&["/a", "/c"]), ..nothing.clone() }),
        (vec![text("pmix.reg.cleanupdir", "/d")], CleanUp { directories: paths(&["/d"]), ..nothing.clone() }),
        (vec![text("pmix.clnup.ignore", "/d/keep")], CleanUp { spared: paths(&["/d/keep"]), ..nothing.clone() }),
        (vec![on("pmix.clnup.recurse")], CleanUp { recursive: true, ..nothing.clone() }),
        (vec![on("pmix.clnup.lvtop")], CleanUp { leave_directory: true, ..nothing.clone() }),
        (vec![], nothing),
    ];
    for (directives, expected) in cases {
        let (mut world, client) = scene();
        assert_eq!(control(&mut world, client, &[], &directives), status::SUCCESS, "{directives:?}");
        assert_eq!(world.registered, expected.files, "a host hears of them at once");
        assert_eq!(world.nodes[0].take_clean_up(seat(0, 0)), [expected], "{directives:?}");
        assert_eq!(world.nodes[0].take_clean_up(seat(0, 0)), [], "it is taken once");
    }
}

#[test]
fn a_control_that_asks_for_something_else_too_registers_nothing() {
    let (mut world, client) = scene();
    let file = Info::new("pmix.reg.cleanup", Value::Text(b"/a"));
    for other in ["pmix.jctrl.kill", "pmix.jctrl.pause", "pmix.jctrl.sig", "anything"] {
        let directives = [file.clone(), Info::new(other, Value::Bool(true))];
        assert_eq!(control(&mut world, client, &[], &directives), status::NOT_SUPPORTED, "{other}");
    }
    assert_eq!(world.nodes[0].take_clean_up(seat(0, 0)), []);
}

#[test]
fn a_rank_registers_for_itself_by_whatever_name_it_has() {
    let file = [Info::new("pmix.reg.cleanup", Value::Text(b"/a"))];
    for (namespace, rank, expected) in [
        ("job0", 0, status::SUCCESS),
        ("job0", RANK_WILDCARD, status::SUCCESS),
        ("job0", 1, status::NOT_SUPPORTED),
        ("elsewhere", 0, status::NOT_SUPPORTED),
    ] {
        let (mut world, client) = scene();
        let target = [Proc { namespace: namespace.as_bytes(), rank }];
        assert_eq!(control(&mut world, client, &target, &file), expected, "{rank} of {namespace}");
        let registered = usize::from(expected == status::SUCCESS);
        assert_eq!(world.nodes[0].take_clean_up(seat(0, 0)).len(), registered, "{rank} of {namespace}");
        assert_eq!(world.nodes[0].take_clean_up(seat(0, 1)), [], "another rank's files");
    }
}

/// Each program of a rank that runs again registers its shared memory again.
#[test]
fn files_that_are_registered_again_take_no_room() {
    let (mut world, client) = scene();
    for _ in 0..1000 {
        let file = [Info::new("pmix.reg.cleanup", Value::Text(b"/a"))];
        assert_eq!(control(&mut world, client, &[], &file), status::SUCCESS);
    }
    assert_eq!(world.registered, paths(&["/a"]), "a host is told once");
    assert_eq!(world.nodes[0].take_clean_up(seat(0, 0)).len(), 1);
}

#[test]
fn a_rank_may_register_a_bounded_number_of_paths() {
    const MAX: usize = 256;
    let (mut world, client) = scene();
    let list = vec!["/a"; MAX - 1].join(",");
    let many = [Info::new("pmix.reg.cleanup", Value::Text(list.as_bytes()))];
    let one = |file: &'static str| [Info::new("pmix.reg.cleanup", Value::Text(file.as_bytes()))];
    assert_eq!(control(&mut world, client, &[], &many), status::SUCCESS);
    assert_eq!(control(&mut world, client, &[], &one("/b,/c")), status::OUT_OF_RESOURCE);
    assert_eq!(control(&mut world, client, &[], &one("/b")), status::SUCCESS);
    assert_eq!(control(&mut world, client, &[], &one("/c")), status::OUT_OF_RESOURCE);
    assert_eq!(control(&mut world, client, &[], &one("/b")), status::SUCCESS, "it is there");
    assert!(world.end.is_none());
}
