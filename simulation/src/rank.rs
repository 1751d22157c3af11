//! A rank: a client of PMI-1 that puts, fences, gets and may spawn a job. It checks every received value.

use std::collections::VecDeque;

use bytes::Bytes;
use lattice_session::cause::RankExit;
use pmi_core::ids::Rank;

use crate::input::Reading;
use crate::scenario::{Misstep, Program, Protocol, SPAWNED_EPOCHS, Scenario, Wrong};
use crate::speech::PmixSpeech;
use crate::time::Time;
use crate::truth::Truth;

/// One process.
#[derive(Debug)]
pub(crate) struct RankProcess {
    pub(crate) rank: Rank,
    /// Name of its key-value space.
    space: String,
    /// Translation to PMIx, for a rank of PMIx.
    speech: Option<PmixSpeech>,
    steps: VecDeque<Step>,
    /// Bytes of its server that do not form a complete line yet.
    read: Vec<u8>,
    /// Arrival time of the last bytes of its server.
    last_arrival: Time,
    /// The step with an outstanding answer.
    awaits: Option<Step>,
    /// The next step is scheduled.
    pub(crate) is_stepping: bool,
    /// The rank waits for input.
    pub(crate) waits_for_input: bool,
    pub(crate) lines: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Init,
    Name,
    Put(u32),
    Print,
    /// Reads the input to the end, in reads of at most `most` bytes.
    Read {
        most: usize,
    },
    /// Spawns a job with this number of ranks.
    Spawn(u32),
    /// Gets the value that the parent of its job has preput.
    GetParent(Rank),
    Fence(u32),
    Get {
        owner: u32,
        epoch: u32,
    },
    /// Gets a key that its owner puts again before each fence. The value must be of this fence or a later one.
    GetLatest {
        owner: u32,
        epoch: u32,
    },
    Finalize,
    Wrong(Wrong),
    Exit(i32),
}

/// Action of a process for a step.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Deed {
    /// Writes this text to its server, and waits for the answer.
    Ask(String),
    /// Writes this text to its server.
    Say(String),
    Print,
    Read {
        most: usize,
    },
    Exit(RankExit),
    /// Does nothing any more.
    Nothing,
}

impl RankProcess {
    /// Creates a rank of the launched job, or of a spawned job.
    pub(crate) fn new(rank: Rank, scenario: &Scenario) -> Self {
        let Program { fault, .. } = scenario.program(rank);
        let family = scenario.family_of(rank);
        let (size, is_launched) = (family.len() as u32, family.start == 0);
        let mut steps = VecDeque::from([Step::Init, Step::Name]);
        let reading = scenario.input.as_ref().and_then(|input| input.reading_of(rank)).filter(|_| is_launched);
        let epochs = if is_launched { scenario.epochs } else { SPAWNED_EPOCHS };
        let spawn = scenario.spawn.filter(|spawn| is_launched && spawn.parent == rank);
        steps.extend(scenario.spawn.filter(|_| !is_launched).map(|spawn| Step::GetParent(spawn.parent)));
        for epoch in 0..=epochs {
            steps.extend(spawn.filter(|spawn| spawn.before == epoch).map(|spawn| Step::Spawn(spawn.ranks)));
            if let Some(Reading { most, .. }) = reading.filter(|reading| reading.before == Some(epoch)) {
                steps.push_back(Step::Read { most });
            }
            if let Some(Misstep { what, .. }) = fault.filter(|fault| fault.before == epoch) {
                steps.push_back(Step::Wrong(what));
            }
            if epoch == epochs {
                break;
            }
            steps.extend([Step::Put(epoch), Step::Print, Step::Fence(epoch)]);
            for distance in 1..size.min(5) {
                let owner = family.start + (rank.0 - family.start + distance) % size;
                steps.push_back(Step::Get { owner, epoch: epoch / 2 });
                steps.push_back(Step::GetLatest { owner, epoch });
            }
        }
        steps.extend([Step::Print, Step::Finalize, Step::Exit(0)]);
        let speech = match scenario.protocol {
            Protocol::Pmi1 => None,
            Protocol::Pmix { collects, .. } => Some(PmixSpeech::new(rank.0, collects)),
        };
        Self {
            rank,
            space: "kvs_1_0".to_owned(),
            speech,
            steps,
            read: Vec::new(),
            last_arrival: Time::default(),
            awaits: None,
            is_stepping: false,
            waits_for_input: false,
            lines: 0,
        }
    }

