//! Failures of real clients, real servers and other launchers: one test for each known trap of PMI-1 and PMI-2, with the trap's number.
//! Four more tests are next to the code that they guard: 02 and 22 in `env.rs`, 03 in `conversation.rs`, the first half of 15 in
//! `gathering/round.rs`. For traps about processes or descriptors (11, 12, 13, 21), the tests here cover the server's part.
//!
//! Tests about ranks that wait for other ranks, and about the ends of ranks, are in `traps/waits.rs`.

mod transcript;
#[path = "traps/waits.rs"]
mod waits;
mod world;

use pmi_core::claim::ClaimKeys;
use pmi_core::ids::{JobId, NodeIndex, Rank};
use pmi_core::job::{App, Block, Job, Placement};
use pmi_core::server::{EndReason, Offence, Settings};
use pmi_core::services::{Answer, SpawnError};
use transcript::{field, fields};
use world::{JobIndex, World};

const INIT: &str = "cmd=init pmi_version=1 pmi_subversion=1\n";
const INIT2: &str = "cmd=init pmi_version=2 pmi_subversion=0\n";

/// A PMI-2 message, with its length on the left as in MPICH and Hydra.
fn pmi2(body: &str) -> String {
    format!("{:>6}{body}", body.len())
}

fn id(name: &str) -> JobId {
    JobId::new(name).unwrap()
}

fn placed(name: &str, counts: &[u32]) -> Job {
    let size = counts.iter().sum();
    Job { placement: Placement::block(counts), ..Job::on_one_node(id(name), size) }
}

/// A job `j` with `counts` ranks on the nodes, after `init` of all ranks.
fn initialized(counts: &[u32]) -> (World, JobIndex) {
    let mut world = World::kind();
    let job = world.start(placed("j", counts), Settings::default());
    for rank in 0..counts.iter().sum() {
        assert!(world.ask(job, rank, INIT).contains("rc=0"));
    }
    (world, job)
}

fn spawn_block(number: u32, of: u32, preput: &str) -> String {
    let head = format!("mcmd=spawn\nnprocs=2\nexecname=/bin/a {number}\ntotspawns={of}\nspawnssofar={number}\n");
    format!("{head}arg1=endcmd\narg2=x y=z\nargcnt=2\n{preput}info_num=0\nendcmd\n")
}

#[test]
fn trap_01_the_protocol_is_decided_message_by_message() {
    let mut world = World::kind();
    let job = world.start(placed("j", &[2]), Settings::default());
    assert_eq!(world.ask(job, 0, INIT), "cmd=response_to_init rc=0 pmi_version=1 pmi_subversion=1\n");
    assert_eq!(world.ask(job, 1, INIT2), "cmd=response_to_init rc=0 pmi_version=2 pmi_subversion=0\n");
    assert_eq!(world.ask(job, 1, &pmi2("cmd=kvs-put;key=k;value=v;")), pmi2("cmd=kvs-put-response;rc=0;"));
    assert_eq!(world.ask(job, 0, "cmd=get kvsname=j key=k\n"), "cmd=get_result rc=0 value=v\n");
    assert_eq!(world.ask(job, 1, "cmd=get_appnum\n"), "cmd=appnum rc=0 appnum=0\n");
}

#[test]
fn trap_04_a_job_name_needs_no_escape_and_opens_no_other_job() {
    for name in ["a b", "a;b", "a=b", "", &"x".repeat(64)] {
        assert!(JobId::new(name).is_err(), "{name:?} was taken");
    }
    let mut world = World::kind();
    let jobs = ["one", "two"].map(|name| world.start(placed(name, &[1]), Settings::default()));
    for (&job, name) in jobs.iter().zip(["one", "two"]) {
        world.ask(job, 0, INIT);
        assert_eq!(world.ask(job, 0, "cmd=get_my_kvsname\n"), format!("cmd=my_kvsname rc=0 kvsname={name}\n"));
        world.ask(job, 0, &format!("cmd=put kvsname={name} key=k value=of {name}\n"));
        world.ask(job, 0, "cmd=barrier_in\n");
    }
    assert_eq!(world.ask(jobs[0], 0, "cmd=get kvsname=one key=k\n"), "cmd=get_result rc=0 value=of one\n");
    assert_eq!(field(world.ask(jobs[0], 0, "cmd=get kvsname=two key=k\n").as_bytes(), "rc").unwrap(), "-1");
}

