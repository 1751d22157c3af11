//! Translation for a rank of PMIx: its requests in PMI-1 become frames of PMIx, and the answers become those of PMI-1. It is a
//! stand-in for a PMIx library, and uses the wire format of the crate `pmix-core`.

use std::fmt::Write;

use pmix_core::wire::frame::{HEADER, TAG_FIRST_REQUEST, message};
use pmix_core::wire::reader::{Proc, Reader};
use pmix_core::wire::request::command;
use pmix_core::wire::value::{Info, Value};
use pmix_core::wire::writer::Writer;
use pmix_core::wire::{Encoding, WireError, status, types};

/// Namespace of the launched job.
const NAMESPACE: &[u8] = b"kvs_1_0.secret";

/// Buffers without the types of their items.
const NOT_DESCRIBED: u8 = 1;

/// State of the translation for one rank.
#[derive(Debug)]
pub(crate) struct PmixSpeech {
    rank: u32,
    encoding: Encoding,
    /// Fences send the data of all ranks to all nodes.
    collects: bool,
    tag: u32,
    /// Bytes of the server that do not form a complete answer yet.
    read: Vec<u8>,
    /// The outstanding request; `None` before the greeting, and if there is none.
    asked: Option<PendingRequest>,
}

/// A request without an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
enum PendingRequest {
    Greeting,
    Name,
    Commit { pairs: usize },
    Fence,
    Get { owner: u32, key: String },
    Finalize,
}

impl PmixSpeech {
    pub(crate) fn new(rank: u32, collects: bool) -> Self {
        let encoding = if rank.is_multiple_of(2) { Encoding::Flex } else { Encoding::Fixed };
        Self { rank, encoding, collects, tag: TAG_FIRST_REQUEST, read: Vec::new(), asked: None }
    }

    /// Returns the frames for lines of PMI-1.
    pub(crate) fn say(&mut self, lines: &str) -> Vec<u8> {
        let words = |line: &str, name: &str| {
            let value = line.split(' ').find_map(|word| word.strip_prefix(name)?.strip_prefix('='));
            value.unwrap_or_default().to_owned()
        };
        let first = lines.lines().next().unwrap_or_default();
        let (asked, frame) = match words(first, "cmd").as_str() {
            "init" => (PendingRequest::Greeting, self.greeting()),
            "get_my_kvsname" => (PendingRequest::Name, self.request(command::REQ, |_| {})),
            "put" => {
                let pairs: Vec<(String, String)> =
                    lines.lines().map(|line| (words(line, "key"), words(line, "value"))).collect();
                (PendingRequest::Commit { pairs: pairs.len() }, self.commit(&pairs))
            }
            "barrier_in" => (PendingRequest::Fence, self.fence()),
            "get" => {
                let key = words(first, "key");
                let owner = key.trim_start_matches(|letter: char| letter.is_ascii_alphabetic());
                let owner = owner.split('-').next().and_then(|owner| owner.parse().ok()).unwrap_or_default();
                let frame = self.get(owner, &key);
                (PendingRequest::Get { owner, key }, frame)
            }
            "finalize" => (PendingRequest::Finalize, self.request(command::FINALIZE, |_| {})),
            "abort" => {
                let code = words(first, "exitcode").parse().unwrap_or_default();
                return self.request(command::ABORT, |out| {
                    out.status(code);
                    out.one();
                    out.text(Some(b"aborted"));
                    out.count(0);
                });
            }
            // A text that is not a message remains one.
            _ => return vec![7; 2 * HEADER],
        };
        self.asked = Some(asked);
        frame
    }

    /// Processes bytes of the server. Returns the corresponding answer lines of PMI-1.
    pub(crate) fn read(&mut self, bytes: &[u8]) -> String {
        self.read.extend_from_slice(bytes);
        let mut lines = String::new();
        while let Some(line) = self.next_answer() {
            lines += &line;
        }
        lines
    }

    fn next_answer(&mut self) -> Option<String> {
        if self.asked == Some(PendingRequest::Greeting) {
            let greeting = self.read.get(..8)?;
            let rc = i32::from_be_bytes(greeting[..4].try_into().unwrap_or_default());
            self.read.drain(..8);
            self.asked = None;
            return Some(format!("cmd=response_to_init rc={rc}\n"));
        }
        let header = self.read.get(..HEADER)?;
        let word = |at: usize| u32::from_be_bytes(header[at..at + 4].try_into().unwrap_or_default());
        let (tag, length) = (word(4), word(8) as usize);
        if self.read.len() < HEADER + length {
            return None;
        }
        let payload: Vec<u8> = self.read.drain(..HEADER + length).skip(HEADER).collect();
        // Events have other tags.
        if tag != self.tag {
            return Some(String::new());
        }
        let asked = self.asked.take()?;
        Some(self.answer(&asked, &payload).unwrap_or_else(|error| format!("unreadable: {error}\n")))
    }

