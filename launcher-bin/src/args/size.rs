//! Sizes of memory on the command line: a number of bytes, or of K, M, G or T (powers of 1,024).

use std::num::NonZeroU64;

/// Error for a text that is no size.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum NoSize {
    #[error("{text:?} is no size; a number of bytes is possible, or of K, M, G or T, such as 64M")]
    Word { text: String },
    #[error("a size of 0 is none; without the flag there is no such memory")]
    Zero,
    #[error("{text:?} is more than any machine has")]
    TooLarge { text: String },
}

pub(super) fn parse(text: &str) -> Result<NonZeroU64, NoSize> {
    let digits = text.trim_end_matches(|sign: char| sign.is_ascii_alphabetic());
    let shift = match text[digits.len()..].to_ascii_uppercase().as_str() {
        "" | "B" => 0,
        "K" | "KB" | "KIB" => 10,
        "M" | "MB" | "MIB" => 20,
        "G" | "GB" | "GIB" => 30,
        "T" | "TB" | "TIB" => 40,
        _ => return Err(NoSize::Word { text: text.to_owned() }),
    };
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(NoSize::Word { text: text.to_owned() });
    }
    let bytes = digits.parse::<u64>().ok().and_then(|number| number.checked_mul(1 << shift));
    // The maximum is that of an offset in a file.
    let bytes = bytes.filter(|&bytes| i64::try_from(bytes).is_ok());
    NonZeroU64::new(bytes.ok_or_else(|| NoSize::TooLarge { text: text.to_owned() })?).ok_or(NoSize::Zero)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_numbers_with_a_letter_and_all_else_is_refused_by_its_reason() {
        let size = |text: &str| parse(text).map(NonZeroU64::get);
        assert_eq!(
            ["1", "4096B", "64k", "64M", "2GiB", "1T"].map(size),
            [1, 4096, 65_536, 64 << 20, 2 << 30, 1 << 40].map(Ok)
        );
        for text in ["", "M", "-1", "1.5G", "64X", "0x10", "6 4", "+1", "\u{661}"] {
            assert_eq!(size(text), Err(NoSize::Word { text: text.to_owned() }));
        }
        assert_eq!(["0", "0G"].map(size), [Err(NoSize::Zero), Err(NoSize::Zero)]);
        for text in ["8388608T", "99999999999999999999"] {
            assert_eq!(size(text), Err(NoSize::TooLarge { text: text.to_owned() }));
        }
    }
}