#[test]
fn trap_05_words_without_an_equals_sign_are_no_error() {
    let (mut world, job) = initialized(&[1]);
    let value = "a b=c [8] ;d  -";
    assert_eq!(world.ask(job, 0, &format!("cmd=put kvsname=j key=k value={value}\n")), "cmd=put_result rc=0\n");
    assert_eq!(world.ask(job, 0, "cmd=get kvsname=j key=k\n"), format!("cmd=get_result rc=0 value={value}\n"));
    world.ask(job, 0, "cmd=publish_name service=a name=x port=tag#0 and more\n");
    let port = "cmd=lookup_result rc=0 port=tag#0 and more\n";
    assert_eq!(world.ask(job, 0, "cmd=lookup_name service=a name=x\n"), port);
    // the rest of a value after a `;` that MPICH from 4.1 on does not escape
    assert_eq!(world.ask(job, 0, &pmi2("cmd=kvs-put;key=m;value=cut; here;")), pmi2("cmd=kvs-put-response;rc=0;"));
    assert_eq!(world.ask(job, 0, "cmd=get kvsname=j key=m\n"), "cmd=get_result rc=0 value=cut\n");
    assert_eq!(world.ask(job, 0, "cmd=abort exitcode=7 message=called MPI_Abort(MPI_COMM_WORLD, 7) now\n"), "");
    let Some(EndReason::Abort { code: Some(7), message, .. }) = world.ended(job) else { panic!("no abort") };
    assert_eq!(message, "called MPI_Abort(MPI_COMM_WORLD, 7) now");
}

#[test]
fn trap_06_the_value_is_the_last_field() {
    let (mut world, job) = initialized(&[1]);
    world.ask(job, 0, "cmd=put kvsname=j key=k value=v found=TRUE\n");
    let answer = world.ask(job, 0, "cmd=get kvsname=j key=k\n");
    assert_eq!(answer, "cmd=get_result rc=0 value=v found=TRUE\n");
    assert_eq!(
        world.ask(job, 0, "cmd=get kvsname=j key=PMI_process_mapping\n"),
        "cmd=get_result rc=0 value=(vector,(0,1,1))\n"
    );
}

