//! Answers to calls of sessions, as sent.

use pmi_transport::proto::v1 as proto;
use prost::Message;

/// Answer to a call of a session.
#[derive(Clone, Debug)]
pub(crate) enum SessionAnswer {
    Name(proto::NameAnswer),
    Spawn(proto::SpawnAnswer),
    Meet(proto::MeetAnswer),
}

impl SessionAnswer {
    /// Size of the answer, in bytes.
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Name(answer) => answer.encoded_len(),
            Self::Spawn(answer) => answer.encoded_len(),
            Self::Meet(answer) => answer.encoded_len(),
        }
    }

    /// Answer about names that contains a number.
    #[cfg(test)]
    pub(crate) fn sample(number: u64) -> Self {
        Self::Name(proto::NameAnswer { message: number.to_string(), ..Default::default() })
    }

    /// The number in an answer of [`Self::sample`].
    #[cfg(test)]
    pub(crate) fn shown(&self) -> String {
        match self {
            Self::Name(answer) => answer.message.clone(),
            other => panic!("{other:?} is no sample"),
        }
    }
}