    /// Performs the next step, unless the rank waits for an answer.
    pub(crate) fn step(&mut self, truth: &mut Truth) -> Option<Deed> {
        if self.awaits.is_some() || self.waits_for_input {
            return None;
        }
        let step = self.steps.pop_front()?;
        let asks = |text: String| Deed::Ask(text);
        let (me, space) = (self.rank.0, &self.space);
        let deed = match step {
            Step::Init => asks("cmd=init pmi_version=1 pmi_subversion=1\n".to_owned()),
            Step::Name => asks("cmd=get_my_kvsname\n".to_owned()),
            Step::Put(epoch) => {
                truth.put(self.rank, epoch);
                // Two keys. The second one is put again before each fence. A client may write a request before the answer to
                // the previous one.
                let twice = |key: String| format!("cmd=put kvsname={space} key={key} value={}\n", value(me, epoch));
                let text = twice(format!("k{me}-{epoch}")) + &twice(format!("latest{me}"));
                self.awaits = Some(step);
                return Some(Deed::Ask(text));
            }
            Step::Print => Deed::Print,
            Step::Read { most } => {
                self.steps.push_front(step);
                Deed::Read { most }
            }
            Step::Fence(epoch) => {
                truth.enter(self.rank, epoch);
                asks("cmd=barrier_in\n".to_owned())
            }
            Step::Get { owner, epoch } => asks(format!("cmd=get kvsname={space} key=k{owner}-{epoch}\n")),
            Step::GetLatest { owner, .. } => asks(format!("cmd=get kvsname={space} key=latest{owner}\n")),
            Step::Spawn(ranks) => asks(spawn_words(ranks, me)),
            Step::GetParent(_) => asks(format!("cmd=get kvsname={space} key=parent\n")),
            Step::Finalize => asks("cmd=finalize\n".to_owned()),
            Step::Exit(code) => Deed::Exit(RankExit::Code(code)),
            Step::Wrong(wrong) => return Some(self.go_wrong(wrong, truth)),
        };
        if matches!(deed, Deed::Ask(_)) {
            self.awaits = Some(step);
        }
        Some(deed)
    }

    fn go_wrong(&mut self, wrong: Wrong, truth: &mut Truth) -> Deed {
        self.steps.clear();
        truth.has_erred |= matches!(wrong, Wrong::Abort(_) | Wrong::Leave | Wrong::Desert | Wrong::Babble);
        match wrong {
            Wrong::Exit(code) => Deed::Exit(RankExit::Code(code)),
            Wrong::Abort(code) => {
                // First the library aborts, then the process exits.
                self.steps.push_back(Step::Exit(code));
                Deed::Say(format!("cmd=abort exitcode={code}\n"))
            }
            Wrong::Crash(signal) => Deed::Exit(RankExit::Signal { signal, core_dumped: false }),
            Wrong::Leave => Deed::Exit(RankExit::Code(0)),
            Wrong::Desert => {
                self.steps.push_back(Step::Exit(0));
                self.awaits = Some(Step::Finalize);
                Deed::Ask("cmd=finalize\n".to_owned())
            }
            Wrong::Hang => Deed::Nothing,
            Wrong::Babble => Deed::Say("\u{7}\u{7} no message at all\n".to_owned()),
        }
    }

    /// The rank has read its input to the end.
    pub(crate) fn has_read(&mut self) {
        self.steps.pop_front_if(|step| matches!(step, Step::Read { .. }));
    }

    /// Returns the arrival time of bytes from its server, at `earliest` or later, so that the bytes stay in order.
    pub(crate) fn arrives_at(&mut self, earliest: Time) -> Time {
        self.last_arrival = self.last_arrival.max(earliest);
        self.last_arrival
    }

    /// Returns the bytes that the rank writes to its server for these lines.
    pub(crate) fn words(&mut self, lines: String) -> Bytes {
        match &mut self.speech {
            Some(speech) => speech.say(&lines).into(),
            None => lines.into(),
        }
    }

    /// Processes bytes of its server. Returns true if the next step may follow.
    pub(crate) fn read(&mut self, bytes: &Bytes, truth: &mut Truth) -> bool {
        match &mut self.speech {
            Some(speech) => self.read.extend(speech.read(bytes).into_bytes()),
            None => self.read.extend_from_slice(bytes),
        }
        let mut goes_on = false;
        while let Some(end) = self.read.iter().position(|&byte| byte == b'\n') {
            let line: Vec<u8> = self.read.drain(..=end).collect();
            let line = String::from_utf8_lossy(&line).trim_end().to_owned();
            goes_on |= self.answered(&line, truth);
        }
        goes_on
    }

