//! Random bytes of the kernel, for secrets and for ids.

use std::io;

/// `N` bytes that cannot be guessed.
///
/// # Errors
/// Fails if the kernel has no random numbers to give.
pub fn bytes<const N: usize>() -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes)?;
    Ok(bytes)
}

/// An id for a launch or an allocation: ten characters of 50 random bits, in digits that cannot be mistaken for each other.
///
/// # Errors
/// Fails if the kernel has no random numbers to give.
pub fn id() -> io::Result<String> {
    const DIGITS: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";
    Ok(bytes::<10>()?.iter().map(|byte| char::from(DIGITS[usize::from(byte % 32)])).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_are_alike() {
        assert_ne!(bytes::<16>().unwrap(), bytes::<16>().unwrap());
        assert_ne!(id().unwrap(), id().unwrap());
    }
}