#[test]
fn trap_07_pmi1_answers_have_an_rc_no_spaces_and_no_empty_field() {
    let (mut world, job) = initialized(&[1]);
    let long = format!("cmd=put kvsname=j key={} value=v\n", "k".repeat(65));
    let too_big = format!("cmd=put kvsname=j key=k value={}\n", "v".repeat(64 * 1024 + 1));
    let unknown = format!("cmd={}\n", "x".repeat(5000));
    let asked = [
        INIT,
        "cmd=init pmi_version=9 pmi_subversion=1\n",
        "cmd=init\n",
        "cmd=get_maxes\n",
        "cmd=get_appnum\n",
        "cmd=get_my_kvsname\n",
        "cmd=get_universe_size\n",
        "cmd=put kvsname=j key=k value=v\n",
        "cmd=put kvsname=j value=v\n",
        "cmd=put kvsname=j key= value=v\n",
        "cmd=put kvsname=j key=PMI_x value=v\n",
        "cmd=put kvsname=other key=k value=v\n",
        &long,
        &too_big,
        "cmd=get kvsname=j key=absent\n",
        "cmd=get kvsname=j\n",
        "cmd=getbyidx kvsname=j idx=99\n",
        "cmd=getbyidx kvsname=j idx=-1\n",
        "cmd=barrier_in\n",
        "cmd=barrier_in group=bad\n",
        "cmd=barrier_in group=5:0\n",
        "cmd=lookup_name service=absent\n",
        "cmd=unpublish_name service=absent\n",
        "cmd=publish_name service=s\n",
        "cmd=create_kvs\n",
        "cmd=destroy_kvs\n",
        "cmd=destroy_kvs kvsname=j\n",
        "cmd=destroy_kvs kvsname=j.k0.2\n",
        "cmd=getbyidx kvsname=other idx=0\n",
        "cmd=some_thing else\n",
        &unknown,
        "cmd=finalize\n",
    ];
    for request in asked {
        let answer = world.ask(job, 0, request);
        let line = answer.strip_suffix('\n').unwrap_or_else(|| panic!("{request:?} was answered with {answer:?}"));
        assert!(answer.len() < 350 && line.starts_with("cmd="), "{answer:?} to {request:?}");
        assert!(field(line.as_bytes(), "rc").is_some(), "{answer:?} to {request:?} has no rc");
        for word in line.split(' ') {
            assert!(word.split_once('=').is_some_and(|(_, value)| !value.is_empty()), "{word:?} in {answer:?}");
        }
    }
    let mut spawn = |reason: &str| {
        world.send(job, Rank(0), spawn_block(1, 1, "").as_bytes());
        world.settle();
        let asked = world.spawns.pop_front().unwrap();
        let refused = SpawnError::Failed { reason: reason.into() };
        world.answer(&asked, Answer::Spawned(Err(refused)));
        world.told(job, 0)
    };
    let two_lines = spawn("no file\nnor = folder; nothing");
    assert_eq!(two_lines, "cmd=spawn_result rc=-1 msg=the_new_ranks_did_not_start:_no_file_nor_=_folder__nothing\n");
    assert!(spawn(&"x".repeat(9999)).len() < 350);
}

#[test]
fn trap_08_pmi2_answers_have_the_forms_that_both_clients_read() {
    let (mut world, job) = initialized(&[1]);
    let mut ask = |body: &str| world.ask(job, 0, &pmi2(body))[6..].to_owned();
    let greeting = ask("cmd=fullinit;pmirank=0;");
    for field in ["rc=0", "pmi-version=2", "pmi-subversion=0", "rank=0", "size=1", "debugged=FALSE", "pmiverbose=FALSE"]
    {
        assert!(greeting.contains(&format!(";{field};")), "{field} is missing in {greeting}");
    }
    assert!(!greeting.contains("spawner-jobid"), "{greeting}");
    assert_eq!(ask("cmd=kvs-get;jobid=;srcid=-1;key=no;"), "cmd=kvs-get-response;rc=0;found=FALSE;");
    assert_eq!(ask("cmd=info-getjobattr;key=no;"), "cmd=info-getjobattr-response;rc=0;found=FALSE;");
    assert_eq!(ask("cmd=info-getnodeattr;key=no;wait=FALSE;"), "cmd=info-getnodeattr-response;rc=0;found=FALSE;");
    ask("cmd=name-publish;name=s;port=p;infokeycount=0;");
    assert_eq!(ask("cmd=name-lookup;name=s;"), "cmd=name-lookup-response;rc=0;value=p;port=p;");
    assert_eq!(ask("cmd=job-connect;jobid=x;"), "cmd=job-connect-response;rc=14;errmsg=not_implemented;");
    assert_eq!(ask("cmd=strange;"), "cmd=strange-response;rc=14;errmsg=unknown_command;");
}

