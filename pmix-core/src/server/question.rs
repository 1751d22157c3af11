//! Questions between the PMIx servers of a launch, as bytes. Only servers of one version exchange them.
//!
//! ```text
//! 0  a rank's values    timeout in ms (0 for none), rank: 4 bytes each; namespace, NUL; key (empty for any)
//! 1  all of a node      namespace
//! 2  spread             epoch: 8 bytes; name of the collective
//! 3  wish to spread     the same
//! 4  processes          namespace
//! 5  signal             its number, number of ranks, ranks: 4 bytes each; namespace
//! 6  output             asking node: 4 bytes; channels: 2; for each source: rank (all bits for all) and length: 4 bytes each; namespace
//! ```

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf, Bytes};
use pmi_core::ids::{Epoch, NodeIndex, Rank};

const DATA: u8 = 0;
const ALL_OF: u8 = 1;
const SPREAD: u8 = 2;
const WISH: u8 = 3;
const PROCESSES: u8 = 4;
const SIGNAL: u8 = 5;
const OUTPUT: u8 = 6;

/// Maximum number of ranks listed one by one. Above it, whole jobs are requested, and the asking node discards output that no client
/// pulls.
const NAMED_MAX: usize = 1024;

/// Means all ranks of a job.
const ALL_RANKS: u32 = u32::MAX;

/// A question from or to another node's server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Question {
    /// Committed data of one rank, now or later.
    Data(DataQuestion),
    /// All data that the node's ranks of a job have committed for other nodes; answered at once.
    AllOf { namespace: Bytes },
    /// A notification: all nodes of this collective must distribute the data that they withheld in its fence `epoch`.
    Spread { name: Arc<str>, epoch: Epoch },
    /// A notification, forwarded from node to node up to the first one, which decides: a node requests the spread of that data.
    Wish { name: Arc<str>, epoch: Epoch },
    /// The processes of a job on the node.
    Processes { namespace: Bytes },
    /// A command: the node must send a signal to ranks of a job on it.
    Signal { namespace: Bytes, signal: i32, ranks: Vec<Rank> },
    /// Output of ranks on the node; answered when one of them writes, or after a while. Without sources, it cancels the previous
    /// question.
    Output { asker: NodeIndex, wanted: WantedOutput },
}

/// A question about one rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct DataQuestion {
    pub(super) namespace: Bytes,
    pub(super) rank: Rank,
    /// Without a key, any data that the rank has committed.
    pub(super) key: Option<Bytes>,
    /// Timeout of the client.
    pub(super) timeout: Option<Duration>,
}

/// Output that a node requests from another.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub(super) struct WantedOutput {
    pub(super) channels: u16,
    /// Namespaces with ranks; `None` means all ranks of a job.
    pub(super) sources: BTreeSet<(Bytes, Option<Rank>)>,
}

impl WantedOutput {
    /// Adds a rank, or a whole job.
    pub(super) fn add(&mut self, channels: u16, namespace: &Bytes, rank: Option<Rank>) {
        self.channels |= channels;
        let rank = rank.filter(|_| self.sources.len() < NAMED_MAX);
        self.sources.insert((namespace.clone(), rank));
    }

    pub(super) fn has(&self, namespace: &[u8], rank: Rank, channel: u16) -> bool {
        let is_meant =
            |(job, meant): &(Bytes, Option<Rank>)| job == namespace && meant.is_none_or(|meant| meant == rank);
        self.channels & channel != 0 && self.sources.iter().any(is_meant)
    }
}

impl Question {
    pub(super) fn encode(&self) -> Bytes {
        match self {
            Self::Data(question) => question.encode(),
            Self::AllOf { namespace } => [&[ALL_OF], &namespace[..]].concat().into(),
            Self::Spread { name, epoch } => encode_round(SPREAD, name, *epoch),
            Self::Wish { name, epoch } => encode_round(WISH, name, *epoch),
            Self::Processes { namespace } => [&[PROCESSES], &namespace[..]].concat().into(),
            Self::Signal { namespace, signal, ranks } => {
                let mut bytes = vec![SIGNAL];
                bytes.extend(signal.to_be_bytes());
                bytes.extend((ranks.len() as u32).to_be_bytes());
                bytes.extend(ranks.iter().flat_map(|rank| rank.0.to_be_bytes()));
                bytes.extend_from_slice(namespace);
                bytes.into()
            }
            Self::Output { asker, wanted } => encode_output(*asker, wanted),
        }
    }

    /// Decodes a question; `None` if it is malformed.
    pub(super) fn decode(bytes: &Bytes) -> Option<Self> {
        let (&kind, rest) = bytes.split_first()?;
        let rest = bytes.slice_ref(rest);
        match kind {
            DATA => DataQuestion::decode(&rest).map(Self::Data),
            ALL_OF => Some(Self::AllOf { namespace: rest }),
            SPREAD => decode_round(&rest).map(|(name, epoch)| Self::Spread { name, epoch }),
            WISH => decode_round(&rest).map(|(name, epoch)| Self::Wish { name, epoch }),
            PROCESSES => Some(Self::Processes { namespace: rest }),
            SIGNAL => decode_signal(&rest),
            OUTPUT => decode_output(rest),
            _ => None,
        }
    }
}

fn encode_round(kind: u8, name: &str, epoch: Epoch) -> Bytes {
    [&[kind], &epoch.0.to_be_bytes()[..], name.as_bytes()].concat().into()
}

fn decode_round(bytes: &[u8]) -> Option<(Arc<str>, Epoch)> {
    let (epoch, name) = bytes.split_first_chunk()?;
    Some((str::from_utf8(name).ok()?.into(), Epoch(u64::from_be_bytes(*epoch))))
}

