//! New jobs through a C library, described by parallel arrays.

use std::ffi::{CString, c_char, c_int};
use std::ptr;

use super::{LibraryApi, LibraryClient, LibraryError, NAME_MAX, check, text, text_in};
use crate::spawn::{SpawnApp, SpawnRequest};

/// `PMI_keyval_t` of `pmi.h`.
#[repr(C)]
struct KeyValue {
    key: *const c_char,
    value: *const c_char,
}

/// `MPID_Info` of Slurm's `pmi2.h`, the layout that libraries with this name accept.
#[repr(C)]
struct Info {
    handle: c_int,
    mutex: c_int,
    references: c_int,
    next: *const Self,
    key: *const c_char,
    value: *const c_char,
}

/// A list of texts.
type Texts = *const *const c_char;
/// An array with a number for each program.
type Numbers = *const c_int;
/// Number of programs, their names, arguments, ranks, hints; pairs for the new job; room for errors.
type Spawn1 = unsafe extern "C" fn(
    c_int,
    Texts,
    *const Texts,
    Numbers,
    Numbers,
    *const *const KeyValue,
    c_int,
    *const KeyValue,
    *mut c_int,
) -> c_int;
/// The same with the numbers of arguments before them, and with a buffer for the job's name.
type Spawn2 = unsafe extern "C" fn(
    c_int,
    Texts,
    Numbers,
    *const Texts,
    Numbers,
    Numbers,
    *const *const Info,
    c_int,
    *const *const Info,
    *mut c_char,
    c_int,
    *mut c_int,
) -> c_int;

impl LibraryClient {
    /// Starts a new job, and returns once its ranks are starting. Returns its name if the library provides it, as that of PMI-2 does.
    ///
    /// # Errors
    /// Fails if the call of the library fails, if the library lacks the function, for texts with a NUL, and for numbers that do not fit
    /// into an `int`.
    pub fn spawn(&mut self, request: &SpawnRequest) -> Result<Option<String>, LibraryError> {
        let programs = Programs::of(request)?;
        match self.api {
            LibraryApi::Pmi1 => self.spawn_multiple(&programs).map(|()| None),
            LibraryApi::Pmi2 => self.job_spawn(&programs).map(Some),
        }
    }

    fn spawn_multiple(&self, programs: &Programs) -> Result<(), LibraryError> {
        let spawn = self.function::<Spawn1>("PMI_Spawn_multiple")?;
        let pair = |pair: &Pair| KeyValue { key: pair.0.as_ptr(), value: pair.1.as_ptr() };
        let hints: Vec<Vec<KeyValue>> = programs.each(|program| program.hints.iter().map(pair).collect());
        let hint_lists: Vec<_> = hints.iter().map(Vec::as_ptr).collect();
        let preput: Vec<KeyValue> = programs.preput.iter().map(pair).collect();
        let (names, words) = (programs.names(), programs.words());
        let word_lists: Vec<Texts> = words.iter().map(Vec::as_ptr).collect();
        let mut errors = programs.room_for_errors()?;
        // SAFETY: by the prototype of pmi.h. Arrays have an element for each program, a list of words ends with a null, and pairs have
        // their number in a separate array. All of them outlive the call.
        let code = unsafe {
            spawn(
                int(programs.apps.len())?,
                names.as_ptr(),
                word_lists.as_ptr(),
                programs.numbers(|program| program.ranks)?.as_ptr(),
                programs.numbers(|program| program.hints.len())?.as_ptr(),
                hint_lists.as_ptr(),
                int(preput.len())?,
                preput.as_ptr(),
                errors.as_mut_ptr(),
            )
        };
        check("PMI_Spawn_multiple", code)
    }

