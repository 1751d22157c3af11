//! Sets of one process that find each other through a directory.

use std::path::Path;

use lattice_overlay::directory::{Kin, UnixSeconds, VARIABLE};
use pmi_core::ids::{Epoch, JobId, NodeIndex, Rank};
use pmi_core::job::Job;
use pmi_core::services::{
    Lifetime, MeetError, Meeting, Met, MetJob, NameCall, NameError, NameRange, NameRequest, Program, Publisher,
    Services,
};
use tempfile::TempDir;

use super::*;

mod hostile;

const SECOND: Duration = Duration::from_secs(1);

fn set(place: &Path, launch: &str) -> OwnSet {
    let facts = SetFacts {
        launch: Some(launch.to_owned()),
        ranks: 3,
        nodes: 1,
        command: "./a.out".to_owned(),
        begun: UnixSeconds::now(),
        kin: Kin::default(),
    };
    OwnSet::new(Some(place.to_owned()), facts)
}

/// Returns the set of a launch with these programs and ancestors.
fn kin_set(place: &Path, launch: &str, kin: Kin) -> OwnSet {
    let facts = SetFacts { launch: Some(launch.to_owned()), ranks: 3, nodes: 1, kin, ..SetFacts::default() };
    OwnSet::new(Some(place.to_owned()), facts)
}

/// Publishes a name as rank 0, with the range of the user.
async fn publish(
    set: &OwnSet,
    service: &'static str,
    port: &'static str,
    lifetime: Lifetime,
) -> Result<Bytes, NameError> {
    let range = NameRange::User;
    let call = NameCall::Publish { service: service.into(), port: port.into(), lifetime, range };
    let mut request = NameRequest::of(Rank(0), call);
    let (name, line) = set.0.facts.kin.programs.first().copied().unwrap_or_default();
    request.user.program = Program { name, line };
    set.name(request).await
}

async fn look_up(set: &OwnSet, service: &'static str, timeout: Option<Duration>) -> Result<Bytes, NameError> {
    let call = NameCall::Lookup { service: service.into(), timeout, range: NameRange::User };
    set.name(NameRequest::of(Rank(1), call)).await
}

async fn unpublish(set: &OwnSet, service: &'static str) -> Result<Bytes, NameError> {
    let call = NameCall::Unpublish { service: service.into(), publisher: Publisher::AnyOfLaunch };
    set.name(NameRequest::of(Rank(1), call)).await
}

fn home() -> (TempDir, PathBuf) {
    let home = tempfile::tempdir().unwrap();
    let place = home.path().join("sets");
    (home, place)
}

fn namespace(launch: &str) -> String {
    format!("kvs_{launch}_0")
}

/// Returns the contribution of `launch` to a meeting with the jobs of `others`.
fn meeting(launch: &str, others: &[&str]) -> Meeting {
    let job = Job::on_one_node(JobId::new(&namespace(launch)).unwrap(), 3);
    Meeting {
        name: "connect".to_owned(),
        epoch: Epoch(0),
        others: others.iter().map(|other| namespace(other)).collect(),
        nodes: vec![NodeIndex(0)],
        jobs: vec![MetJob { namespace: namespace(launch), job, hosts: vec!["here".to_owned()] }],
        segments: Vec::new(),
    }
}

fn names(met: &Met) -> Vec<&str> {
    met.jobs.iter().map(|job| job.namespace.as_str()).collect()
}

#[tokio::test]
async fn a_set_that_nobody_needs_leaves_no_trace() {
    let (_home, place) = home();
    let idle = set(&place, "idle");
    assert_eq!(look_up(&idle, "bay", None).await, Err(NameError::NotFound));
    assert_eq!(idle.sets().await.unwrap(), []);
    idle.leave().await;
    assert!(!place.exists());
}

