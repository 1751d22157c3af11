//! Replays every recorded conversation with the same messages of the ranks, and compares our answers with the recorded ones.
//!
//! **In order** (files of the experiment server, which keep the order over all ranks): after each message of a rank, our servers must
//! have sent exactly the answers that the file has before the next message, byte for byte. Two differences are allowed. If both refuse
//! (`rc` is not 0 and the same), the texts of `msg=` or `errmsg=` may differ. Our PMI-1 `spawn_result` always has a `jobid=`. Messages
//! after an abort get no answer from us.
//!
//! **By meaning** (files captured through Hydra, which list one rank after the other): each rank sends its next line after it has
//! received everything that was recorded before it. Answers are compared field by field. All allowed differences stem from differences
//! between Hydra's versions: see [`compare_meaning`]. Ranks without recorded messages only join the fences.

mod transcript;
mod world;

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;
use pmi_core::Offer;
use pmi_core::ids::{JobId, Rank};
use pmi_core::job::Job;
use pmi_core::server::{EndReason, Settings};
use pmi_core::services::{Answer, SpawnApp, SpawnRequest};
use transcript::{Speaker, Transcript, What, field, fields, names, nodes_of_mapping, text};
use world::{JobIndex, World};

macro_rules! replay {
    ($($test:ident: $file:literal,)*) => {
        $(#[test] fn $test() { replay($file); })*

        #[test]
        fn no_file_is_left_out() {
            let mut replayed = vec![$($file.to_owned()),*];
            replayed.sort();
            assert_eq!(replayed, names());
        }
    };
}

replay! {
    pmi1_abort_2ranks_mpich_5_0_2: "pmi1-abort-2ranks-mpich-5.0.2.txt",
    pmi1_abort_mpich_3_4_3: "pmi1-abort-mpich-3.4.3.txt",
    pmi1_abort_mpich_4_1_3: "pmi1-abort-mpich-4.1.3.txt",
    pmi1_abort_not_killed_mpich_5_0_2: "pmi1-abort-not-killed-mpich-5.0.2.txt",
    pmi1_init_1rank_mpich_4_0_2: "pmi1-init-1rank-mpich-4.0.2.txt",
    pmi1_init_1rank_mpich_5_0_2: "pmi1-init-1rank-mpich-5.0.2.txt",
    pmi1_init_2nodes_intelmpi: "pmi1-init-2nodes-intelmpi-2021.18.txt",
    pmi1_init_2nodes_mpich_5_0_2: "pmi1-init-2nodes-mpich-5.0.2.txt",
    pmi1_init_2ranks_mpich_3_4_3: "pmi1-init-2ranks-mpich-3.4.3.txt",
    pmi1_init_2ranks_mpich_4_1_3: "pmi1-init-2ranks-mpich-4.1.3.txt",
    pmi1_init_2ranks_mpich_4_3_2: "pmi1-init-2ranks-mpich-4.3.2.txt",
    pmi1_mpmd_mpich_5_0_2: "pmi1-mpmd-mpich-5.0.2.txt",
    pmi1_names_mpich_3_4_3: "pmi1-names-mpich-3.4.3.txt",
    pmi1_names_mpich_5_0_2: "pmi1-names-mpich-5.0.2.txt",
    pmi1_port_initack_mpich_4_0_2: "pmi1-port-initack-mpich-4.0.2.txt",
    pmi1_reinit_mpich_5_0_2: "pmi1-reinit-mpich-5.0.2.txt",
    pmi1_singinit_mpich_5_0_2: "pmi1-singinit-mpich-5.0.2.txt",
    pmi1_spawn_mpich_5_0_2: "pmi1-spawn-mpich-5.0.2.txt",
    pmi1_spawn_multiple_mpich_5_0_2: "pmi1-spawn-multiple-mpich-5.0.2.txt",
    pmi1_spawn_multiple_writes_intelmpi: "pmi1-spawn-multiple-writes-intelmpi-2021.18.txt",
    pmi1_value_with_spaces_openmpi: "pmi1-value-with-spaces-openmpi-4.1.4.txt",
    pmi1_2_barrier_group_3ranks: "pmi1.2-barrier-group-3ranks.txt",
    pmi1_2_init_2nodes_mpich_5_0_2: "pmi1.2-init-2nodes-mpich-5.0.2.txt",
    pmi2_abort_intelmpi_slurmlib: "pmi2-abort-intelmpi-slurmlib.txt",
    pmi2_abort_slurmlib: "pmi2-abort-slurmlib.txt",
    pmi2_all_2ranks_mpichlib_hydra: "pmi2-all-2ranks-mpichlib-hydra.txt",
    pmi2_all_2ranks_mpichlib: "pmi2-all-2ranks-mpichlib.txt",
    pmi2_all_2ranks_slurmlib: "pmi2-all-2ranks-slurmlib.txt",
    pmi2_init_1node_intelmpi_slurmlib: "pmi2-init-1node-intelmpi-slurmlib.txt",
    pmi2_init_2nodes_intelmpi_slurmlib: "pmi2-init-2nodes-intelmpi-slurmlib.txt",
    pmi2_init_slurmlib_hydra_4_0_2: "pmi2-init-slurmlib-hydra-4.0.2.txt",
    pmi2_names_intelmpi_slurmlib: "pmi2-names-intelmpi-slurmlib.txt",
    pmi2_spawn_mpichlib: "pmi2-spawn-mpichlib.txt",
    pmi2_spawn_slurmlib: "pmi2-spawn-slurmlib.txt",
}

fn replay(file: &str) {
    let transcript = Transcript::load(file);
    let mut stage = Stage::new(&transcript);
    if transcript.keeps_global_order() {
        stage.play_in_order();
    } else {
        stage.play_by_meaning();
    }
    stage.check_ending();
}

/// The recorded conversation, and our servers that replay it.
struct Stage<'t> {
    transcript: &'t Transcript,
    world: World,
    settings: Settings,
    /// The first job and its spawned jobs, by their recorded names.
    jobs: BTreeMap<Option<String>, JobIndex>,
    spawned: bool,
}

