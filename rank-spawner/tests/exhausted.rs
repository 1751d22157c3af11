//! Results of calls when no process or descriptor is left. The program has two roles: with the name of a call as argument it lowers its own
//! limits and makes the call; without, it is the test.

mod world;

use std::process::Command;

use nix::sys::prctl;
use nix::sys::resource::{Resource, setrlimit};
use nix::unistd::{Gid, Uid, setresgid, setresuid};
use rank_spawner::{Account, Keeper};
use world::Tests;

/// User without other processes: root is exempt from its limit on processes.
const USER: u32 = 54_341;

fn main() {
    match std::env::args().nth(1).as_deref() {
        Some("keeper") => keeper(),
        Some("account") => account(),
        _ => {
            let tests = Tests::from_args();
            tests.check("a_launcher_without_a_keeper_keeps_its_name", || {
                let text = said("keeper");
                assert!(text.starts_with("exhausted") && text.contains(": cannot make the process that"), "{text}");
            });
            tests.check("a_database_that_cannot_be_asked_is_told_from_a_name_that_it_does_not_know", || {
                assert_eq!(said("account"), "cannot look up user \"root\": Too many open files");
            });
        }
    }
}

fn said(call: &str) -> String {
    let output = Command::new(std::env::current_exe().unwrap()).arg(call).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn keeper() {
    if Uid::effective().is_root() {
        let (user, group) = (Uid::from_raw(USER), Gid::from_raw(USER));
        setresgid(group, group, group).unwrap();
        setresuid(user, user, user).unwrap();
    }
    setrlimit(Resource::RLIMIT_NPROC, 0, 0).unwrap();
    let error = Keeper::fork().unwrap_err();
    print!("{}: {error}", prctl::get_name().unwrap().to_string_lossy());
}

fn account() {
    setrlimit(Resource::RLIMIT_NOFILE, 3, 3).unwrap();
    print!("{}", Account::named("root").unwrap_err());
}
