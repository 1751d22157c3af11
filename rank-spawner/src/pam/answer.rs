//! Encoding of a PAM process's answer: strings that end with NUL, a byte that PAM texts and environments cannot have.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use super::{PamSession, RESOURCES, Refused};

const OPENED: &[u8] = b"opened";
const REFUSED: &[u8] = b"refused";

/// Answer of a PAM process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    Opened(PamSession),
    Refused(Refused),
}

impl Answer {
    /// Format: `opened`, limits, an empty string, variables; or `refused`, the step, the text, the messages of modules.
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut put = |parts: &[&[u8]]| {
            parts.iter().for_each(|part| bytes.extend(part.iter().filter(|byte| **byte != 0)));
            bytes.push(0);
        };
        match self {
            Self::Opened(PamSession { limits, environment }) => {
                put(&[OPENED]);
                limits.iter().for_each(|(index, soft, hard)| put(&[format!("{index}:{soft}:{hard}").as_bytes()]));
                put(&[]);
                environment.iter().for_each(|(name, value)| put(&[name.as_bytes(), b"=", value.as_bytes()]));
            }
            Self::Refused(Refused { step, text, said }) => {
                put(&[REFUSED]);
                [step, text].into_iter().chain(said).for_each(|text| put(&[text.as_bytes()]));
            }
        }
        bytes
    }

    /// Decodes an answer; `None` for invalid bytes.
    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let mut strings = bytes.strip_suffix(b"\0")?.split(|&byte| byte == 0);
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        match strings.next()? {
            OPENED => {
                let limits =
                    strings.by_ref().take_while(|limit| !limit.is_empty()).map(limit).collect::<Option<_>>()?;
                let environment = strings.map(variable).collect::<Option<_>>()?;
                Some(Self::Opened(PamSession { limits, environment }))
            }
            REFUSED => {
                let (step, error) = (text(strings.next()?), text(strings.next()?));
                Some(Self::Refused(Refused { step, text: error, said: strings.map(text).collect() }))
            }
            _ => None,
        }
    }
}

fn limit<N: std::str::FromStr>(bytes: &[u8]) -> Option<(usize, N, N)> {
    let mut numbers = str::from_utf8(bytes).ok()?.split(':');
    let index = numbers.next()?.parse().ok().filter(|index| *index < RESOURCES.len())?;
    let (soft, hard) = (numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?);
    numbers.next().is_none().then_some((index, soft, hard))
}

/// Parses `NAME=VALUE`.
pub(super) fn variable(bytes: &[u8]) -> Option<(OsString, OsString)> {
    let at = bytes.iter().position(|&byte| byte == b'=').filter(|at| *at > 0)?;
    Some((OsStr::from_bytes(&bytes[..at]).to_owned(), OsString::from_vec(bytes[at + 1..].to_vec())))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn an_answer_is_read_as_it_was_written(
            limits in prop::collection::vec((0..RESOURCES.len(), any::<u64>(), any::<u64>()), 0..4),
            environment in prop::collection::vec(("[A-Z]{1,4}", "[^\0]{0,6}"), 0..4),
            words in prop::collection::vec("[^\0]{0,6}", 2..5),
        ) {
            let environment = environment.into_iter().map(|(name, value)| (name.into(), value.into())).collect();
            let opened = Answer::Opened(PamSession { limits, environment });
            prop_assert_eq!(Answer::decode(&opened.encode()), Some(opened));
            let refused = Refused { step: words[0].clone(), text: words[1].clone(), said: words[2..].to_vec() };
            let refused = Answer::Refused(refused);
            prop_assert_eq!(Answer::decode(&refused.encode()), Some(refused));
        }

        #[test]
        fn whatever_comes_is_an_answer_or_none(bytes: Vec<u8>) {
            // The test passes if the call returns.
            let _ = Answer::decode(&bytes);
        }
    }

    #[test]
    fn what_is_no_answer_is_told() {
        for bytes in ["", "opened", "maybe\0", "refused\0", "opened\x0099:1:2\0", "opened\x001:2\0", "opened\0\0=x\0"] {
            assert_eq!(Answer::decode(bytes.as_bytes()), None, "{bytes:?}");
        }
    }
}