impl<'t> Stage<'t> {
    fn new(transcript: &'t Transcript) -> Self {
        let offer = Offer { group_barriers: transcript.has_group_barriers(), ..Offer::default() };
        let settings = Settings { offer, ..Settings::default() };
        let mut world = World::kind();
        let job = transcript.job(None);
        let index = match &transcript.lines[0].1 {
            What::FromServer(_) => {
                let index = world.start_unconnected(job, settings);
                world.adopt(index);
                index
            }
            What::FromClient(bytes) if bytes.starts_with(b"cmd=initack") => {
                let index = world.start_unconnected(job, settings);
                world.come_through_port(index, Rank(0));
                index
            }
            _ => world.start(job, settings),
        };
        let mut stage = Self { transcript, world, settings, jobs: BTreeMap::from([(None, index)]), spawned: false };
        stage.begin_excerpt();
        stage
    }

    /// Some files begin in the middle; the missing message is an `init`.
    fn begin_excerpt(&mut self) {
        let job = self.jobs[&None];
        let mut begun = Vec::new();
        for (rank, what) in self.transcript.of(None) {
            if begun.contains(&rank) {
                continue;
            }
            begun.push(rank);
            // `init` and `initack`, or `singinit`
            let openings: [&[u8]; 2] = [b"cmd=init", b"cmd=singinit"];
            if let What::FromClient(bytes) = what
                && !openings.iter().any(|opening| bytes.starts_with(opening))
            {
                self.world.ask(job, rank, "cmd=init pmi_version=1 pmi_subversion=1\n");
            }
        }
    }

    fn play_in_order(&mut self) {
        let mut aborted = false;
        for (speaker, what) in &self.transcript.lines {
            let job = self.jobs[&speaker.spawned];
            match what {
                What::FromClient(bytes) => {
                    self.expect_silence(what);
                    self.world.send(job, Rank(speaker.rank), bytes);
                    self.world.settle();
                    self.serve_spawns();
                    aborted = self.world.ended(job).is_some();
                }
                What::FromServer(_) if aborted => {}
                What::FromServer(recorded) => {
                    let ours = self.take_message(speaker);
                    assert!(same(recorded, &ours), "recorded: {}\n    ours: {}", text(recorded), text(&ours));
                }
                What::ClientCloses => self.world.disconnect(job, Rank(speaker.rank)),
                What::ServerCloses => {}
            }
        }
        self.expect_silence(&What::ServerCloses);
    }

