//! The certificates that result from renewals, in the file `renewed` of the authority's directory. All renewals that go back to one certificate
//! are a family, and are revoked together: a thief of one key may have renewed it.

use std::collections::HashSet;
use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use crate::authority::{PkiError, write_over};

/// File with a line for each renewal: the new certificate's serial number, the first serial number of its family, and the new certificate's
/// expiry in seconds since 1970.
const RENEWED_FILE: &str = "renewed";
/// Number of lines from which lines of expired certificates are removed.
const PRUNED_FROM: usize = 1024;

/// One renewal.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Line {
    /// Serial number of the new certificate.
    number: String,
    /// Serial number of the first certificate of its family, which is not a renewal.
    first: String,
    /// Expiry of the new certificate, in seconds since 1970.
    until: u64,
}

impl Line {
    fn parse(text: &str) -> Option<Self> {
        let mut words = text.split(' ');
        let mut word = || words.next().map(str::to_owned);
        Some(Self { number: word()?, first: word()?, until: word()?.parse().ok()? })
    }

    fn text(&self) -> String {
        format!("{} {} {}\n", self.number, self.first, self.until)
    }
}

/// The renewals of an authority. No other process renews or revokes while this exists.
pub(crate) struct Renewed {
    path: PathBuf,
    lines: Vec<Line>,
    /// The directory, locked until this is dropped.
    _lock: File,
}

impl Renewed {
    /// Waits for the lock, and reads the file.
    pub(crate) fn lock(directory: &Path) -> Result<Self, PkiError> {
        let path = directory.join(RENEWED_FILE);
        let locked = File::open(directory).and_then(|file| file.lock().map(|()| file));
        let locked = locked.map_err(io("lock", directory))?;
        let text = match fs::read_to_string(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound => String::new(),
            read => read.map_err(io("read", &path))?,
        };
        Ok(Self { path, lines: text.lines().filter_map(Line::parse).collect(), _lock: locked })
    }

    /// Serial numbers of all certificates in the families of these certificates.
    pub(crate) fn families_of(&self, numbers: &[Vec<u8>]) -> Vec<Vec<u8>> {
        let firsts: HashSet<String> = numbers.iter().map(|number| self.first_of(&hex(number))).collect();
        let theirs = self.lines.iter().filter(|line| firsts.contains(&line.first)).map(|line| &line.number);
        firsts.iter().chain(theirs).filter_map(|number| bytes(number)).collect()
    }

    /// Records a renewal of `before` by the certificate `number`, which is valid until the second `until`. Removes the lines of certificates
    /// that have expired `now` if they are the majority: such certificates are never renewed.
    pub(crate) fn add(&mut self, before: &[u8], number: &[u8], until: u64, now: u64) -> Result<(), PkiError> {
        let line = Line { number: hex(number), first: self.first_of(&hex(before)), until };
        let added = line.text();
        self.lines.push(line);
        let valid = self.lines.iter().filter(|line| line.until > now).count();
        if self.lines.len() > PRUNED_FROM && valid < self.lines.len() / 2 {
            self.lines.retain(|line| line.until > now);
            return write_over(&self.path, &self.lines.iter().map(Line::text).collect::<String>());
        }
        let file = OpenOptions::new().append(true).create(true).mode(0o600).open(&self.path);
        let written = file.and_then(|mut file| file.write_all(added.as_bytes()).and_then(|()| file.sync_data()));
        written.map_err(io("write", &self.path))
    }

    fn first_of(&self, number: &str) -> String {
        let line = self.lines.iter().find(|line| line.number == number);
        line.map_or(number, |line| &line.first).to_owned()
    }
}

fn io<'a>(action: &'static str, path: &'a Path) -> impl FnOnce(std::io::Error) -> PkiError + use<'a> {
    move |source| PkiError::Io { action, path: path.to_owned(), source }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn bytes(hex: &str) -> Option<Vec<u8>> {
    let pairs = (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(hex.get(at..at + 2)?, 16).ok());
    pairs.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_family_is_all_that_were_had_by_one_certificate() {
        let directory = tempfile::tempdir().unwrap();
        let mut renewed = Renewed::lock(directory.path()).unwrap();
        for (before, number) in [(1, 2), (2, 3), (1, 4), (7, 8)] {
            renewed.add(&[before], &[number], 100, 50).unwrap();
        }
        drop(renewed);
        let renewed = Renewed::lock(directory.path()).unwrap();
        let family = |number: u8| {
            let mut family = renewed.families_of(&[vec![number]]).concat();
            family.sort_unstable();
            family
        };
        for number in [1, 2, 3, 4] {
            assert_eq!(family(number), [1, 2, 3, 4]);
        }
        assert_eq!((family(8), family(9)), (vec![7, 8], vec![9]));
    }

    #[test]
    fn lines_of_expired_certificates_go_when_they_are_most() {
        let directory = tempfile::tempdir().unwrap();
        let mut renewed = Renewed::lock(directory.path()).unwrap();
        for _ in 0..=PRUNED_FROM {
            renewed.add(&[1], &[2, 3], 100, 50).unwrap();
        }
        renewed.add(&[1], &[9], 300, 200).unwrap();
        drop(renewed);
        let kept = Renewed::lock(directory.path()).unwrap();
        assert_eq!(kept.lines, [Line { number: "09".to_owned(), first: "01".to_owned(), until: 300 }]);
        assert_eq!(bytes("0aff"), Some(vec![10, 255]));
        assert_eq!((bytes("0"), bytes("zz")), (None, None));
    }
}
