//! Pairs from command lines, for the hints of `PMI_Spawn_multiple`.

use alloc::vec::Vec;
use core::ffi::c_int;

use pmi_c_abi::arguments::{Array, ArrayOut, Out, Text, TextOut};
use pmi_c_abi::code::Code;
use pmi_c_abi::handed_out::{HandedOut, PairOfBytes};

use crate::call;

/// Prefix of the keys that `PMI_Parse_option` accepts.
const PREFIX: &[u8] = b"PMI_";

/// Answer to `PMI_Get_options`.
const OPTIONS: &[u8] = b"PMI_KEY=VALUE ...  hints for PMI_Spawn_multiple\n";

/// Reads options of the form `PMI_KEY=VALUE` from the start of `arguments`.
#[unsafe(no_mangle)]
pub extern "C" fn PMI_Parse_option<'c>(
    count: c_int,
    arguments: Array<'c, Text<'c>>,
    parsed: Out<'c, c_int>,
    pairs: Out<'c, HandedOut>,
    size: Out<'c, c_int>,
) -> c_int {
    call(|| {
        let parsed = parsed.or(Code::NUMBER_PARSED)?;
        let (pairs, size) = (pairs.or(Code::KEYVALP)?, size.or(Code::SIZE)?);
        if count < 1 {
            return Err(Code::NUMBER_OF_ARGUMENTS.into());
        }
        let arguments = arguments.with_length(count).ok_or(Code::ARGUMENTS)?;
        let found: Vec<_> = arguments.iter().map_while(|argument| option(argument.bytes()?)).collect();
        pairs.set(HandedOut::new(&found).ok_or(Code::NO_MEMORY)?);
        // At most `count`.
        let number = found.len() as c_int;
        parsed.set(number);
        size.set(number);
        Ok(())
    })
}

/// The pair of an option. Its key keeps the prefix.
fn option(argument: &[u8]) -> Option<PairOfBytes<'_>> {
    let equals = argument.iter().position(|&byte| byte == b'=')?;
    let (key, value) = (&argument[..equals], &argument[equals + 1..]);
    (key.len() > PREFIX.len() && key.starts_with(PREFIX)).then_some((Some(key), Some(value)))
}

/// Returns the pairs of a command line `[PROGRAM] -KEY [VALUE] ...`. Keys keep their `-`; the program is a value without a key. As
/// in Slurm's library, the command line itself does not change.
#[unsafe(no_mangle)]
pub extern "C" fn PMI_Args_to_keyval<'c>(
    count: Out<'c, c_int>,
    arguments: Array<'c, Text<'c>>,
    pairs: Out<'c, HandedOut>,
    size: Out<'c, c_int>,
) -> c_int {
    call(|| {
        let (pairs, size) = (pairs.or(Code::ARGUMENT)?, size.or(Code::ARGUMENT)?);
        let count = count.or(Code::ARGUMENT)?.value();
        let arguments = arguments.with_length(count).ok_or(Code::ARGUMENT)?;
        let words: Option<Vec<&[u8]>> = arguments.iter().map(|argument| argument.bytes()).collect();
        let found = command_line(&words.ok_or(Code::ARGUMENT)?).ok_or(Code::ARGUMENT)?;
        pairs.set(HandedOut::new(&found).ok_or(Code::NO_MEMORY)?);
        // At most `count`.
        size.set(found.len() as c_int);
        Ok(())
    })
}

/// Returns `None` for an empty command line, and for a value without a key.
fn command_line<'c>(words: &[&'c [u8]]) -> Option<Vec<PairOfBytes<'c>>> {
    let mut words = words.iter().copied().peekable();
    words.peek()?;
    let is_key = |word: &&[u8]| word.starts_with(b"-");
    let program = words.next_if(|word| !is_key(word)).map(|program| (None, Some(program)));
    let mut pairs = Vec::from_iter(program);
    while let Some(key) = words.next() {
        if !is_key(&key) {
            return None;
        }
        pairs.push((Some(key), words.next_if(|word| !is_key(word))));
    }
    Some(pairs)
}

/// Pairs of a program, with their number.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Info {
    size: c_int,
    pairs: HandedOut,
}

/// Removes all arguments of the form `PMI_KEY=VALUE` from a command line, and returns them as hints with keys without prefix.
#[unsafe(no_mangle)]
pub extern "C" fn PMI_Args_to_info<'c>(
    count: Out<'c, c_int>,
    arguments: Out<'c, ArrayOut<'c, Text<'c>>>,
    info: Out<'c, Info>,
) -> c_int {
    call(|| {
        let (count, info) = (count.or(Code::ARGUMENT)?, info.or(Code::ARGUMENT)?);
        let arguments = arguments.or(Code::ARGUMENT)?.value();
        let words = arguments.values(count.value()).ok_or(Code::ARGUMENT)?;
        let hint = |word: &Text<'c>| {
            let (key, value) = option(word.bytes()?)?;
            Some((key.and_then(|key| key.get(PREFIX.len()..)), value))
        };
        let found: Vec<_> = words.iter().filter_map(hint).collect();
        info.set(Info { size: found.len() as c_int, pairs: HandedOut::new(&found).ok_or(Code::NO_MEMORY)? });
        if !found.is_empty() {
            let kept = words.iter().copied().filter(|word| hint(word).is_none());
            // The NULL at the end has a place, because an argument was removed.
            let written = arguments.fill(count.value(), kept.chain([Text::NULL]));
            count.set(written as c_int - 1);
        }
        Ok(())
    })
}

/// Frees the pairs from the functions above.
#[unsafe(no_mangle)]
pub extern "C" fn PMI_Free_keyvals(pairs: HandedOut, size: c_int) -> c_int {
    call(|| {
        let count = usize::try_from(size).map_err(|_| Code::ARGUMENT)?;
        if pairs.is_null() && count > 0 {
            return Err(Code::ARGUMENT.into());
        }
        pairs.free(count);
        Ok(())
    })
}

/// Describes the options above. `length` is the size of the buffer. If the buffer is too small, `length` receives the required
/// size.
#[unsafe(no_mangle)]
pub extern "C" fn PMI_Get_options(options: TextOut<'_>, length: Out<'_, c_int>) -> c_int {
    call(|| {
        let length = length.or(Code::ARGUMENT)?;
        if options.is_null() {
            return Err(Code::ARGUMENT.into());
        }
        let buffer = options.with_size(length.value()).ok_or(Code::LENGTH)?;
        Ok(buffer.put_cut(OPTIONS).map_err(|_| {
            length.set(OPTIONS.len() as c_int + 1);
            Code::NO_MEMORY
        })?)
    })
}