    /// Checks that all answers were read: none was sent too early.
    fn expect_silence(&mut self, before: &What) {
        for &job in self.jobs.values() {
            for rank in 0..self.world.job(job).size() {
                let untold = self.world.told(job, rank);
                assert_eq!(untold, "", "rank {rank} of {job:?} was told this before {before:?}");
            }
        }
    }

    /// The answers to a rank since its last message.
    fn take_message(&mut self, speaker: &Speaker) -> Vec<u8> {
        self.world.take(self.jobs[&speaker.spawned], Rank(speaker.rank))
    }

    fn play_by_meaning(&mut self) {
        let mut scripts: BTreeMap<Speaker, VecDeque<&What>> = BTreeMap::new();
        for (speaker, what) in &self.transcript.lines {
            scripts.entry(speaker.clone()).or_default().push_back(what);
        }
        let mut told: BTreeMap<Speaker, VecDeque<Vec<u8>>> = BTreeMap::new();
        self.add_silent_ranks();
        loop {
            let mut progress = false;
            for (speaker, script) in &mut scripts {
                // The ranks of a spawned job start with the answer to the spawn.
                let Some(&job) = self.jobs.get(&speaker.spawned) else { continue };
                let inbox = told.entry(speaker.clone()).or_default();
                inbox.extend(messages(&self.world.take(job, Rank(speaker.rank))));
                while let Some(What::FromServer(recorded)) = script.front() {
                    let Some(ours) = inbox.pop_front() else { break };
                    compare_meaning(recorded, &ours);
                    script.pop_front();
                    progress = true;
                }
                match script.front() {
                    Some(What::FromServer(_)) | None => continue,
                    Some(What::FromClient(bytes)) => self.world.send(job, Rank(speaker.rank), bytes),
                    Some(What::ClientCloses) => self.world.disconnect(job, Rank(speaker.rank)),
                    Some(What::ServerCloses) => {}
                }
                script.pop_front();
                progress = true;
            }
            self.join_fences_of_silent_ranks();
            self.world.settle();
            self.serve_spawns();
            if scripts.values().all(VecDeque::is_empty) {
                break;
            }
            assert!(progress, "nobody can go on: {scripts:#?}");
        }
        let untold: Vec<_> = told.values().flatten().map(|message| text(message)).collect();
        assert_eq!(untold, Vec::<String>::new(), "answers that were not recorded");
    }

    fn silent_ranks(&self) -> Vec<u32> {
        let size = self.world.job(self.jobs[&None]).size();
        (0..size).filter(|rank| self.transcript.of(None).all(|(speaking, _)| speaking != *rank)).collect()
    }

    fn add_silent_ranks(&mut self) {
        for rank in self.silent_ranks() {
            self.world.ask(self.jobs[&None], rank, "cmd=init pmi_version=1 pmi_subversion=1\n");
        }
    }

    fn join_fences_of_silent_ranks(&mut self) {
        let job = self.jobs[&None];
        for rank in self.silent_ranks() {
            if self.world.server_of(job, Rank(rank)).pending_fences().iter().any(|standing| standing.whole_job) {
                self.world.ask(job, rank, "cmd=barrier_in\n");
            }
        }
    }

