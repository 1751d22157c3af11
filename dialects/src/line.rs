//! Builder of a line of `lattice launch`, flag by flag.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

use lattice_console::Verbosity;
use lattice_console::environment::{ALLOCATION, NO_ALLOCATION};
use rank_spawner::Object;

use crate::idle::{Allocation, Notice};

/// Separator of the programs of a line.
pub const SEPARATOR: &str = ":";

/// Translation of a line of another launcher to a line of `lattice launch`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Translation {
    /// Words after `lattice launch`.
    pub words: Vec<OsString>,
    /// Notes that only `-v` prints, for example on ignored flags.
    pub notes: Vec<String>,
    /// Warnings about words with an effect that users may not expect.
    pub warnings: Vec<String>,
    /// Verbosity of messages, if the line sets it.
    pub verbosity: Option<Verbosity>,
}

/// State of a line during its translation.
#[derive(Debug, Default)]
pub(super) struct Line {
    /// Flags of the launch.
    launch: Vec<OsString>,
    /// Flags of every program.
    every_program: Vec<OsString>,
    programs: Vec<Program>,
    current: Program,
    /// True if consecutive ranks are placed on different nodes, unless a number for each node is set.
    pub(super) is_dealt_out: bool,
    /// True if ranks start again with the first node when each node has its number of ranks.
    pub(super) goes_round: bool,
    /// Value of `--tasks-per` for a word of Intel MPI in place of the number of ranks of a host.
    pub(super) of_each_host: Option<&'static str>,
    /// Index of the host of each rank, from Hydra's `-rankmap`.
    pub(super) rank_map: Option<Vec<usize>>,
    /// Words of `mpiexec` about the placement of ranks within a node.
    pub(super) places: Places,
    /// GPUs of the launch: the value of srun's `--gpus`.
    pub(super) gpus: Option<OsString>,
    /// Parameters of Open MPI's launcher with an equivalent flag, by name.
    pub(super) parameters: Vec<(String, OsString)>,
    /// True while words of a file are read.
    pub(super) is_in_file: bool,
    /// Flags of the other launcher in the line.
    pub(super) typed: Vec<Typed>,
    /// Notes on ignored flags, with the value of the flag. The notice determines whether a note is reported.
    ignored: Vec<(Notice, Option<OsString>, String)>,
    notes: Vec<String>,
    warnings: Vec<String>,
    pub(super) verbosity: Option<Verbosity>,
}

/// A flag of the other launcher in a line.
#[derive(Debug)]
pub(super) struct Typed {
    /// First name of the flag.
    pub(super) name: &'static str,
    /// Index of the program that has the flag.
    pub(super) program: usize,
    /// Value of the flag; empty without one.
    pub(super) value: OsString,
    /// True if the flag applies to all programs here, regardless of its position.
    pub(super) is_of_launch: bool,
}

/// Words of a line about the placement of ranks within a node.
#[derive(Debug, Default)]
pub(super) struct Places {
    /// Binding, in the words of `--cpu-bind`.
    pub(super) object: Option<String>,
    /// Cores that ranks are bound to, as typed.
    pub(super) core_list: Option<String>,
    /// True if the line binds ranks to cores of a list.
    pub(super) is_listed: bool,
    /// True if each rank is bound to one core of the list.
    pub(super) is_ordered: bool,
    /// True if each line of the hostfile, or each host, takes one rank.
    pub(super) is_in_sequence: bool,
    /// Number of cores of each rank.
    pub(super) cores: Option<String>,
    /// Share of each rank in the object that it is bound to, if the line sets no number of cores.
    pub(super) share: Option<&'static str>,
    /// True if the line sets the mapping of ranks.
    pub(super) is_mapped: bool,
    /// True if the line sets a number of ranks for each object of a kind.
    pub(super) is_by_objects: bool,
    /// Object that ranks are mapped by. Without an explicit binding, Open MPI also binds ranks to it.
    pub(super) mapped: Option<Object>,
    /// Objects that ranks are distributed over.
    pub(super) over: Option<Object>,
    pub(super) overcommit: bool,
    /// True if slots are hardware threads instead of cores.
    pub(super) counts_threads: bool,
}

/// A program with its flags.
#[derive(Debug, Default)]
pub(super) struct Program {
    flags: Vec<OsString>,
    command: Vec<OsString>,
    /// Number of ranks, as typed.
    pub(super) ranks: Option<OsString>,
    /// Hosts of this program alone.
    pub(super) hosts: Option<String>,
    /// Directories to search for the program.
    pub(super) path: Option<OsString>,
}