fn decode_signal(bytes: &Bytes) -> Option<Question> {
    let (signal, rest) = bytes.split_first_chunk()?;
    let (count, rest) = rest.split_first_chunk()?;
    let length = (u32::from_be_bytes(*count) as usize).checked_mul(size_of::<u32>())?;
    let (ranks, namespace) = rest.split_at_checked(length)?;
    let (ranks, _) = ranks.as_chunks();
    Some(Question::Signal {
        namespace: bytes.slice_ref(namespace),
        signal: i32::from_be_bytes(*signal),
        ranks: ranks.iter().map(|rank| Rank(u32::from_be_bytes(*rank))).collect(),
    })
}

fn encode_output(asker: NodeIndex, wanted: &WantedOutput) -> Bytes {
    let mut bytes = vec![OUTPUT];
    bytes.extend(asker.0.to_be_bytes());
    bytes.extend(wanted.channels.to_be_bytes());
    for (namespace, rank) in &wanted.sources {
        bytes.extend(rank.map_or(ALL_RANKS, |rank| rank.0).to_be_bytes());
        bytes.extend((namespace.len() as u32).to_be_bytes());
        bytes.extend_from_slice(namespace);
    }
    bytes.into()
}

fn decode_output(mut bytes: Bytes) -> Option<Question> {
    let (asker, channels) = (NodeIndex(bytes.try_get_u32().ok()?), bytes.try_get_u16().ok()?);
    let mut wanted = WantedOutput { channels, ..WantedOutput::default() };
    while !bytes.is_empty() {
        let (rank, length) = (bytes.try_get_u32().ok()?, bytes.try_get_u32().ok()? as usize);
        if bytes.len() < length {
            return None;
        }
        wanted.sources.insert((bytes.split_to(length), (rank != ALL_RANKS).then_some(Rank(rank))));
    }
    Some(Question::Output { asker, wanted })
}

impl DataQuestion {
    fn encode(&self) -> Bytes {
        let timeout = self.timeout.map_or(0, |timeout| u32::try_from(timeout.as_millis()).unwrap_or(u32::MAX));
        let key = self.key.as_deref().unwrap_or_default();
        let head = [&[DATA], &timeout.to_be_bytes()[..], &self.rank.0.to_be_bytes()].concat();
        [&head, &self.namespace[..], &[0], key].concat().into()
    }

    fn decode(bytes: &Bytes) -> Option<Self> {
        let (timeout, rest) = bytes.split_first_chunk()?;
        let (rank, rest) = rest.split_first_chunk()?;
        let end = rest.iter().position(|&byte| byte == 0)?;
        let (timeout, key) = (u32::from_be_bytes(*timeout), &rest[end + 1..]);
        Some(Self {
            namespace: bytes.slice_ref(&rest[..end]),
            rank: Rank(u32::from_be_bytes(*rank)),
            key: (!key.is_empty()).then(|| bytes.slice_ref(key)),
            timeout: (timeout > 0).then(|| Duration::from_millis(timeout.into())),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn questions_survive_the_way_between_nodes() {
        let data = DataQuestion {
            namespace: Bytes::from_static(b"job.secret"),
            rank: Rank(7),
            key: Some(Bytes::from_static(b"card")),
            timeout: Some(Duration::from_secs(3)),
        };
        let plain = DataQuestion { key: None, timeout: None, ..data.clone() };
        let sources = [(Bytes::from_static(b"job"), None), (Bytes::from_static(b"job1"), Some(Rank(7)))];
        let questions = [
            Question::Data(data),
            Question::Data(plain),
            Question::AllOf { namespace: Bytes::from_static(b"job.secret") },
            Question::Spread { name: "fence job.secret".into(), epoch: Epoch(1 << 40) },
            Question::Wish { name: "fence job.secret".into(), epoch: Epoch(7) },
            Question::Processes { namespace: Bytes::from_static(b"job.secret") },
            Question::Signal { namespace: Bytes::from_static(b"job"), signal: 19, ranks: vec![Rank(3), Rank(70_000)] },
            Question::Output {
                asker: NodeIndex(131_071),
                wanted: WantedOutput { channels: 6, sources: sources.into() },
            },
            Question::Output { asker: NodeIndex(0), wanted: WantedOutput::default() },
        ];
        for question in questions {
            assert_eq!(Question::decode(&question.encode()), Some(question));
        }
        for bad in [
            &b""[..],
            b"\0",
            b"\0\0\0\0\0\0\0\0",
            b"\0\0\0\0\0\0\0\0\0no end",
            b"\x02\0",
            b"\x02\0\0\0\0\0\0\0\0\xff",
            b"\x05\0\0\0\x09\0\0\0\x02\0\0\0\0job",
            b"\x06\0\0\0\0\0",
            b"\x06\0\0\0\0\0\x06\0\0\0\0\0\0\0\x02j",
            b"\x07",
        ] {
            assert_eq!(Question::decode(&Bytes::from_static(bad)), None, "{bad:?}");
        }
    }

    #[test]
    fn many_ranks_are_asked_for_as_their_job() {
        let (mut wanted, job) = (WantedOutput::default(), Bytes::from_static(b"job"));
        (0..5000).for_each(|rank| wanted.add(2, &job, Some(Rank(rank))));
        assert_eq!(wanted.sources.len(), NAMED_MAX + 1);
        assert!(
            wanted.has(b"job", Rank(4999), 2)
                && !wanted.has(b"job", Rank(4999), 4)
                && !wanted.has(b"other", Rank(0), 2)
        );
    }
}