#[test]
fn trap_09_a_spawn_is_answered_after_its_last_block_however_it_is_written() {
    let preput = "preput_num=1\npreput_key_0=PARENT\npreput_val_0=port\n";
    let (mut world, job) = initialized(&[1]);
    let first = spawn_block(1, 2, preput);
    let stream = format!("{first}{}", spawn_block(2, 2, preput));
    for end in 0..stream.len() {
        assert!(world.spawns.is_empty(), "it was spawned after {end} bytes");
        world.send(job, Rank(0), &stream.as_bytes()[end..=end]);
    }
    let asked = world.spawns.pop_front().expect("both blocks are there");
    assert_eq!(asked.request.preput, [("PARENT".into(), "port".into())]);
    let programs: Vec<_> = asked.request.apps.iter().map(|app| (&app.program[..], app.args.len(), app.ranks)).collect();
    assert_eq!(programs, [(&b"/bin/a 1"[..], 2, 2), (b"/bin/a 2", 2, 2)]);
    assert_eq!(world.told(job, 0), "");
    world.answer(&asked, Answer::Spawned(Ok(id("child"))));
    assert_eq!(world.told(job, 0), "cmd=spawn_result rc=0 jobid=child\n");
}

#[test]
fn trap_10_arguments_are_counted_from_1_in_pmi1_and_from_0_in_pmi2() {
    let (mut world, job) = initialized(&[1]);
    world.send(job, Rank(0), spawn_block(1, 1, "").as_bytes());
    let body = "cmd=spawn;ncmds=1;preputcount=0;subcmd=/bin/a 1;maxprocs=2;argc=2;argv0=endcmd;argv1=x y=z;";
    world.send(job, Rank(0), pmi2(body).as_bytes());
    let requests: Vec<_> = world.spawns.drain(..).map(|asked| asked.request).collect();
    assert_eq!(requests.len(), 2);
    assert_eq!(requests[0], requests[1]);
    assert_eq!(requests[0].apps[0].args, ["endcmd", "x y=z"]);
}

#[test]
fn trap_18_lengths_stand_left_or_right_and_count_bytes() {
    let (mut world, job) = initialized(&[1]);
    let put = "cmd=kvs-put;key=k;value=größer;";
    assert_eq!(put.len(), put.chars().count() + 2);
    for message in
        [format!("{:<6}{put}", put.len()), format!("{:>6}{put}", put.len()), format!("{:06}{put}", put.len())]
    {
        assert_eq!(world.ask(job, 0, &message), pmi2("cmd=kvs-put-response;rc=0;"));
    }
    assert_eq!(
        world.ask(job, 0, &pmi2("cmd=kvs-get;key=k;")),
        pmi2("cmd=kvs-get-response;rc=0;found=TRUE;value=größer;")
    );
    // the longest possible answer: every byte of the longest value doubled
    let semicolons = ";".repeat(64 * 1024);
    world.ask(job, 0, &format!("cmd=put kvsname=j key=long value={semicolons}\n"));
    let answer = world.ask(job, 0, &pmi2("cmd=kvs-get;key=long;"));
    assert_eq!(answer, pmi2(&format!("cmd=kvs-get-response;rc=0;found=TRUE;value={semicolons}{semicolons};")));
    assert_eq!(answer[..6].trim().len(), 6);
}

#[test]
fn trap_19_the_mapping_is_dense_whole_short_and_the_same_everywhere() {
    let block = |first_node, ranks_per_node| Block { first_node: NodeIndex(first_node), nodes: 1, ranks_per_node };
    let mut sparse = Placement::default();
    for block in [block(9, 1), block(5, 2), block(9, 1)] {
        sparse.push(block);
    }
    let mut world = World::kind();
    let job = world.start(Job { placement: sparse, ..Job::on_one_node(id("j"), 4) }, Settings::default());
    for rank in 0..4 {
        world.ask(job, rank, INIT);
        let expected = "cmd=get_result rc=0 value=(vector,(1,1,1),(0,1,2),(1,1,1))\n";
        assert_eq!(world.ask(job, rank, "cmd=get kvsname=j key=PMI_process_mapping\n"), expected);
    }
    let mut zigzag = Placement::default();
    (0..100).for_each(|node| zigzag.push(block(node, 1 + node % 2)));
    let size = zigzag.size();
    let long = world.start(Job { placement: zigzag, ..Job::on_one_node(id("long"), size) }, Settings::default());
    world.ask(long, 0, INIT);
    let answer = world.ask(long, 0, "cmd=get kvsname=long key=PMI_process_mapping\n");
    assert_eq!(answer, "cmd=get_result rc=1 msg=key_not_found\n");
}

