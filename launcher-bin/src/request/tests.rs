use super::*;
use crate::prepared::tests::commanded;

fn requested(line: &str) -> Result<LaunchRequest, RequestError> {
    commanded(line).map(|command| command.request)
}

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
        let ranks: Vec<_> = request.programs.iter().map(|program| program.ranks.map(NonZeroU32::get)).collect();
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
    assert_eq!(placement.nodes, NonZeroU32::new(3));
    assert_eq!(placement.candidates, Candidates::Listed(["node2", "node0", "node1"].map(str::to_owned).to_vec()));
    assert_eq!(placement.except, ["node7"]);
    assert_eq!(placement.distribution, Some(Distribution::Cyclic));
    let hosts = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(hosts.path(), "node0 slots=4\nnode1:2\n").unwrap();
    let placement = requested(&format!("--hostfile {} true", hosts.path().display())).unwrap().placement;
    let Candidates::Hostfile(hosts) = placement.candidates else { panic!("{:?}", placement.candidates) };
    let hosts: Vec<_> = hosts.iter().map(|host| (host.node.as_str(), host.slots.get())).collect();
    assert_eq!(hosts, [("node0", 4), ("node1", 2)]);
    refused("--hostfile /nonexistent true", "cannot read the hostfile /nonexistent");
}

#[test]
fn a_detached_launch_waits_for_nobodys_input() {
    assert_eq!(requested("true").unwrap().settings.stdin, StdinTarget::Rank(Rank(0)));
    assert_eq!(requested("--detach true").unwrap().settings.stdin, StdinTarget::None);
    assert!(matches!(requested("--detach --stdin in true").unwrap().settings.stdin, StdinTarget::File(_)));
}

#[test]
fn the_fence_has_a_time_limit_if_it_is_asked_for() {
    assert_eq!(requested("true").unwrap().settings.timeouts.fence, None);
    assert_eq!(requested("--fence-timeout 30s true").unwrap().settings.timeouts.fence, Some(Duration::from_secs(30)));
    refused("--fence-timeout 0 true", "--fence-timeout: the time must be more than 0");
    refused("--fence-timeout 1 --pmi none true", "--fence-timeout and --pmi=none exclude each other");
}

#[test]
fn a_file_for_standard_input_is_named_from_our_directory() {
    let StdinTarget::File(template) = requested("--stdin in.%t true").unwrap().settings.stdin else {
        panic!("no file")
    };
    assert_eq!(template.to_text(), "/in.%r");
}

#[test]
fn a_reader_that_there_is_not_is_refused_as_soon_as_ranks_are_counted() {
    refused("-n 2 --stdin 2 true", "--stdin 2: there is no such rank; the job has ranks 0 to 1");
    assert!(requested("--stdin 2 true").is_ok(), "the nodes will tell");
}

#[test]
fn what_is_done_with_a_request_is_no_part_of_it() {
    let [start, plan] = ["-n 2 true", "--dry-run -n 2 true"].map(|line| commanded(line).unwrap());
    assert_eq!((start.action, plan.action), (Action::Start, Action::Plan));
    assert_eq!(start.request, plan.request);
    assert!(commanded("--pmi-trace t true").unwrap().request.settings.pmi_trace);
    assert!(!start.request.settings.pmi_trace);
}