    /// Acts as the host: starts the job that the recorded server started, under its recorded name.
    fn serve_spawns(&mut self) {
        while let Some(asked) = self.world.spawns.pop_front() {
            assert!(!self.spawned, "one spawn was recorded");
            self.spawned = true;
            assert_eq!(asked.request, recorded_spawn(&self.transcript.name));
            assert_eq!((asked.job, asked.rank), (self.jobs[&None], Rank(0)));
            let name = self.transcript.spawned().first().cloned();
            let started = match &name {
                Some(name) => self.transcript.job(Some(name)),
                // The recording ends before the new job begins.
                None => Job::on_one_node(JobId::new("spawned").unwrap(), 2),
            };
            let preput = asked.request.preput.iter().map(|(key, value)| (text(key), text(value))).collect();
            let id = started.id.clone();
            let spawner = Some(self.world.job(asked.job).id.clone());
            let job = self.world.start(Job { preput, spawner, ..started }, self.settings);
            self.world.answer(&asked, Answer::Spawned(Ok(id)));
            self.world.settle();
            self.jobs.insert(name.or(Some("spawned".into())), job);
        }
    }

    /// A conversation without an abort ends successfully: every rank that closed its end may exit with 0.
    fn check_ending(&mut self) {
        assert_eq!(self.spawned, self.transcript.name.contains("spawn"));
        let ended = self.world.ended(self.jobs[&None]).cloned();
        if let Some((expected_code, expected_message)) = recorded_abort(&self.transcript.name) {
            let Some(EndReason::Abort { rank: Rank(0), code, whole_job: true, message }) = ended else {
                panic!("not the abort that was recorded: {ended:?}");
            };
            return assert_eq!((code, &*message), (expected_code, expected_message));
        }
        for (speaker, what) in &self.transcript.lines {
            if *what == What::ClientCloses {
                self.world.exit(self.jobs[&speaker.spawned], Rank(speaker.rank));
            }
        }
        for (name, &job) in &self.jobs {
            assert!(self.world.ended(job).is_none(), "job {name:?} was ended: {:?}", self.world.ended(job));
        }
    }
}

/// Returns true if our answer equals the recorded one, with the differences allowed above.
fn same(recorded: &[u8], ours: &[u8]) -> bool {
    let rc = |message: &[u8]| field(message, "rc").filter(|rc| rc != "0");
    let both_refuse = rc(recorded).is_some() && rc(recorded) == rc(ours) && fields(recorded)[0] == fields(ours)[0];
    let named_spawn = recorded == b"cmd=spawn_result rc=0\n" && ours.starts_with(b"cmd=spawn_result rc=0 jobid=");
    recorded == ours || both_refuse || named_spawn
}

/// Checks that our answer has the meaning of the recorded one:
///
/// * `rc` missing in the recorded answer (Hydra up to 4.0): ours is 0;
/// * `found=TRUE`, `msg=`, `info=` and `errmsg=` add no information; PMI-2's "not found" is Hydra's `rc=1` and our `found=FALSE`;
/// * `PMI_process_mapping` may wrap, if the ranks are on the same nodes;
/// * Hydra returns the name of a topology file, and no host here offers one: clients then discover the topology themselves;
/// * `pmiverbose=0` stands for `FALSE`.
///
/// Our answer must have all other recorded fields, with the same values. Its additional fields are for other clients.
fn compare_meaning(recorded: &[u8], ours: &[u8]) {
    let context = || format!("recorded: {}\n    ours: {}", text(recorded), text(ours));
    let value = field(recorded, "value").unwrap_or_default();
    if value.starts_with("/tmp/hydra_hwloc") {
        return assert_eq!(field(ours, "rc").as_deref(), Some("1"), "{}", context());
    }
    let recorded_rc = field(recorded, "rc").unwrap_or("0".into());
    let (ours_rc, ours_found) = (field(ours, "rc"), field(ours, "found"));
    if recorded_rc != "0" && ours_found.as_deref() == Some("FALSE") {
        return assert_eq!(fields(recorded)[0], fields(ours)[0], "{}", context());
    }
    assert_eq!(ours_rc.unwrap_or("0".into()), recorded_rc, "{}", context());
    for (name, value) in fields(recorded) {
        let ours = field(ours, &name);
        match &*name {
            "rc" | "found" | "msg" | "info" | "errmsg" => {}
            "pmiverbose" if value == "0" => assert_eq!(ours.as_deref(), Some("FALSE")),
            "value" if value.starts_with("(vector") => {
                let ours = ours.unwrap_or_else(|| panic!("{}", context()));
                assert_eq!(nodes_of_mapping(&value, 8), nodes_of_mapping(&ours, 8), "{}", context());
            }
            _ => assert_eq!(ours.as_deref(), Some(&*value), "{name}: {}", context()),
        }
    }
}