#[test]
fn trap_20_the_universe_size_is_never_an_error_and_never_0() {
    for (universe_size, told) in [(None, "-1"), (Some(0), "-1"), (Some(8), "8"), (Some(u32::MAX), "4294967295")] {
        let mut world = World::kind();
        let job = world.start(Job { universe_size, ..placed("j", &[1]) }, Settings::default());
        world.ask(job, 0, INIT);
        assert_eq!(world.ask(job, 0, "cmd=get_universe_size\n"), format!("cmd=universe_size rc=0 size={told}\n"));
        let attribute = pmi2(&format!("cmd=info-getjobattr-response;rc=0;found=TRUE;value={told};"));
        assert_eq!(world.ask(job, 0, &pmi2("cmd=info-getjobattr;key=universeSize;")), attribute);
    }
}

#[test]
fn trap_23_numbers_are_not_small() {
    for (code, expected) in [("738814479", Some(738_814_479)), ("-1", Some(-1)), ("-2147483648", Some(i32::MIN))] {
        let (mut world, job) = initialized(&[1]);
        world.ask(job, 0, &format!("cmd=abort exitcode={code}\n"));
        assert!(matches!(world.ended(job), Some(EndReason::Abort { code, .. }) if *code == expected), "{code}");
    }
    // an abort with an invalid code is still an abort
    let (mut world, job) = initialized(&[1]);
    world.ask(job, 0, "cmd=abort exitcode=99999999999999999999\n");
    assert!(matches!(world.ended(job), Some(EndReason::Abort { code: None, .. })));

    let mut world = World::kind();
    let apps = vec![App { ranks: 1, appnum: -1 }, App { ranks: 1, appnum: i32::MAX }];
    let job = world.start(Job { apps, ..placed("j", &[2]) }, Settings::default());
    for (rank, appnum) in [(0, "-1"), (1, "2147483647")] {
        world.ask(job, rank, INIT);
        assert_eq!(world.ask(job, rank, "cmd=get_appnum\n"), format!("cmd=appnum rc=0 appnum={appnum}\n"));
        let greeting = world.ask(job, rank, &pmi2(&format!("cmd=fullinit;pmirank={rank};")));
        assert_eq!(field(greeting.as_bytes(), "appnum").as_deref(), Some(appnum));
    }
}

#[test]
fn trap_24_names_are_known_to_all_jobs_and_any_rank_may_withdraw_them() {
    let (mut world, first) = initialized(&[1]);
    let second = world.start(placed("second", &[1]), Settings::default());
    world.ask(second, 0, INIT2);
    assert_eq!(world.ask(first, 0, "cmd=publish_name service=svc one port=p\n"), "cmd=publish_result rc=0\n");
    assert_eq!(world.ask(first, 0, "cmd=publish_name service=svc two port=q\n"), "cmd=publish_result rc=0\n");
    let again = world.ask(second, 0, &pmi2("cmd=name-publish;name=svc one;port=mine;"));
    assert_eq!(fields(again.as_bytes())[1], ("rc".into(), "1".into()));
    let found = world.ask(second, 0, &pmi2("cmd=name-lookup;name=svc two;"));
    assert_eq!(field(found.as_bytes(), "port").as_deref(), Some("q"));
    assert_eq!(
        world.ask(second, 0, &pmi2("cmd=name-unpublish;name=svc one;")),
        pmi2("cmd=name-unpublish-response;rc=0;")
    );
    let gone = "cmd=lookup_result rc=1 msg=service_not_found\n";
    assert_eq!(world.ask(first, 0, "cmd=lookup_name service=svc one\n"), gone);
}

