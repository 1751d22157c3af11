//! Session keyrings of users without a key to spare. The program has two roles: with the word `become` it becomes the user and runs a script;
//! without, it is the test.

mod world;

use std::os::unix::process::CommandExt;
use std::process::Command;

use nix::libc;
use nix::unistd::Uid;
use rank_spawner::{Account, Privileges, become_user};
use world::Tests;

/// User without other processes.
const USER: u32 = 54_331;

fn main() {
    let tests = Tests::from_args();
    let words: Vec<String> = std::env::args().skip(1).collect();
    if let [word, script] = &words[..]
        && word == "become"
    {
        let (name, home, shell) = (String::new(), "/".into(), "/bin/sh".into());
        become_user(&Account { uid: USER, gid: USER, name, home, shell }, &Privileges::default()).unwrap();
        panic!("{}", Command::new("sh").args(["-c", script]).exec());
    }
    let name = "a_user_without_a_key_to_spare_gets_a_session_and_finds_no_key_of_the_agents";
    match Uid::effective().is_root() {
        true => tests.check(name, a_user_without_a_key_to_spare_gets_a_session),
        false => println!("not root: becoming other users is left out"),
    }
}

/// Command that prints 1 if a system call succeeds, otherwise 0.
fn call(number: i64, arguments: &str) -> String {
    format!("perl -e '@a=({arguments});print(0<syscall({number},@a)?1:0)'")
}

/// Output of the user's shell.
fn as_user(script: &str) -> String {
    let output = Command::new("sh").args(["-c", script]).uid(USER).gid(USER).current_dir("/").output().unwrap();
    String::from_utf8([output.stdout, output.stderr].concat()).unwrap()
}

/// An agent with a session keyring, like a systemd service. Without one the kernel does not count a joined session keyring.
fn a_user_without_a_key_to_spare_gets_a_session() {
    let add = |name: &str, keyring: &str| {
        format!(r#"@a=("user","{name}","x",1,{keyring});0<syscall({},@a)"#, libc::SYS_add_key)
    };
    let fill = format!(r#"perl -e 'for($i=0;$i<100000;$i++){{{} or last}}print $!'"#, add("lattice$i", "-4"));
    let full = as_user(&fill);
    // KEYCTL_JOIN_SESSION_KEYRING, KEYCTL_SEARCH in the session keyring, KEYCTL_CLEAR of the user's keyring.
    let keyctl = libc::SYS_keyctl;
    let join = format!(r#"@a=(1,0);0<syscall({keyctl},@a) or die;{} or die;exec @ARGV"#, add("agents", "-3"));
    let search = |name: &str| call(keyctl, &format!(r#"10,-3,"user","{name}",0"#));
    let mut agent = Command::new("perl");
    agent.args(["-e", &join, "--"]).arg(std::env::current_exe().unwrap());
    let said = agent.args(["become", &format!("{};{}", search("lattice0"), search("agents"))]).output();
    let _ = as_user(&format!("perl -e '@a=(7,-4);syscall({keyctl},@a)'"));
    let said = said.unwrap();
    assert_eq!(full, "Disk quota exceeded");
    let (found, error) = (String::from_utf8_lossy(&said.stdout), String::from_utf8_lossy(&said.stderr));
    assert_eq!(found, "10", "the user's key, and not the agent's: {error}");
}
