//! Questions between the PMIx servers of a launch, as bytes. Only such servers read them, all of one version.
//!
//! ```text
//! 0  a rank's values    timeout in ms (0 for none), rank: 4 bytes each; namespace, NUL; key (nothing for any)
//! 1  all of a node      namespace
//! 2  spread             epoch: 8 bytes; name of the collective
//! 3  wish to spread     the same
//! ```

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use pmi_core::ids::{Epoch, Rank};

const DATA: u8 = 0;
const ALL_OF: u8 = 1;
const SPREAD: u8 = 2;
const WISH: u8 = 3;

/// A question of another node's server, or to one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Question {
    /// What one rank has committed, or will.
    Data(DataQuestion),
    /// All that the node's ranks of a job have committed for other nodes; answered at once.
    AllOf { namespace: Bytes },
    /// Not asked but told: all nodes of this collective are to bring the data that they withheld in its fence `epoch`.
    Spread { name: Arc<str>, epoch: Epoch },
    /// Not asked but told, from node to node up to the first one, which decides: a node wants that spread.
    Wish { name: Arc<str>, epoch: Epoch },
}

/// A question about one rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct DataQuestion {
    pub(super) namespace: Bytes,
    pub(super) rank: Rank,
    /// Without one, anything that the rank has committed.
    pub(super) key: Option<Bytes>,
    /// Time for which the client says that it waits.
    pub(super) timeout: Option<Duration>,
}

impl Question {
    pub(super) fn encode(&self) -> Bytes {
        match self {
            Self::Data(question) => question.encode(),
            Self::AllOf { namespace } => [&[ALL_OF], &namespace[..]].concat().into(),
            Self::Spread { name, epoch } => encode_round(SPREAD, name, *epoch),
            Self::Wish { name, epoch } => encode_round(WISH, name, *epoch),
        }
    }

    /// Reads a question; `None` if it is none.
    pub(super) fn decode(bytes: &Bytes) -> Option<Self> {
        let (&kind, rest) = bytes.split_first()?;
        let rest = bytes.slice_ref(rest);
        match kind {
            DATA => DataQuestion::decode(&rest).map(Self::Data),
            ALL_OF => Some(Self::AllOf { namespace: rest }),
            SPREAD => decode_round(&rest).map(|(name, epoch)| Self::Spread { name, epoch }),
            WISH => decode_round(&rest).map(|(name, epoch)| Self::Wish { name, epoch }),
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
        let questions = [
            Question::Data(data),
            Question::Data(plain),
            Question::AllOf { namespace: Bytes::from_static(b"job.secret") },
            Question::Spread { name: "fence job.secret".into(), epoch: Epoch(1 << 40) },
            Question::Wish { name: "fence job.secret".into(), epoch: Epoch(7) },
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
            b"\x04",
        ] {
            assert_eq!(Question::decode(&Bytes::from_static(bad)), None, "{bad:?}");
        }
    }
}
