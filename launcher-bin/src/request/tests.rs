use super::*;
use crate::placed::tests::requested;

fn refused(line: &str, expected: &str) {
    match requested(line) {
        Err(error) => assert!(error.to_string().contains(expected), "{line}: {error}"),
        Ok(_) => panic!("{line} was not refused"),
    }
}

#[test]
fn ranks_are_counted_as_far_as_they_can_be() {
    let check = |line: &str, expected: &[Option<u32>]| {
        let request = requested(line).unwrap();
        let ranks: Vec<_> = request.programs.iter().map(|program| program.ranks).collect();
        assert_eq!(ranks, expected, "{line}");
    };
    check("true", &[None]);
    check("-N 2 --tasks-per-node 3 true", &[None]);
    check("-N 2 --tasks-per-node 3 -n 5 true", &[Some(5)]);
    check("true : -n 3 true", &[Some(1), Some(3)]);
    refused("-n 2147483647 true : -n 2147483647 true", "4294967294 ranks together");
}

#[test]
fn nodes_are_named_as_the_user_named_them() {
    let placement = requested("-N 3 -w node[2,0-1] -x node7 --distribution cyclic true").unwrap().placement;
    assert_eq!(placement.nodes, Some(3));
    assert_eq!(placement.only.as_deref(), Some("node[2,0-1]"));
    assert_eq!(placement.except.as_deref(), Some("node7"));
    assert_eq!(placement.distribution, Some(Distribution::Cyclic));
    let hosts = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(hosts.path(), "node0 slots=4\nnode1:2\n").unwrap();
    let placement = requested(&format!("--hostfile {} true", hosts.path().display())).unwrap().placement;
    let hosts: Vec<_> = placement.hosts.iter().map(|host| (host.node.as_str(), host.slots)).collect();
    assert_eq!(hosts, [("node0", 4), ("node1", 2)]);
    refused("--hostfile /nonexistent true", "cannot read the hostfile /nonexistent");
}

#[test]
fn a_detached_launch_waits_for_nobodys_input() {
    assert_eq!(requested("true").unwrap().stdin, Input::Rank(Rank(0)));
    assert_eq!(requested("--detach true").unwrap().stdin, Input::None);
    assert!(matches!(requested("--detach --stdin in true").unwrap().stdin, Input::File { .. }));
}

#[test]
fn the_fence_has_a_time_limit_if_it_is_asked_for() {
    assert_eq!(requested("true").unwrap().patience.fence, None);
    assert_eq!(requested("--fence-timeout 30s true").unwrap().patience.fence, Some(Duration::from_secs(30)));
    refused("--fence-timeout 0 true", "--fence-timeout: the time must be more than 0");
    refused("--fence-timeout 1 --pmi none true", "--fence-timeout and --pmi=none exclude each other");
}

#[test]
fn percent_signs_in_our_directory_are_no_escapes() {
    let path = absolute_template(Path::new("/a%r/b"), Path::new("in.%r"));
    assert_eq!(path, Path::new("/a%%r/b/in.%r"));
    assert_eq!(absolute_template(Path::new("/a%r/b"), Path::new("/in.%r")), Path::new("/in.%r"));
}