impl Program {
    /// True if the program has this flag.
    pub(super) fn has(&self, flag: &str) -> bool {
        position(&self.flags, flag).is_some()
    }

    /// True if the program has no command, no flags and no hosts.
    pub(super) fn is_nothing(&self) -> bool {
        self.command.is_empty() && self.flags.is_empty() && self.hosts.is_none()
    }

    /// Puts the program on these hosts.
    pub(super) fn put_on(&mut self, hosts: &str) {
        self.flags.push(joined("--host", Some(hosts.as_ref())));
    }
}

impl Line {
    pub(super) fn add_to_launch(&mut self, flag: &str, value: Option<&OsStr>) {
        self.launch.push(joined(flag, value));
    }

    pub(super) fn add_to_program(&mut self, flag: &str, value: Option<&OsStr>) {
        self.current.flags.push(joined(flag, value));
    }

    /// Adds a flag about nodes: to the launch for the first program, to the program itself after a `:`.
    pub(super) fn add_to_nodes(&mut self, flag: &str, value: Option<&OsStr>) {
        match self.programs.is_empty() {
            true => self.add_to_launch(flag, value),
            false => self.add_to_program(flag, value),
        }
    }

    pub(super) fn add_to_every_program(&mut self, flag: &str, value: &OsStr) {
        self.every_program.push(joined(flag, Some(value)));
    }

    /// Variables that the line sets for every program, with their values.
    pub(super) fn variables(&self) -> Vec<(OsString, OsString)> {
        let pair = |word: &OsString| {
            let bytes = word.as_bytes().strip_prefix(b"--env=")?;
            let equals = bytes.iter().position(|&byte| byte == b'=')?;
            Some((OsStr::from_bytes(&bytes[..equals]).to_owned(), OsStr::from_bytes(&bytes[equals + 1..]).to_owned()))
        };
        self.every_program.iter().filter_map(pair).collect()
    }

    /// Records a flag of the other launcher by its first name.
    pub(super) fn remember(&mut self, name: &'static str, is_of_launch: bool, value: Option<&OsStr>) {
        let value = value.unwrap_or_default().to_owned();
        self.typed.push(Typed { name, program: self.programs.len(), value, is_of_launch });
    }

    /// True if the line has the flag of the other launcher with this first name.
    pub(super) fn has_typed(&self, name: &str) -> bool {
        self.typed.iter().any(|typed| typed.name == name)
    }

    /// Value of the last such flag.
    pub(super) fn typed_value(&self, name: &str) -> Option<&OsStr> {
        self.typed.iter().rev().find(|typed| typed.name == name).map(|typed| typed.value.as_os_str())
    }

    /// Adds a note that a flag with this value is ignored.
    pub(super) fn ignore(&mut self, notice: Notice, value: Option<&OsStr>, note: String) {
        self.ignored.push((notice, value.map(OsStr::to_owned), note));
    }

    /// True if the launch runs in an allocation of Lattice.
    pub(super) fn is_in_allocation(&self) -> bool {
        let id = self.value("--alloc").or_else(|| std::env::var_os(ALLOCATION));
        id.is_some_and(|id| !id.is_empty() && id != NO_ALLOCATION)
    }

    pub(super) fn note(&mut self, note: String) {
        self.notes.push(note);
    }

    /// Adds a note that is printed without `-v`.
    pub(super) fn warn(&mut self, warning: String) {
        self.warnings.push(warning);
    }

    /// The current program: the one that is being read.
    pub(super) fn program(&mut self) -> &mut Program {
        &mut self.current
    }

    /// Copies this flag to each program without it, from the program before.
    pub(super) fn hand_down(&mut self, flag: &str) {
        let mut before: Option<OsString> = None;
        for program in &mut self.programs {
            match position(&program.flags, flag) {
                Some(position) => before = Some(program.flags[position].clone()),
                None => program.flags.extend(before.clone()),
            }
        }
    }

    /// True if any program has a number of ranks.
    pub(super) fn is_counted(&self) -> bool {
        let ranks = |words: &Vec<OsString>| position(words, "--ntasks").is_some();
        ranks(&self.every_program) || self.programs.iter().any(|program| program.has("--ntasks"))
    }

    pub(super) fn programs(&self) -> &[Program] {
        &self.programs
    }