#[tokio::test]
async fn a_set_is_founded_when_somebody_looks_for_it() {
    let (_home, place) = home();
    let launch = format!("sought{}", std::process::id());
    let sought = set(&place, &launch);
    let founding = tokio::spawn(sought.clone().found_on_demand(3600 * SECOND));
    let asked = blocking({
        let (launch, place) = (launch.clone(), place.clone());
        move || {
            // Lookups of other tests make all launches on this machine create their sets.
            let found = || Directory::open_existing(&place).ok()??.find_launch(&launch).ok()?;
            while !activation::activate(&launch) && found().is_none() {
                std::thread::yield_now();
            }
            // No process waits at that socket any more.
            activation::activate(&launch)
        }
    });
    assert!(!asked.await.unwrap());
    founding.await.unwrap();
    let found = Directory::open(&place).unwrap().find_launch(&launch).unwrap();
    assert_eq!(found, Some(sought.found().await.unwrap()));
    sought.leave().await;
}

#[tokio::test(start_paused = true)]
async fn a_set_that_nobody_looks_for_is_not_founded_where_no_other_machine_sees_it() {
    let home = tempfile::tempdir_in("/dev/shm").unwrap();
    let place = home.path().join("sets");
    let set = set(&place, &format!("idle{}", std::process::id()));
    let founding = tokio::spawn(set.clone().found_on_demand(5 * SECOND));
    tokio::time::sleep(3600 * SECOND).await;
    assert!(!place.exists());
    founding.abort();
    set.leave().await;
}

#[tokio::test]
async fn a_published_name_is_found_by_other_sets_and_goes_with_its_own() {
    let (_home, place) = home();
    let [a, b] = ["a", "b"].map(|launch| set(&place, launch));
    publish(&a, "bay", "port", Lifetime::Withdrawn).await.unwrap();
    let holder = "rank 0 of launch a".to_owned();
    let again = publish(&a, "bay", "other", Lifetime::Withdrawn).await;
    assert_eq!(again, Err(NameError::AlreadyPublished { holder }));
    assert_eq!(look_up(&b, "bay", None).await, Ok("port".into()));
    assert_eq!(unpublish(&b, "bay").await, Err(NameError::NotFound), "it is the other launch's");
    publish(&b, "bay", "own", Lifetime::Withdrawn).await.unwrap();
    assert_eq!([look_up(&a, "bay", None).await, look_up(&b, "bay", None).await], [Ok("port".into()), Ok("own".into())]);
    unpublish(&b, "bay").await.unwrap();
    assert_eq!(look_up(&b, "bay", None).await, Ok("port".into()));
    a.leave().await;
    assert_eq!(look_up(&b, "bay", None).await, Err(NameError::NotFound));
    b.leave().await;
}

#[tokio::test]
async fn a_lookup_waits_as_long_as_it_said() {
    let (_home, place) = home();
    let [a, b] = ["a", "b"].map(|launch| set(&place, launch));
    let soon = Some(Duration::from_millis(30));
    assert_eq!(look_up(&a, "late", soon).await, Err(NameError::TimedOut));
    let waiting = tokio::spawn({
        let a = a.clone();
        async move { look_up(&a, "late", Some(60 * SECOND)).await }
    });
    publish(&b, "late", "port", Lifetime::FirstRead).await.unwrap();
    assert_eq!(waiting.await.unwrap(), Ok("port".into()));
    assert_eq!(look_up(&b, "late", None).await, Err(NameError::NotFound), "it was read there");
    publish(&b, "late", "again", Lifetime::FirstRead).await.unwrap();
    assert_eq!(look_up(&b, "late", None).await, Ok("again".into()));
    assert_eq!(look_up(&a, "late", None).await, Err(NameError::NotFound));
    a.leave().await;
    b.leave().await;
}

/// Two copies of a program with a server and a client. The second copy's client looks before its own server has published.
#[tokio::test]
async fn two_copies_of_a_coupled_program_never_meet() {
    let (_home, place) = home();
    let coupled = |line| Kin { ancestors: vec![7], programs: vec![(1, line)] };
    for lines in [[1, 1], [1, 2]] {
        let [a, b] = [("a", lines[0]), ("b", lines[1])].map(|(id, line)| kin_set(&place, id, coupled(line)));
        let look = |set: &OwnSet| {
            let set = set.clone();
            tokio::spawn(async move { look_up(&set, "bay", Some(60 * SECOND)).await })
        };
        // Both launches already look. The published name is for the launch's own client.
        let waiting = [look(&a), look(&b)];
        while !(a.0.names.lock().has_sought(b"bay") && b.0.names.lock().has_sought(b"bay")) {
            tokio::task::yield_now().await;
        }
        publish(&a, "bay", "port of a", Lifetime::Withdrawn).await.unwrap();
        assert_eq!(look_up(&b, "bay", None).await, Err(NameError::NotFound));
        publish(&b, "bay", "port of b", Lifetime::Withdrawn).await.unwrap();
        let [of_a, of_b] = waiting;
        assert_eq!((of_a.await.unwrap(), of_b.await.unwrap()), (Ok("port of a".into()), Ok("port of b".into())));
        a.leave().await;
        b.leave().await;
    }
}