    fn answered(&mut self, line: &str, truth: &mut Truth) -> bool {
        let Some(step) = self.awaits.take() else {
            truth.wrong(format!("I1: rank {} is told {line:?}, and has asked nothing", self.rank));
            return false;
        };
        match step {
            // The second answer is outstanding as well.
            Step::Put(epoch) if epoch != u32::MAX => {
                self.expect(line, "cmd=put_result rc=0", truth);
                self.awaits = Some(Step::Put(u32::MAX));
                return false;
            }
            Step::Put(_) => self.expect(line, "cmd=put_result rc=0", truth),
            Step::Init => self.expect(line, "cmd=response_to_init rc=0", truth),
            Step::Name => {
                self.expect(line, "cmd=my_kvsname", truth);
                if let Some((_, space)) = line.split_once(" kvsname=") {
                    self.space = space.to_owned();
                }
            }
            Step::Spawn(_) => {
                let job = line.strip_prefix("cmd=spawn_result rc=0 jobid=kvs_1_0.s").and_then(|job| job.parse().ok());
                match job {
                    Some(job) => truth.has_spawned(job),
                    None if truth.may_refuse_spawn() => {}
                    None => truth.wrong(format!("I3: rank {} spawns a job and is told {line:?}", self.rank)),
                }
            }
            Step::GetParent(parent) => {
                if value_of(line) != Some(&*value(parent.0, 0)) {
                    truth.wrong(format!("I2: rank {} gets what its parent has put and is told {line:?}", self.rank));
                }
            }
            Step::Fence(_) if line.starts_with("refused") && self.may_be_refused(truth) => {}
            Step::Fence(epoch) => {
                self.expect(line, "cmd=barrier_out", truth);
                truth.leave(self.rank, epoch);
            }
            Step::Get { owner, epoch } => {
                let got = value_of(line);
                let may_miss = truth.is_done_without(Rank(owner), epoch) || self.may_be_refused(truth);
                if got != Some(&*value(owner, epoch)) && !(got.is_none() && may_miss) {
                    truth.wrong(format!("I2: rank {} gets k{owner}-{epoch} and is told {line:?}", self.rank));
                }
            }
            Step::GetLatest { owner, epoch } => self.check_latest(line, owner, epoch, truth),
            Step::Finalize => self.expect(line, "cmd=finalize_ack", truth),
            Step::Print | Step::Read { .. } | Step::Exit(_) | Step::Wrong(_) => {}
        }
        true
    }

    fn check_latest(&self, line: &str, owner: u32, epoch: u32, truth: &mut Truth) {
        let got = value_of(line).and_then(|value| value.strip_prefix(&format!("v{owner}-"))?.parse::<u32>().ok());
        let is_lenient = self.may_be_refused(truth);
        match got {
            None if is_lenient => {}
            None => truth.wrong(format!("I2: rank {} gets latest{owner} and is told {line:?}", self.rank)),
            Some(got) if got < epoch && !is_lenient && !truth.is_done_without(Rank(owner), got + 1) => truth.wrong(
                format!("I2: after fence {epoch} rank {} reads what rank {owner} put before fence {got}", self.rank),
            ),
            Some(got) if !truth.has_put(Rank(owner), got) => {
                truth.wrong(format!("I1: rank {} reads what rank {owner} never put: {line:?}", self.rank));
            }
            Some(_) => {}
        }
    }

    /// Returns true for a rank of PMIx in a launch that may be ending. Its server answers with errors, or with the available
    /// data.
    fn may_be_refused(&self, truth: &Truth) -> bool {
        self.speech.is_some() && truth.may_be_ending()
    }

    fn expect(&self, line: &str, prefix: &str, truth: &mut Truth) {
        if !line.starts_with(prefix) {
            truth.wrong(format!("I1: rank {} expects {prefix:?} and is told {line:?}", self.rank));
        }
    }
}

/// Returns a spawn request for the node of the rank, with a pair that the new ranks get.
fn spawn_words(ranks: u32, me: u32) -> String {
    format!(
        "mcmd=spawn\nnprocs={ranks}\nexecname=program\ntotspawns=1\nspawnssofar=1\nargcnt=0\npreput_num=1\npreput_key_0=parent\n\
         preput_val_0={}\ninfo_num=1\ninfo_key_0=host\ninfo_val_0=localhost\nendcmd\n",
        value(me, 0)
    )
}

fn value(owner: u32, epoch: u32) -> String {
    format!("v{owner}-{epoch}")
}

fn value_of(line: &str) -> Option<&str> {
    line.split_once(" value=").map(|(_, value)| value)
}