    fn answer(&self, asked: &PendingRequest, payload: &[u8]) -> Result<String, WireError> {
        let mut reader = Reader::new(self.encoding, payload);
        reader.one()?;
        if *asked == PendingRequest::Name {
            return Ok("cmd=my_kvsname\n".to_owned());
        }
        let status = reader.i32()?;
        let word = match asked {
            PendingRequest::Commit { .. } => "put_result",
            PendingRequest::Fence => "barrier_out",
            PendingRequest::Finalize => "finalize_ack",
            PendingRequest::Get { .. } => "get_result",
            PendingRequest::Greeting | PendingRequest::Name => "none",
        };
        if let PendingRequest::Get { owner, key } = asked {
            let value = if status == status::SUCCESS { self.value(&mut reader, *owner, key)? } else { None };
            return Ok(match value {
                Some(value) => format!("cmd=get_result rc=0 value={value}\n"),
                None => format!("cmd=get_result rc=-1 status={status}\n"),
            });
        }
        if status != status::SUCCESS {
            return Ok(format!("refused {word}: {status}\n"));
        }
        let times = if let PendingRequest::Commit { pairs } = asked { *pairs } else { 1 };
        Ok((0..times).fold(String::new(), |mut lines, _| {
            // A write to a string cannot fail.
            let _ = writeln!(lines, "cmd={word} rc=0");
            lines
        }))
    }

    /// Returns the value of a key of a rank, in the answer to a get.
    fn value(&self, reader: &mut Reader<'_>, owner: u32, key: &str) -> Result<Option<String>, WireError> {
        let mut found = None;
        while !reader.is_empty() {
            reader.one()?;
            let mut object = Reader::new(self.encoding, reader.byte_object()?);
            object.one()?;
            let is_owner = object.proc()?.rank == owner;
            while !object.is_empty() {
                for _ in 0..object.group()? {
                    let name = object.required_text("a key")?;
                    let value = object.value()?;
                    if is_owner
                        && name == key.as_bytes()
                        && let Value::Text(text) = value
                    {
                        found = Some(String::from_utf8_lossy(text).into_owned());
                    }
                }
            }
        }
        Ok(found)
    }

    fn request(&mut self, command: u8, write: impl FnOnce(&mut Writer)) -> Vec<u8> {
        let mut payload = Writer::new(self.encoding);
        payload.one();
        payload.byte(command);
        write(&mut payload);
        self.tag += 1;
        message(self.tag, payload.as_bytes()).to_vec()
    }

    fn greeting(&self) -> Vec<u8> {
        let module = if self.encoding == Encoding::Flex { "v41" } else { "v3" };
        let mut payload = b"native\0\0\0\0\0\0".to_vec();
        payload.extend(NAMESPACE);
        payload.push(0);
        payload.extend(self.rank.to_be_bytes());
        payload.extend(format!("5.0.0\0{module}\0\u{1}hash\0").bytes());
        let mut frame = vec![0xff; 8];
        frame.extend((payload.len() as u32).to_ne_bytes());
        frame.extend([0; 4]);
        frame.extend(payload);
        frame
    }

    fn commit(&mut self, pairs: &[(String, String)]) -> Vec<u8> {
        let mut written = Writer::new(self.encoding);
        pairs.iter().for_each(|(key, value)| written.kval(key, &Value::Text(value.as_bytes())));
        self.request(command::COMMIT, |out| {
            for scope in [types::SCOPE_LOCAL, types::SCOPE_REMOTE] {
                out.one();
                out.byte(scope);
                out.one();
                out.byte(NOT_DESCRIBED);
                out.byte_object(written.as_bytes());
            }
        })
    }

    fn fence(&mut self) -> Vec<u8> {
        let infos = usize::from(self.collects);
        self.request(command::FENCE, |out| {
            out.count(1);
            out.group(1);
            out.proc(Proc { namespace: NAMESPACE, rank: types::RANK_WILDCARD });
            out.count(infos);
            out.group(infos);
            if infos > 0 {
                out.info(&Info::new("pmix.collect", Value::Bool(true)));
            }
        })
    }

    fn get(&mut self, owner: u32, key: &str) -> Vec<u8> {
        // If fences do not send data to all nodes, ranks may still have data from earlier gets.
        let infos = usize::from(!self.collects);
        self.request(command::GET, |out| {
            out.one();
            out.text(Some(NAMESPACE));
            out.one();
            out.u32(owner);
            out.count(infos);
            out.group(infos);
            if infos > 0 {
                out.info(&Info::new("pmix.get.refresh", Value::Bool(true)));
            }
            out.one();
            out.text(Some(key.as_bytes()));
        })
    }
}