/// Two scripts, each of which starts a server and a client as separate launches.
#[tokio::test]
async fn a_client_finds_the_server_that_the_same_script_has_started() {
    let (_home, place) = home();
    let launch = |id: String, script, program| {
        let ancestors = vec![script, 100];
        kin_set(&place, &id, Kin { ancestors, programs: vec![(program, program)] })
    };
    let tag = std::process::id();
    let [server, other_server] = [1, 2].map(|script| launch(format!("s{script}-{tag}"), script, 10));
    let [client, other_client] = [1, 2].map(|script| launch(format!("c{script}-{tag}"), script, 20));
    publish(&other_server, "bay", "2", Lifetime::Withdrawn).await.unwrap();
    // The server was started, and has not published its name.
    let founding = tokio::spawn(server.clone().found_on_demand(3600 * SECOND));
    while !blocking(|| std::fs::read_to_string("/proc/net/unix").unwrap()).await.unwrap().contains(&format!("s1-{tag}"))
    {
        tokio::task::yield_now().await;
    }
    assert_eq!(look_up(&client, "bay", None).await, Err(NameError::NotFound));
    founding.await.unwrap();
    publish(&server, "bay", "1", Lifetime::Withdrawn).await.unwrap();
    assert_eq!(look_up(&client, "bay", None).await, Ok("1".into()));
    assert_eq!(look_up(&other_client, "bay", None).await, Ok("2".into()));
    let stranger = launch(format!("x-{tag}"), 3, 20);
    let launches = vec![format!("s1-{tag}"), format!("s2-{tag}")];
    assert_eq!(look_up(&stranger, "bay", None).await, Err(NameError::Ambiguous { launches }));
    for set in [server, other_server, client, other_client, stranger] {
        set.leave().await;
    }
}

#[tokio::test]
async fn without_a_directory_names_stay_in_the_launch() {
    let home = tempfile::tempdir().unwrap();
    let file = home.path().join("file");
    std::fs::write(&file, "").unwrap();
    for (place, said) in [(None, "HOME is not set"), (Some(file), "is no directory")] {
        let set = OwnSet::new(place, SetFacts::default());
        let refused = set.found().await.unwrap_err().to_string();
        assert!(refused.contains(said) && refused.contains(VARIABLE), "{refused}");
        publish(&set, "a", "b", Lifetime::Withdrawn).await.unwrap();
        assert_eq!(look_up(&set, "a", None).await, Ok("b".into()));
    }
}

#[tokio::test]
async fn processes_of_any_two_sets_call_each_other() {
    let (_home, place) = home();
    let sets = ["a", "b", "c"].map(|launch| set(&place, launch));
    let mut ids = Vec::new();
    for set in &sets {
        ids.push(set.found().await.unwrap().id());
    }
    for from in &sets {
        for &to in &ids {
            for process in [Process::Node(0), Process::Rank(2)] {
                let answer = from.call(Uid::new(to, process), Method::PING, "?".into(), SECOND * 30).await;
                assert_eq!(answer, Ok("?".into()), "{to} {process:?}");
            }
            let absent = from.call(Uid::new(to, Process::Rank(3)), Method::PING, Bytes::new(), SECOND * 30).await;
            assert_eq!(absent, Err(CallError::NoSuchProcess));
        }
    }
    let [a, b, c] = sets;
    b.leave().await;
    let gone = a.call(ids[1].root(), Method::PING, Bytes::new(), SECOND * 30).await;
    // The link may remain open briefly, and the call fails with the link.
    let at = ids[0].root();
    assert!([CallError::NoRoute { at }, CallError::Lost { at }].map(Err).contains(&gone), "{gone:?}");
    assert_eq!(a.sets().await.unwrap().len(), 2);
    a.leave().await;
    c.leave().await;
}

