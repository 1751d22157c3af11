//! Entries of the lists of srun(1) after `map_cpu:`, `mask_cpu:`, `map_ldom:`, `map_mem:`, `map_gpu:` and similar words. An entry is a number,
//! in hexadecimal after `0x`, or a hexadecimal mask. After a `*`, it has the number of its tasks.

use rank_spawner::CpuSet;

/// Maximum number of entries of a list with all repetitions: more than a node has ranks.
const ENTRIES_MAX: usize = 1 << 14;

/// Maximum number of digits of a mask: that for 65,536 CPUs.
const MASK_DIGITS_MAX: usize = 1 << 14;

/// Error for an invalid list or entry.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum NoEntry {
    #[error("{entry:?} is no number; a decimal one, or a hexadecimal one after 0x, up to 65535 is possible")]
    Number { entry: String },
    #[error(
        "{entry:?} names no CPUs; a number, a hexadecimal one after 0x, or numbers and ranges joined by + are possible"
    )]
    Set { entry: String },
    #[error("the mask {mask:?} is no hexadecimal number with at least one bit set")]
    Mask { mask: String },
    #[error("a mask of {digits} hexadecimal digits is too long; {MASK_DIGITS_MAX} are possible")]
    LongMask { digits: usize },
    #[error("{entry:?} has no number of repetitions after its `*`, as in 0*4")]
    Repetition { entry: String },
    #[error("the list has more than {ENTRIES_MAX} entries with its repetitions")]
    TooMany,
}

/// Parses entries separated by commas.
pub(super) fn list<T: Clone, E: From<NoEntry>>(text: &str, read: impl Fn(&str) -> Result<T, E>) -> Result<Vec<T>, E> {
    let mut entries = Vec::new();
    text.split(',').try_for_each(|entry| add(&mut entries, entry, &read))?;
    Ok(entries)
}

/// Adds an entry once, or as often as the number after its `*`.
pub(super) fn add<T: Clone, E: From<NoEntry>>(
    entries: &mut Vec<T>,
    entry: &str,
    read: impl Fn(&str) -> Result<T, E>,
) -> Result<(), E> {
    let (value, times) = match entry.split_once('*') {
        None => (entry, 1),
        Some((value, times)) => {
            let times = times.parse::<usize>().ok().filter(|&times| times > 0);
            (value, times.ok_or_else(|| NoEntry::Repetition { entry: entry.to_owned() })?)
        }
    };
    if times > ENTRIES_MAX - entries.len() {
        return Err(NoEntry::TooMany.into());
    }
    let value = read(value)?;
    entries.extend(std::iter::repeat_n(value, times));
    Ok(())
}

/// Parses a number, in hexadecimal after `0x`.
pub(super) fn number(entry: &str) -> Result<u16, NoEntry> {
    let number = match hexadecimal(entry) {
        Some(digits) => u16::from_str_radix(digits, 16),
        None => entry.parse(),
    };
    number.map_err(|_| NoEntry::Number { entry: entry.to_owned() })
}

/// Parses numbers and ranges joined by `+`, or one hexadecimal number.
pub(super) fn set(entry: &str) -> Result<CpuSet, NoEntry> {
    if hexadecimal(entry).is_some() {
        return Ok([number(entry)?].into_iter().collect());
    }
    let set = entry.replace('+', ",").parse::<CpuSet>().ok().filter(|set| !set.is_empty());
    set.ok_or_else(|| NoEntry::Set { entry: entry.to_owned() })
}

/// Parses a hexadecimal mask to the numbers of its set bits. The lowest bit is 0.
pub(super) fn mask(text: &str) -> Result<CpuSet, NoEntry> {
    let wrong = || NoEntry::Mask { mask: text.to_owned() };
    let digits = hexadecimal(text).unwrap_or(text);
    if digits.len() > MASK_DIGITS_MAX {
        return Err(NoEntry::LongMask { digits: digits.len() });
    }
    let mut bits = Vec::new();
    for (digit, base) in digits.bytes().rev().zip((0..).step_by(4)) {
        let value = char::from(digit).to_digit(16).ok_or_else(wrong)?;
        bits.extend((0..4).filter(|bit| value & (1 << bit) != 0).map(|bit| base + bit));
    }
    // The highest digit of the longest mask has the bits up to u16::MAX.
    let bits: CpuSet = bits.into_iter().filter_map(|bit: u32| u16::try_from(bit).ok()).collect();
    if bits.is_empty() { Err(wrong()) } else { Ok(bits) }
}

fn hexadecimal(text: &str) -> Option<&str> {
    text.strip_prefix("0x").or_else(|| text.strip_prefix("0X"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(list: Result<Vec<CpuSet>, NoEntry>) -> Result<Vec<String>, NoEntry> {
        Ok(list?.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn an_entry_stands_for_as_many_tasks_as_it_says() {
        assert_eq!(list("0*2,0x1f,7", number), Ok(vec![0, 0, 31, 7]));
        assert_eq!(texts(list("0x3*2,4", mask)).unwrap(), ["0-1", "0-1", "2"]);
        assert_eq!(texts(list("0+2-3,0X8*2", set)).unwrap(), ["0,2-3", "8", "8"]);
        assert_eq!(list(&format!("1*{ENTRIES_MAX}"), number).unwrap().len(), ENTRIES_MAX);
    }

    #[test]
    fn what_is_no_entry_is_refused_and_no_list_is_endless() {
        for text in ["", "x", "1*", "1*0", "1*-1", "1*2*3", "*2", "0x", "0x10000", "65536", "1,,2"] {
            assert!(list(text, number).is_err(), "{text}");
        }
        for text in
            [format!("1*{}", ENTRIES_MAX + 1), format!("1*{ENTRIES_MAX},1"), "1*18446744073709551615".to_owned()]
        {
            assert_eq!(list(&text, number), Err(NoEntry::TooMany), "{text}");
        }
        assert_eq!(mask(&"f".repeat(MASK_DIGITS_MAX)).unwrap().to_string(), "0-65535");
        let digits = MASK_DIGITS_MAX + 1;
        assert_eq!(mask(&"f".repeat(digits)), Err(NoEntry::LongMask { digits }));
    }
}
