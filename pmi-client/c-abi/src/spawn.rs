//! Spawn requests from the arrays with which C callers describe programs.

use alloc::borrow::ToOwned;
use alloc::string::String;
use alloc::vec::Vec;
use core::ffi::c_int;

use pmi_client::{SpawnApp, SpawnRequest};

use crate::arguments::{Array, Text};
use crate::code::Code;

/// `PMI_keyval_t` of PMI-1, `PMI2_keyval_t` of MPICH 4.1 and later: a key and its value.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct KeyValue<'c> {
    key: Text<'c>,
    value: Text<'c>,
}

/// `MPID_Info` of Slurm's `pmi2.h`: a key and its value in a list. The links of the list are not followed.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Info<'c> {
    handle: c_int,
    mutex: c_int,
    references: c_int,
    next: Text<'c>,
    key: Text<'c>,
    value: Text<'c>,
}

/// A structure of a header with a key and its value.
pub trait Pair {
    /// Returns the key and its value.
    ///
    /// # Errors
    /// [`Code::ARGUMENT`] if one of them is missing.
    fn pair(&self) -> Result<(String, String), Code>;
}

impl Pair for KeyValue<'_> {
    fn pair(&self) -> Result<(String, String), Code> {
        pair(self.key, self.value)
    }
}

impl Pair for Info<'_> {
    fn pair(&self) -> Result<(String, String), Code> {
        pair(self.key, self.value)
    }
}

fn pair(key: Text<'_>, value: Text<'_>) -> Result<(String, String), Code> {
    Ok((key.or(Code::ARGUMENT)?.to_owned(), value.or(Code::ARGUMENT)?.to_owned()))
}

/// Programs in parallel arrays, as in every form of the call.
#[derive(Clone, Copy, Debug)]
pub struct Programs<'c, P> {
    /// Number of programs.
    pub count: c_int,
    /// Their names.
    pub commands: Array<'c, Text<'c>>,
    /// Their arguments. Each list ends with a NULL.
    pub arguments: Array<'c, Array<'c, Text<'c>>>,
    /// Number of arguments of each program; NULL if the lists end with a NULL.
    pub argument_counts: Array<'c, c_int>,
    /// Number of ranks of each program.
    pub ranks: Array<'c, c_int>,
    /// Number of hints of each program; NULL if there are none.
    pub hint_counts: Array<'c, c_int>,
    /// Hints of each program.
    pub hints: Array<'c, Array<'c, P>>,
}

impl<P: Pair + Copy> Programs<'_, P> {
    /// Returns the request for these programs, with pairs for the new job.
    ///
    /// # Errors
    /// [`Code::ARGUMENT`] for missing arrays, negative numbers, and texts that are not UTF-8.
    pub fn request(&self, preput: Vec<(String, String)>) -> Result<SpawnRequest, Code> {
        if self.count < 1 {
            return Err(Code::ARGUMENT);
        }
        let commands = self.commands.with_length(self.count).ok_or(Code::ARGUMENT)?;
        let apps = commands.iter().enumerate().map(|(number, command)| self.app(number, *command));
        Ok(SpawnRequest { apps: apps.collect::<Result<_, _>>()?, preput })
    }

    fn app(&self, number: usize, command: Text<'_>) -> Result<SpawnApp, Code> {
        let ranks = self.of(self.ranks, number).ok_or(Code::ARGUMENT)?;
        let hints = match (self.of(self.hint_counts, number), self.of(self.hints, number)) {
            (Some(count), Some(hints)) => pairs(hints.with_length(count).ok_or(Code::ARGUMENT)?)?,
            (None | Some(0), _) => Vec::new(),
            (Some(_), None) => return Err(Code::ARGUMENT),
        };
        Ok(SpawnApp {
            program: command.or(Code::ARGUMENT)?.to_owned(),
            args: self.arguments_of(number)?,
            ranks: u32::try_from(ranks).map_err(|_| Code::ARGUMENT)?,
            info: hints,
        })
    }

    fn arguments_of(&self, number: usize) -> Result<Vec<String>, Code> {
        let Some(list) = self.of(self.arguments, number) else { return Ok(Vec::new()) };
        let owned = |argument: &[u8]| String::from_utf8(argument.to_vec()).map_err(|_| Code::ARGUMENT);
        match self.of(self.argument_counts, number) {
            None => list.until_null().map(owned).collect(),
            Some(count) => {
                let list = list.with_length(count).ok_or(Code::ARGUMENT)?;
                list.iter().map(|argument| owned(argument.bytes().ok_or(Code::ARGUMENT)?)).collect()
            }
        }
    }

    /// Returns the value of a program in an array of `count` values, if the array exists.
    fn of<T: Copy>(&self, array: Array<'_, T>, number: usize) -> Option<T> {
        array.with_length(self.count)?.get(number).copied()
    }
}

/// Returns the pairs of an array of structures.
///
/// # Errors
/// As [`Pair::pair`].
pub fn pairs<P: Pair>(structures: &[P]) -> Result<Vec<(String, String)>, Code> {
    structures.iter().map(Pair::pair).collect()
}
