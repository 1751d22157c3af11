//! Reads the recorded conversations of `testdata/`; the format is described in its README.

#![allow(dead_code, reason = "each test file uses a part of it")]

use std::fs;
use std::path::PathBuf;

use pmi_core::ids::{JobId, NodeIndex};
use pmi_core::job::{App, Block, Job, Placement};

/// One side of a conversation: a rank, and its spawned job.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Speaker {
    /// Name of a spawned job; `None` for the first job of the file.
    pub(crate) spawned: Option<String>,
    pub(crate) rank: u32,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum What {
    FromClient(Vec<u8>),
    FromServer(Vec<u8>),
    ClientCloses,
    ServerCloses,
}

/// One file.
pub(crate) struct Transcript {
    pub(crate) name: String,
    pub(crate) lines: Vec<(Speaker, What)>,
    comments: Vec<String>,
}

pub(crate) fn directory() -> PathBuf {
    [env!("CARGO_MANIFEST_DIR"), "testdata"].iter().collect()
}

/// The names of all files, in order.
pub(crate) fn names() -> Vec<String> {
    let files = fs::read_dir(directory()).expect("testdata is part of the crate");
    let names = files.map(|file| file.expect("a readable directory").file_name().into_string().expect("a plain name"));
    let mut names: Vec<_> = names.filter(|name| name.ends_with(".txt")).collect();
    names.sort();
    names
}

impl Transcript {
    pub(crate) fn load(name: &str) -> Self {
        let text = fs::read_to_string(directory().join(name)).unwrap_or_else(|error| panic!("{name}: {error}"));
        let mut transcript = Self { name: name.to_owned(), lines: Vec::new(), comments: Vec::new() };
        let mut speaker = Speaker { spawned: None, rank: 0 };
        for line in text.lines() {
            if let Some(who) = line.strip_prefix("@rank ") {
                let (rank, spawned) = who.split_once(" job ").map_or((who, None), |(rank, job)| (rank, Some(job)));
                // `?` is a connection without a claimed rank; only one file has it, with one rank.
                speaker = Speaker { spawned: spawned.map(str::to_owned), rank: rank.parse().unwrap_or(0) };
            } else if let Some(comment) = line.strip_prefix('#') {
                transcript.comments.push(comment.to_owned());
            } else {
                let what = match line {
                    "C> <EOF>" => What::ClientCloses,
                    "S> <EOF>" => What::ServerCloses,
                    _ if line.starts_with("C> ") => What::FromClient(unescape(&line[3..])),
                    _ if line.starts_with("S> ") => What::FromServer(unescape(&line[3..])),
                    _ => panic!("{name}: {line:?} is no line of a transcript"),
                };
                transcript.lines.push((speaker.clone(), what));
            }
        }
        transcript
    }

    /// Returns true if the lines have the order of the messages over all ranks.
    pub(crate) fn keeps_global_order(&self) -> bool {
        self.comments.iter().any(|comment| comment.contains("throw-away experiment server"))
    }

    /// The spawned jobs of the file, by name.
    pub(crate) fn spawned(&self) -> Vec<String> {
        let mut jobs: Vec<_> = self.lines.iter().filter_map(|(speaker, _)| speaker.spawned.clone()).collect();
        jobs.sort();
        jobs.dedup();
        jobs
    }