#[tokio::test]
async fn calls_that_cross_get_their_answers() {
    let (_home, place) = home();
    let [a, b] = ["a", "b"].map(|launch| set(&place, launch));
    let [to_b, to_a] = [b.found().await.unwrap().id().root(), a.found().await.unwrap().id().root()];
    let mut calls = tokio::task::JoinSet::new();
    for number in 0..200_u8 {
        let (from, to) = if number % 2 == 0 { (a.clone(), to_b) } else { (b.clone(), to_a) };
        calls.spawn(async move {
            let body = Bytes::copy_from_slice(&[number]);
            assert_eq!(from.call(to, Method::PING, body.clone(), SECOND * 30).await, Ok(body));
        });
    }
    while let Some(call) = calls.join_next().await {
        call.unwrap();
    }
    a.leave().await;
    b.leave().await;
}

#[tokio::test]
async fn who_does_not_know_the_key_gets_nothing_but_the_challenge() {
    use lattice_overlay::directory::SetKey;
    use lattice_overlay::greeting;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    let (_home, place) = home();
    let set = set(&place, "a");
    let record = set.found().await.unwrap();
    let mut socket = UnixStream::connect(connection::path(record.nonce())).await.unwrap();
    let mut challenge = [0; greeting::PROOF_LEN];
    socket.read_exact(&mut challenge).await.unwrap();
    let caller = Caller { set: record.id(), rank: 0, purpose: Purpose::Frames };
    let greeting = greeting::greet(&SetKey::from_bytes([7; 32]), caller, &challenge, &challenge);
    socket.write_all(&greeting).await.unwrap();
    let mut rest = Vec::new();
    socket.read_to_end(&mut rest).await.unwrap();
    assert_eq!(rest, b"");
    set.leave().await;
}

#[tokio::test]
async fn launches_meet_whoever_comes_first() {
    for order in [["a", "b", "c"], ["c", "b", "a"], ["b", "c", "a"]] {
        let (_home, place) = home();
        let mut meetings = Vec::new();
        for launch in order {
            let set = set(&place, launch);
            let others: Vec<&str> = ["a", "b", "c"].into_iter().filter(|&other| other != launch).collect();
            let meeting = meeting(launch, &others);
            meetings.push(tokio::spawn(async move {
                let met = set.meet(meeting).await;
                (set, met)
            }));
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let mut numbers = Vec::new();
        for meeting in meetings {
            let (set, met) = meeting.await.unwrap();
            let met = met.unwrap();
            assert_eq!(names(&met), ["a", "b", "c"].map(namespace));
            numbers.push(met.number);
            set.leave().await;
        }
        assert!(numbers.iter().all(|&number| number == numbers[0]), "{numbers:?}");
    }
}

#[tokio::test]
async fn nobody_waits_for_a_launch_that_is_not_there_or_ends() {
    let (_home, place) = home();
    let [a, b] = ["a", "b"].map(|launch| set(&place, launch));
    assert_eq!(b.meet(meeting("b", &["absent"])).await, Err(MeetError::NotFound));
    assert_eq!(a.meet(meeting("a", &["absent"])).await, Err(MeetError::NotFound));
    // Either of the two launches can end before it takes part.
    for (waits, ends) in [("c", "d"), ("d", "c")] {
        let ending = set(&place, ends);
        ending.found().await.unwrap();
        let waiting = set(&place, waits);
        let wait = tokio::spawn({
            let (waiting, meeting) = (waiting.clone(), meeting(waits, &[ends]));
            async move { waiting.meet(meeting).await }
        });
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert!(!wait.is_finished());
        ending.leave().await;
        assert_eq!(wait.await.unwrap(), Err(MeetError::NotFound), "{waits} waits");
        waiting.leave().await;
    }
    a.leave().await;
    b.leave().await;
}