    pub(super) fn clear_programs(&mut self) {
        self.programs.clear();
    }

    pub(super) fn programs_mut(&mut self) -> &mut [Program] {
        &mut self.programs
    }

    /// Fills objects of each node, as `objects` in the form of `--tasks-per` specifies. This replaces any other order among nodes.
    pub(super) fn fill(&mut self, objects: &str) {
        self.is_dealt_out = false;
        self.add_to_launch("--tasks-per", Some(objects.as_ref()));
    }

    /// Distributes ranks among the nodes one by one, unless a number for each node is set.
    pub(super) fn deal_out(&mut self) {
        self.is_dealt_out = true;
    }

    /// True if the launch has this flag.
    pub(super) fn has(&self, flag: &str) -> bool {
        self.position(flag).is_some()
    }

    /// Removes all occurrences of a flag with a value from the launch; returns its last value.
    pub(super) fn take(&mut self, flag: &str) -> Option<OsString> {
        let value = self.value(flag)?;
        self.remove(flag);
        Some(value)
    }

    /// Removes all occurrences of a flag from the launch; true if there was one.
    pub(super) fn remove(&mut self, flag: &str) -> bool {
        let before = self.launch.len();
        while let Some(position) = self.position(flag) {
            self.launch.remove(position);
        }
        self.launch.len() < before
    }

    /// Last value of a flag of the launch, which the parser of `lattice launch` uses too.
    pub(super) fn value(&self, flag: &str) -> Option<OsString> {
        let word = self.launch[self.position(flag)?].to_string_lossy();
        word.split_once('=').map(|(_, value)| value.into())
    }

    fn position(&self, flag: &str) -> Option<usize> {
        position(&self.launch, flag)
    }

    /// Ends the current program, with its name and arguments.
    pub(super) fn end_program(&mut self, command: &[OsString]) {
        let mut program = std::mem::take(&mut self.current);
        if let Some(ranks) = &program.ranks {
            program.flags.insert(0, joined("--ntasks", Some(ranks)));
        }
        program.command = command.to_vec();
        if let (Some(path), Some(name)) = (&program.path, program.command.first_mut()) {
            *name = found_in(path, name);
        }
        self.programs.push(program);
    }

    pub(super) fn finish(mut self) -> Translation {
        if self.is_dealt_out && !self.has("--tasks-per-node") && !self.has("--distribution") {
            self.add_to_launch("--distribution", Some(OsStr::new("cyclic")));
        }
        let allocation = if self.is_in_allocation() { Allocation::Given } else { Allocation::Missing };
        for (notice, value, note) in std::mem::take(&mut self.ignored) {
            match notice.is_due(value.as_deref(), allocation) {
                true if self.warnings.contains(&note) => {}
                true => self.warn(note),
                false => self.note(note),
            }
        }
        let mut words = self.launch;
        for (index, program) in self.programs.into_iter().enumerate() {
            if index > 0 {
                words.push(SEPARATOR.into());
            }
            words.extend(self.every_program.iter().cloned());
            words.extend(program.flags);
            // A program name that starts with a dash is otherwise parsed as a flag.
            if program.command.first().is_some_and(|name| name.as_encoded_bytes().starts_with(b"-")) {
                words.push("--".into());
            }
            words.extend(program.command);
        }
        Translation { words, notes: self.notes, warnings: self.warnings, verbosity: self.verbosity }
    }
}

/// Last position of a flag in `words`.
fn position(words: &[OsString], flag: &str) -> Option<usize> {
    let rest = |word: &OsString| word.as_encoded_bytes().strip_prefix(flag.as_bytes()).map(<[u8]>::to_vec);
    words.iter().rposition(|word| rest(word).is_some_and(|rest| rest.is_empty() || rest[0] == b'='))
}

fn joined(flag: &str, value: Option<&OsStr>) -> OsString {
    let mut word = OsString::from(flag);
    if let Some(value) = value {
        word.push("=");
        word.push(value);
    }
    word
}

/// Path of the program `name` in the first of the directories that has it, else `name` unchanged.
fn found_in(path: &OsStr, name: &OsStr) -> OsString {
    if name.as_encoded_bytes().contains(&b'/') {
        return name.to_owned();
    }
    let found = std::env::split_paths(path).map(|directory| directory.join(name)).find(|file| file.is_file());
    found.map_or_else(|| name.to_owned(), Into::into)
}