    pub(crate) fn of<'a>(&'a self, spawned: Option<&'a str>) -> impl Iterator<Item = (u32, &'a What)> + 'a {
        let of_job = self.lines.iter().filter(move |(speaker, _)| speaker.spawned.as_deref() == spawned);
        of_job.map(|(speaker, what)| (speaker.rank, what))
    }

    /// The job of the recorded conversation, with defaults for all facts that the conversation omits.
    pub(crate) fn job(&self, spawned: Option<&str>) -> Job {
        let id = self.job_name(spawned);
        let size = self.size(spawned);
        let mapping = self.fields(spawned, "value").map(|(_, value)| value).find(|value| value.starts_with("(vector"));
        let placement = mapping.map_or_else(|| Placement::one_node(size), |mapping| placement(&mapping, size));
        let mut job = Job { placement, ..Job::on_one_node(JobId::new(&id).expect("a real job id"), size) };
        job.apps = (0..size).map(|rank| App { ranks: 1, appnum: self.appnum(spawned, rank) }).collect();
        job.universe_size = self.universe_size(spawned);
        job.spawner = spawned.and_then(|_| JobId::new(self.job(None).id.as_str()).ok());
        job
    }

    /// Name in a message to a rank of the job or of a job that it spawned, else the name in the file.
    fn job_name(&self, spawned: Option<&str>) -> String {
        let told = self.fields(spawned, "kvsname").chain(self.fields(spawned, "jobid"));
        let named = told.map(|(_, name)| name).find(|name| !name.is_empty());
        let of_spawned = self.spawned().into_iter().filter(|_| spawned.is_none());
        let mut parents = of_spawned.flat_map(|child| self.fields(Some(&child), "spawner-jobid").collect::<Vec<_>>());
        let named = named.or_else(|| parents.next().map(|(_, name)| name));
        named.unwrap_or_else(|| spawned.unwrap_or("unnamed").to_owned())
    }

    /// Size from the environment in the header, or the number of ranks with messages.
    fn size(&self, spawned: Option<&str>) -> u32 {
        let shown = self.comments.iter().find_map(|comment| {
            comment.split(' ').find_map(|word| word.strip_prefix("PMI_SIZE=")).and_then(|size| size.parse().ok())
        });
        let speaking = self.of(spawned).map(|(rank, _)| rank + 1).max().expect("somebody speaks");
        shown.unwrap_or(speaking).max(speaking)
    }

    fn appnum(&self, spawned: Option<&str>, rank: u32) -> i32 {
        let mut appnums = self.fields(spawned, "appnum");
        appnums.find(|(of, _)| *of == rank).map_or(0, |(_, appnum)| appnum.parse().expect("a number"))
    }

    fn universe_size(&self, spawned: Option<&str>) -> Option<u32> {
        let mut asked = false;
        let mut sizes = self.of(spawned).filter_map(|(_, what)| match what {
            What::FromClient(bytes) => {
                asked = text(bytes).contains("universe");
                None
            }
            What::FromServer(bytes) if asked => field(bytes, "size").or_else(|| field(bytes, "value")),
            _ => None,
        });
        sizes.next().and_then(|size| size.parse().ok())
    }

    /// Returns true if the recorded server offered PMI-1.2.
    pub(crate) fn has_group_barriers(&self) -> bool {
        self.fields(None, "pmi_subversion").any(|(_, minor)| minor == "2")
    }

    /// Values of a field in all messages of the server, and of the clients for `kvsname`.
    fn fields<'a>(&'a self, spawned: Option<&'a str>, name: &'a str) -> impl Iterator<Item = (u32, String)> + 'a {
        let said = self.of(spawned).filter_map(move |(rank, what)| match what {
            What::FromServer(bytes) if !text(bytes).contains("cmd=spawn") => Some((rank, bytes)),
            What::FromClient(bytes) if name == "kvsname" => Some((rank, bytes)),
            _ => None,
        });
        said.filter_map(move |(rank, bytes)| Some((rank, field(bytes, name)?)))
    }
}

/// The fields of a message in either format, by name. A value extends to the end of the field. In a PMI-1 answer to `get` that is the end
/// of the line, except for the `found=TRUE` that Hydra 4.1 appended.
pub(crate) fn fields(message: &[u8]) -> Vec<(String, String)> {
    let text = text(message);
    let pairs = |words: Vec<&str>| words.into_iter().filter_map(|word| word.split_once('=')).map(own).collect();
    if text.starts_with("cmd=") {
        let line = text.trim_end_matches('\n');
        let line = line.strip_suffix(" found=TRUE").unwrap_or(line);
        let (words, tail) = match line.find(" value=") {
            Some(value) => (&line[..value], Some(&line[value + 1..])),
            None => (line, None),
        };
        return pairs(words.split([' ', '\n']).chain(tail).collect());
    }
    let body = text[6..].replace(";;", "\0");
    let mut fields: Vec<(String, String)> = pairs(body.split(';').collect());
    fields.iter_mut().for_each(|(_, value)| *value = value.replace('\0', ";"));
    fields
}

pub(crate) fn field(message: &[u8], name: &str) -> Option<String> {
    fields(message).into_iter().find(|(found, _)| found == name).map(|(_, value)| value)
}

fn own((name, value): (&str, &str)) -> (String, String) {
    (name.to_owned(), value.to_owned())
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Node of each rank, as a client reads a mapping: a short mapping repeats from its start.
pub(crate) fn nodes_of_mapping(mapping: &str, size: u32) -> Vec<u32> {
    let mut nodes = Vec::new();
    for block in blocks(mapping) {
        for node in 0..block.nodes {
            nodes.extend((0..block.ranks_per_node).map(|_| block.first_node.0 + node));
        }
    }
    assert!(!nodes.is_empty(), "{mapping} holds no rank");
    nodes.into_iter().cycle().take(size as usize).collect()
}

fn placement(mapping: &str, size: u32) -> Placement {
    let mut placement = Placement::default();
    for node in nodes_of_mapping(mapping, size) {
        placement.push(Block { first_node: NodeIndex(node), nodes: 1, ranks_per_node: 1 });
    }
    placement
}

fn blocks(mapping: &str) -> Vec<Block> {
    let inner = mapping.strip_prefix("(vector,(").and_then(|rest| rest.strip_suffix("))")).expect("a mapping");
    let numbers = |block: &str| block.split(',').map(|number| number.parse().expect("a number")).collect::<Vec<u32>>();
    let block =
        |numbers: Vec<u32>| Block { first_node: NodeIndex(numbers[0]), nodes: numbers[1], ranks_per_node: numbers[2] };
    inner.split("),(").map(|text| block(numbers(text))).collect()
}

fn unescape(text: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'\\' => match rest.next() {
                Some(b'n') => b'\n',
                Some(b'r') => b'\r',
                Some(b'\\') => b'\\',
                other => panic!("{text:?} holds \\{other:?}"),
            },
            plain => plain,
        });
    }
    bytes
}