    fn job_spawn(&self, programs: &Programs) -> Result<String, LibraryError> {
        let spawn = self.function::<Spawn2>("PMI2_Job_Spawn")?;
        let hints: Vec<Vec<Info>> = programs.each(|program| program.hints.iter().map(Info::of).collect());
        let hint_lists: Vec<_> = hints.iter().map(Vec::as_ptr).collect();
        let preput: Vec<Info> = programs.preput.iter().map(Info::of).collect();
        let preput_list: Vec<*const Info> = preput.iter().map(ptr::from_ref).collect();
        let (names, words) = (programs.names(), programs.words());
        let word_lists: Vec<Texts> = words.iter().map(Vec::as_ptr).collect();
        let mut errors = programs.room_for_errors()?;
        let mut job = vec![0_u8; NAME_MAX];
        // SAFETY: by the prototype of Slurm's pmi2.h, with the guarantees above. The buffer has the length that is passed.
        let code = unsafe {
            spawn(
                int(programs.apps.len())?,
                names.as_ptr(),
                programs.numbers(|program| program.words.len())?.as_ptr(),
                word_lists.as_ptr(),
                programs.numbers(|program| program.ranks)?.as_ptr(),
                programs.numbers(|program| program.hints.len())?.as_ptr(),
                hint_lists.as_ptr(),
                int(preput.len())?,
                preput_list.as_ptr(),
                job.as_mut_ptr().cast(),
                NAME_MAX as c_int,
                errors.as_mut_ptr(),
            )
        };
        check("PMI2_Job_Spawn", code)?;
        Ok(text_in(&job).to_string_lossy().into_owned())
    }
}

impl Info {
    fn of(pair: &Pair) -> Self {
        let (key, value) = (pair.0.as_ptr(), pair.1.as_ptr());
        Self { handle: 0, mutex: 0, references: 0, next: ptr::null(), key, value }
    }
}

type Pair = (CString, CString);

/// A request with texts that C can read.
struct Programs {
    apps: Vec<Program>,
    preput: Vec<Pair>,
}

struct Program {
    name: CString,
    words: Vec<CString>,
    ranks: usize,
    hints: Vec<Pair>,
}

impl Programs {
    fn of(request: &SpawnRequest) -> Result<Self, LibraryError> {
        let apps = request.apps.iter().map(Program::of).collect::<Result<_, _>>()?;
        Ok(Self { apps, preput: pairs(&request.preput)? })
    }

    fn each<'p, T>(&'p self, of: impl Fn(&'p Program) -> T) -> Vec<T> {
        self.apps.iter().map(of).collect()
    }

    fn numbers(&self, of: impl Fn(&Program) -> usize) -> Result<Vec<c_int>, LibraryError> {
        self.apps.iter().map(|program| int(of(program))).collect()
    }

    fn names(&self) -> Vec<*const c_char> {
        self.each(|program| program.name.as_ptr())
    }

    /// Arguments of each program, with a null after the last one.
    fn words(&self) -> Vec<Vec<*const c_char>> {
        self.each(|program| program.words.iter().map(|word| word.as_ptr()).chain([ptr::null()]).collect())
    }

    /// Room for the errors. Depending on their origin, libraries write one error for each program or one for each rank.
    fn room_for_errors(&self) -> Result<Vec<c_int>, LibraryError> {
        let ranks: usize = self.apps.iter().map(|program| program.ranks).sum();
        int(ranks)?;
        Ok(vec![0; ranks.max(self.apps.len())])
    }
}

impl Program {
    fn of(app: &SpawnApp) -> Result<Self, LibraryError> {
        let words = app.args.iter().map(|word| text(word.as_bytes())).collect::<Result<_, _>>()?;
        let (name, ranks) = (text(app.program.as_bytes())?, app.ranks as usize);
        Ok(Self { name, words, ranks, hints: pairs(&app.info)? })
    }
}

fn pairs(pairs: &[(String, String)]) -> Result<Vec<Pair>, LibraryError> {
    pairs.iter().map(|(key, value)| Ok((text(key.as_bytes())?, text(value.as_bytes())?))).collect()
}

fn int(number: usize) -> Result<c_int, LibraryError> {
    c_int::try_from(number).map_err(|_| LibraryError::Number { number })
}