#[test]
fn trap_25_with_keys_a_rank_is_claimed_by_its_key_and_by_nothing_else() {
    let mut world = World::kind();
    let job = world.start_unconnected(placed("j", &[2, 1]), Settings::default());
    let home = NodeIndex(0);
    let mut draws = ClaimKeys::MIN + 5..;
    let keys = ClaimKeys::draw(2, || draws.next().ok_or(())).unwrap();
    world.require_keys(job, home, keys);
    let mut visitor = || world.accept(job, home);
    let (stranger, first, second) = (visitor(), visitor(), visitor());
    let mut ask = |connection, message: &str| {
        world.send_on(job, home, connection, message.as_bytes());
        world.settle();
        String::from_utf8(world.take_on(job, home, connection)).unwrap()
    };
    let key = |local| ClaimKeys::MIN + 5 + local;
    for wrong in [0, 1, 2, ClaimKeys::MIN, key(2), i32::MAX as u32, u32::MAX] {
        let answer = ask(stranger, &format!("cmd=initack pmiid={wrong}\n"));
        assert_eq!(answer, "cmd=initack rc=1 msg=this_PMI_ID_is_not_on_this_node\n");
    }
    // clients take their rank from the answer
    let claimed = "cmd=initack rc=0\ncmd=set size=3\ncmd=set rank=1\ncmd=set debug=0\n";
    assert_eq!(ask(first, &format!("cmd=initack pmiid={}\n", key(1))), claimed);
    assert!(ask(second, INIT2).contains("rc=0"));
    assert!(!ask(second, &pmi2("cmd=fullinit;pmirank=0;")).contains(";rc=0;"));
    let greeted = ask(second, &pmi2(&format!("cmd=fullinit;srcid={};threaded=FALSE;", key(0))));
    assert!(greeted.contains(";rank=0;size=3;"), "{greeted}");
}

#[test]
fn trap_25_a_rank_from_a_port_must_be_claimed_once_and_first() {
    let mut world = World::kind();
    let job = world.start_unconnected(placed("j", &[2, 1]), Settings::default());
    let home = NodeIndex(0);
    let mut visitor = || world.accept(job, home);
    let (early, first, second, third) = (visitor(), visitor(), visitor(), visitor());
    let mut ask = |connection, message: &str| {
        world.send_on(job, home, connection, message.as_bytes());
        world.settle();
        String::from_utf8(world.take_on(job, home, connection)).unwrap()
    };
    let refused = |answer: String| assert_ne!(field(answer.as_bytes(), "rc").as_deref(), Some("0"), "{answer}");
    let claimed = "cmd=initack rc=0\ncmd=set size=3\ncmd=set rank=1\ncmd=set debug=0\n";

    assert!(ask(early, INIT).contains("rc=0"));
    refused(ask(early, "cmd=barrier_in\n"));
    refused(ask(early, "cmd=put kvsname=j key=k value=v\n"));
    assert_eq!(ask(first, "cmd=initack pmiid=1\n"), claimed);
    assert_eq!(ask(first, "cmd=initack pmiid=1\n"), claimed, "it is its own");
    refused(ask(first, "cmd=initack pmiid=0\n"));
    refused(ask(second, "cmd=initack pmiid=1\n"));
    refused(ask(second, "cmd=initack pmiid=2\n"));
    refused(ask(second, "cmd=initack pmiid=4294967295\n"));
    // PMI-2 clients claim with `fullinit`, Slurm's client with `srcid`
    assert!(ask(third, INIT2).contains("rc=0"));
    refused(ask(third, &pmi2("cmd=fullinit;pmirank=1;")));
    assert!(ask(third, &pmi2("cmd=fullinit;srcid=0;threaded=FALSE;")).contains(";rank=0;size=3;"));

    // a connection without a rank that sends another protocol is closed, and the job continues
    assert_eq!(ask(second, "GET / HTTP/1.1\r\n"), "");
    assert!(world.is_closed(job, home, second) && world.ended(job).is_none());
    // the same bytes from a rank end the job
    world.send_on(job, home, first, b"GET / HTTP/1.1\r\n");
    world.settle();
    let Some(EndReason::Offence { rank: Rank(1), offence: Offence::Frame(_) }) = world.ended(job) else { panic!() };
}