/// Splits the bytes to a rank into messages.
fn messages(told: &[u8]) -> Vec<Vec<u8>> {
    let mut messages = Vec::new();
    let mut rest = told;
    while !rest.is_empty() {
        let end = match rest[0] {
            b'c' => rest.iter().position(|&byte| byte == b'\n').expect("a whole line") + 1,
            _ => 6 + text(&rest[..6]).trim().parse::<usize>().expect("a length"),
        };
        let (message, behind) = rest.split_at(end);
        messages.push(message.to_vec());
        rest = behind;
    }
    messages
}

/// The code and the text of the recorded abort.
fn recorded_abort(file: &str) -> Option<(Option<i32>, &'static str)> {
    let spoken = "application called MPI_Abort(MPI_COMM_WORLD, 42) - process 0";
    Some(match file {
        "pmi1-abort-2ranks-mpich-5.0.2.txt" | "pmi1-abort-not-killed-mpich-5.0.2.txt" => (Some(42), "abort"),
        "pmi1-abort-mpich-3.4.3.txt" => (Some(42), ""),
        "pmi1-abort-mpich-4.1.3.txt" => (Some(42), spoken),
        "pmi2-abort-intelmpi-slurmlib.txt" => (None, spoken),
        "pmi2-abort-slurmlib.txt" => (None, "bye; now"),
        _ => return None,
    })
}

/// The complete request of the recorded client.
fn recorded_spawn(file: &str) -> SpawnRequest {
    let app = |program: &'static str, args: &[&'static str]| SpawnApp {
        program: program.into(),
        args: args.iter().map(|&arg| arg.into()).collect(),
        ranks: 1,
        info: Vec::new(),
        ..SpawnApp::default()
    };
    let pairs = |pairs: &[(&'static str, &'static str)]| -> Vec<(Bytes, Bytes)> {
        pairs.iter().map(|&(key, value)| (key.into(), value.into())).collect()
    };
    let hints = || pairs(&[("wdir", "/tmp"), ("mykey", "my value")]);
    let parent = |port| pairs(&[("PARENT_ROOT_PORT_NAME", port)]);
    let mpich = || app("/opt/example/app/tap.py", &["/opt/example/app/bin/m502/spawn", "hello world", "a=b;c"]);
    let intel = || app("/opt/example/app/bin/impi/spawn", &["hello world", "a=b;c"]);
    match file {
        "pmi1-spawn-mpich-5.0.2.txt" => SpawnRequest {
            apps: vec![SpawnApp { info: hints(), ..mpich() }],
            preput: parent("tag#0$connentry#766D0002008B33C0000202[8]$"),
            parent: None,
        },
        "pmi1-spawn-multiple-mpich-5.0.2.txt" => SpawnRequest {
            apps: vec![SpawnApp { info: hints(), ..mpich() }, mpich()],
            preput: parent("tag#0$connentry#766D0002009039C0000202[8]$"),
            parent: None,
        },
        "pmi1-spawn-multiple-writes-intelmpi-2021.18.txt" => SpawnRequest {
            apps: vec![SpawnApp { info: hints(), ..intel() }, intel()],
            preput: parent("tag#0$connentry#02008AB9C00002020000000000000000$"),
            parent: None,
        },
        "pmi2-spawn-mpichlib.txt" => SpawnRequest {
            apps: vec![
                SpawnApp { info: pairs(&[("wdir", "/tmp")]), ..app("/opt/example/app/bin/p2m", &["child", "x y"]) },
                app("/opt/example/app/bin/p2m", &["child"]),
            ],
            preput: parent("the port"),
            parent: None,
        },
        "pmi2-spawn-slurmlib.txt" => SpawnRequest {
            apps: vec![app("/opt/example/app/bin/p2", &["child", "x y;z"]), app("/opt/example/app/bin/p2", &["child"])],
            preput: Vec::new(),
            parent: None,
        },
        other => panic!("{other} holds no spawn"),
    }
}
