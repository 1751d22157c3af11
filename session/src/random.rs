//! Random bytes of the kernel, for secrets and ids.

use std::io;

/// Returns `N` unpredictable bytes.
///
/// # Errors
/// Fails if the kernel cannot provide random numbers.
pub fn bytes<const N: usize>() -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes)?;
    Ok(bytes)
}

/// Returns an id for a launch or an allocation: ten random characters that look different from each other, with 49 random bits. The first
/// one is a letter, because a name of digits alone is invalid for a node or an allocation.
///
/// # Errors
/// Fails if the kernel cannot provide random numbers.
pub fn id() -> io::Result<String> {
    const DIGITS: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";
    let letters = &DIGITS[10..];
    let [first, rest @ ..] = bytes::<10>()?;
    let first = letters[usize::from(first) % letters.len()];
    let rest = rest.map(|byte| DIGITS[usize::from(byte) % DIGITS.len()]);
    Ok(std::iter::once(first).chain(rest).map(char::from).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_are_alike() {
        assert_ne!(bytes::<16>().unwrap(), bytes::<16>().unwrap());
        assert_ne!(id().unwrap(), id().unwrap());
    }

    #[test]
    fn an_id_begins_with_a_letter() {
        for _ in 0..1000 {
            let id = id().unwrap();
            assert!(id.len() == 10 && id.starts_with(|first: char| first.is_ascii_lowercase()), "{id}");
        }
    }
}
