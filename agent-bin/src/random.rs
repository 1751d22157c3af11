//! Random bytes from the kernel: for secrets, and for names that nothing else may have.

use std::fs::File;
use std::io::{self, Read};

/// `N` bytes that nobody can guess.
///
/// # Errors
/// Fails if `/dev/urandom` cannot be read: it is not there, or this process has no descriptor left.
pub fn bytes<const N: usize>() -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_are_alike() {
        assert_ne!(bytes::<16>().unwrap(), bytes::<16>().unwrap());
    }
}
