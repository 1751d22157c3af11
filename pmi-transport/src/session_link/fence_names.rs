//! Encoding of fence names in one direction of a link: the first frame has the full name, later frames a number of one byte.
//!
//! ```text
//! 0 to 63     series of that number         epoch
//! 64 to 127   names series number - 64      name, epoch
//! 128         without a number              name, epoch
//!
//! name:  job id   kind of scope   name of scope   members, 8 bytes     lengths precede texts
//! ```
//! A series is all fences of one scope of one job among the same nodes; they differ in their epochs. When all numbers are in
//! use, the oldest number is reused. Both ends store the same number of names, none of them long. The launch id is that of the
//! link.

use std::sync::Arc;

use bytes::{BufMut, BytesMut};

use super::field::{Fields, Malformed, PutField};
use crate::proto::v1::{FenceKey, FenceScope};

/// Number of series with a number.
const SERIES_MAX: usize = 64;
/// Maximum bytes of the names of a numbered series.
const NAME_MAX: usize = 4096;

const NAMES: u8 = SERIES_MAX as u8;
const OF_NO_NUMBER: u8 = 2 * NAMES;

/// Names that the near end has sent.
#[derive(Debug, Default)]
pub(super) struct SentNames {
    series: Vec<Option<FenceKey>>,
    /// Number of the last fence's series. The next fence usually has the same one.
    last: usize,
    /// Number to assign next.
    next: usize,
}

impl SentNames {
    pub(super) fn put(&mut self, key: &FenceKey, frame: &mut BytesMut) {
        match self.number_of(key) {
            Some(number) => {
                frame.put_u8(number as u8);
                self.last = number;
            }
            None if name_len(key) > NAME_MAX => {
                frame.put_u8(OF_NO_NUMBER);
                put_name(key, frame);
            }
            None => {
                frame.put_u8(NAMES + self.remember(key) as u8);
                put_name(key, frame);
            }
        }
        frame.put_number(key.epoch);
    }

    fn number_of(&self, key: &FenceKey) -> Option<usize> {
        let is_it = |series: &Option<FenceKey>| series.as_ref().is_some_and(|series| is_same_series(series, key));
        if self.series.get(self.last).is_some_and(is_it) {
            return Some(self.last);
        }
        self.series.iter().position(is_it)
    }

    fn remember(&mut self, key: &FenceKey) -> usize {
        let number = self.next;
        match self.series.get_mut(number) {
            Some(oldest) => *oldest = Some(key.clone()),
            None => self.series.push(Some(key.clone())),
        }
        self.last = number;
        self.next = (number + 1) % SERIES_MAX;
        number
    }

    /// Forgets the last series, because its frame is not sent. The series is named again before its number is used.
    pub(super) fn forget_last(&mut self) {
        if let Some(last) = self.series.get_mut(self.last) {
            *last = None;
        }
    }
}

/// Names that the far end has sent.
#[derive(Debug)]
pub(super) struct ReceivedNames {
    launch_id: Arc<str>,
    /// By number; without epochs.
    series: Vec<Option<FenceKey>>,
}

impl ReceivedNames {
    pub(super) fn new(launch_id: Arc<str>) -> Self {
        Self { launch_id, series: Vec::new() }
    }

    pub(super) fn take(&mut self, fields: &mut Fields) -> Result<FenceKey, Malformed> {
        let key = match fields.byte()? {
            number @ 0..NAMES => {
                let named = self.series.get(usize::from(number)).and_then(Option::as_ref);
                named.ok_or(Malformed::Unnamed(number))?.clone()
            }
            number @ NAMES..OF_NO_NUMBER => {
                let key = self.take_name(fields)?;
                self.remember(usize::from(number - NAMES), &key)?;
                key
            }
            OF_NO_NUMBER => self.take_name(fields)?,
            number => return Err(Malformed::Unnamed(number)),
        };
        Ok(FenceKey { epoch: fields.number()?, ..key })
    }

    fn take_name(&self, fields: &mut Fields) -> Result<FenceKey, Malformed> {
        let (job_id, kind, name) = (fields.text()?, fields.small()?, fields.text()?);
        let members = fields.fixed()?;
        let scope = FenceScope { kind: kind as i32, name, node_gaps: Vec::new() };
        Ok(FenceKey { launch_id: self.launch_id.to_string(), job_id, scope: Some(scope), epoch: 0, members })
    }

    fn remember(&mut self, number: usize, key: &FenceKey) -> Result<(), Malformed> {
        let len = name_len(key);
        if len > NAME_MAX {
            return Err(Malformed::LongName(len));
        }
        if self.series.len() <= number {
            self.series.resize(number + 1, None);
        }
        self.series[number] = Some(key.clone());
        Ok(())
    }
}

fn scope(key: &FenceKey) -> (i32, &str) {
    key.scope.as_ref().map_or((0, ""), |scope| (scope.kind, scope.name.as_str()))
}

fn is_same_series(one: &FenceKey, other: &FenceKey) -> bool {
    one.members == other.members && one.job_id == other.job_id && scope(one) == scope(other)
}

fn name_len(key: &FenceKey) -> usize {
    key.job_id.len() + scope(key).1.len()
}

fn put_name(key: &FenceKey, frame: &mut BytesMut) {
    let (kind, name) = scope(key);
    frame.put_run(key.job_id.as_bytes());
    frame.put_number(u64::from(kind as u32));
    frame.put_run(name.as_bytes());
    frame.put_u64(key.members);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: &str, epoch: u64) -> FenceKey {
        let scope = FenceScope { kind: 1, name: name.to_owned(), node_gaps: Vec::new() };
        FenceKey { launch_id: "launch".into(), job_id: "job".into(), scope: Some(scope), epoch, members: 7 }
    }

    /// Writes and reads a key; returns its encoded length.
    fn pass(key: &FenceKey, sent: &mut SentNames, received: &mut ReceivedNames) -> usize {
        let mut frame = BytesMut::new();
        sent.put(key, &mut frame);
        let len = frame.len();
        let mut fields = Fields::new(frame.freeze());
        assert_eq!(received.take(&mut fields).as_ref(), Ok(key));
        assert!(fields.is_empty());
        len
    }

    #[test]
    fn a_fence_is_named_once_and_then_takes_two_bytes() {
        let (mut sent, mut received) = (SentNames::default(), ReceivedNames::new("launch".into()));
        assert!(pass(&key("a", 0), &mut sent, &mut received) > 10);
        assert_eq!(pass(&key("a", 1), &mut sent, &mut received), 2);
        assert!(pass(&key("b", 1), &mut sent, &mut received) > 10);
        assert_eq!(pass(&key("a", 2), &mut sent, &mut received), 2);
        assert!(pass(&FenceKey { members: 8, ..key("a", 2) }, &mut sent, &mut received) > 10);
    }

    #[test]
    fn any_number_of_names_and_long_ones_are_understood_and_few_are_kept() {
        let (mut sent, mut received) = (SentNames::default(), ReceivedNames::new("launch".into()));
        for round in 0..3 {
            for name in 0..SERIES_MAX + 1 {
                pass(&key(&name.to_string(), round), &mut sent, &mut received);
            }
            let long = key(&"long".repeat(NAME_MAX), round);
            assert!(pass(&long, &mut sent, &mut received) > 4 * NAME_MAX, "it has no number");
        }
        assert_eq!((sent.series.len(), received.series.len()), (SERIES_MAX, SERIES_MAX));
    }

    #[test]
    fn what_was_not_named_and_what_is_too_long_to_keep_is_refused() {
        let mut received = ReceivedNames::new("launch".into());
        let mut take = |bytes: &[u8]| received.take(&mut Fields::new(bytes.to_vec().into()));
        assert_eq!(take(&[3, 0]), Err(Malformed::Unnamed(3)));
        assert_eq!(take(&[OF_NO_NUMBER + 1]), Err(Malformed::Unnamed(OF_NO_NUMBER + 1)));
        let mut long = BytesMut::from(&[NAMES][..]);
        put_name(&key(&"n".repeat(NAME_MAX), 0), &mut long);
        assert_eq!(take(&long), Err(Malformed::LongName(NAME_MAX + 3)));
        assert_eq!(take(&[0, 0]), Err(Malformed::Unnamed(0)), "nothing was kept of it");
    }
}
