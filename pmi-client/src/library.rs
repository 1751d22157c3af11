//! PMI through a C library that is found at run time, as programs in C reach it: `libpmi.so.0` or `libpmi2.so.0`, whoever made it.
//!
//! For self-tests and comparisons: who wants PMI from Rust takes [`Client`](crate::Client).
#![allow(unsafe_code, reason = "functions of a C library are called")]

mod spawn;

use std::error::Error as _;
use std::ffi::{CStr, CString, c_char, c_int};
use std::path::Path;
use std::ptr;

use libloading::{Library, Symbol};

/// Most bytes of a value that is read, its NUL included. Libraries take longer ones only if their launcher does.
const VALUE_MAX: usize = 64 * 1024;
/// Most bytes of a name of a key-value space, its NUL included.
const NAME_MAX: usize = 1024;

/// Functions by which a library is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LibraryApi {
    /// PMI-1, of `libpmi.so.0`.
    Pmi1,
    /// PMI-2, of `libpmi2.so.0`.
    Pmi2,
}

/// A call through a library that failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LibraryError {
    /// There is no such library, or it lacks a function.
    #[error("cannot use {library}: {reason}")]
    Load {
        /// The library.
        library: String,
        /// Error of the dynamic linker.
        reason: String,
    },
    /// A function returned an error.
    #[error("{function} returned {code}")]
    Code {
        /// The function.
        function: &'static str,
        /// Its return code.
        code: c_int,
    },
    /// The library says that this process has a rank its job cannot have.
    #[error("the library says that this is rank {rank} of {size}")]
    NoSuchRank {
        /// The rank.
        rank: c_int,
        /// Number of ranks.
        size: c_int,
    },
    /// A number that C has no `int` for.
    #[error("{number} is too much for a C library, whose numbers end at 2147483647")]
    Number {
        /// The number.
        number: usize,
    },
    /// A text with a NUL inside.
    #[error("a text with a NUL cannot be passed to a C library")]
    Nul,
}

type Number = unsafe extern "C" fn(*mut c_int) -> c_int;
type Text = unsafe extern "C" fn(*mut c_char, c_int) -> c_int;
type Put1 = unsafe extern "C" fn(*const c_char, *const c_char, *const c_char) -> c_int;
type Get1 = unsafe extern "C" fn(*const c_char, *const c_char, *mut c_char, c_int) -> c_int;
type Space = unsafe extern "C" fn(*const c_char) -> c_int;
type Plain = unsafe extern "C" fn() -> c_int;
type Init2 = unsafe extern "C" fn(*mut c_int, *mut c_int, *mut c_int, *mut c_int) -> c_int;
type Put2 = unsafe extern "C" fn(*const c_char, *const c_char) -> c_int;
type Get2 = unsafe extern "C" fn(*const c_char, c_int, *const c_char, *mut c_char, c_int, *mut c_int) -> c_int;
type Attribute2 = unsafe extern "C" fn(*const c_char, *mut c_char, c_int, *mut c_int) -> c_int;

/// A rank's conversation with its launcher through a C library.
#[derive(Debug)]
pub struct LibraryClient {
    library: Library,
    api: LibraryApi,
    rank: u32,
    size: u32,
    /// Name of the job's key-value space; empty in PMI-2, whose calls mean the own job without one.
    space: CString,
}

impl LibraryClient {
    /// Loads a library by its path, or by a name that the dynamic linker looks for, and joins the job through it.
    ///
    /// The file must be a PMI library: its initialisers run, and its functions are called by name.
    ///
    /// # Errors
    /// Fails when there is none, when it lacks a function, and when it cannot join.
    pub fn load(file: &Path, api: LibraryApi) -> Result<Self, LibraryError> {
        let reason = |error: &libloading::Error| error.source().map_or_else(|| error.to_string(), ToString::to_string);
        // SAFETY: initialisers of PMI libraries have no preconditions; the caller vouches that this is one.
        let library = unsafe { Library::new(file) };
        let library = library
            .map_err(|error| LibraryError::Load { library: file.display().to_string(), reason: reason(&error) })?;
        let mut client = Self { library, api, rank: 0, size: 0, space: CString::default() };
        let (rank, size) = client.init()?;
        let known = u32::try_from(rank).ok().zip(u32::try_from(size).ok()).filter(|(rank, size)| rank < size);
        (client.rank, client.size) = known.ok_or(LibraryError::NoSuchRank { rank, size })?;
        if api == LibraryApi::Pmi1 {
            client.space = client.own_space()?;
        }
        Ok(client)
    }

    /// This process's position in the job, from 0.
    pub fn rank(&self) -> u32 {
        self.rank
    }

    /// The number of ranks in the job.
    pub fn size(&self) -> u32 {
        self.size
    }

    /// Puts `value` under `key`, for every rank to get after the next [`fence`](Self::fence).
    ///
    /// # Errors
    /// Fails when the library does.
    pub fn put(&mut self, key: &str, value: &[u8]) -> Result<(), LibraryError> {
        let (key, value) = (text(key.as_bytes())?, text(value)?);
        match self.api {
            LibraryApi::Pmi1 => {
                let put = self.function::<Put1>("PMI_KVS_Put")?;
                // SAFETY: all three are NUL-terminated and outlive the call.
                check("PMI_KVS_Put", unsafe { put(self.space.as_ptr(), key.as_ptr(), value.as_ptr()) })
            }
            LibraryApi::Pmi2 => {
                let put = self.function::<Put2>("PMI2_KVS_Put")?;
                // SAFETY: both are NUL-terminated and outlive the call.
                check("PMI2_KVS_Put", unsafe { put(key.as_ptr(), value.as_ptr()) })
            }
        }
    }

    /// Waits until every rank of the job has called this as often.
    ///
    /// # Errors
    /// Fails when the library does.
    pub fn fence(&mut self) -> Result<(), LibraryError> {
        match self.api {
            LibraryApi::Pmi1 => {
                let commit = self.function::<Space>("PMI_KVS_Commit")?;
                // SAFETY: the name is NUL-terminated and outlives the call.
                check("PMI_KVS_Commit", unsafe { commit(self.space.as_ptr()) })?;
                self.call("PMI_Barrier")
            }
            LibraryApi::Pmi2 => self.call("PMI2_KVS_Fence"),
        }
    }

    /// The value under `key`; `None` if the library has none.
    ///
    /// # Errors
    /// Fails when the library lacks the function.
    pub fn get(&mut self, key: &str) -> Result<Option<Vec<u8>>, LibraryError> {
        let key = text(key.as_bytes())?;
        let mut value = vec![0_u8; VALUE_MAX];
        let (buffer, length) = (value.as_mut_ptr().cast(), VALUE_MAX as c_int);
        let code = match self.api {
            LibraryApi::Pmi1 => {
                let get = self.function::<Get1>("PMI_KVS_Get")?;
                // SAFETY: names are NUL-terminated, and the buffer has the length that is passed.
                unsafe { get(self.space.as_ptr(), key.as_ptr(), buffer, length) }
            }
            LibraryApi::Pmi2 => {
                let get = self.function::<Get2>("PMI2_KVS_Get")?;
                let mut found: c_int = 0;
                // SAFETY: as above; a null job is the own one, and -1 an owner that is not known.
                unsafe { get(ptr::null(), -1, key.as_ptr(), buffer, length, &raw mut found) }
            }
        };
        Ok((code == 0).then(|| text_in(&value).into_bytes()))
    }

    /// A fact about the job, such as `PMI_process_mapping`; `None` if the launcher does not know the key.
    ///
    /// # Errors
    /// Fails when the library lacks the function.
    pub fn job_attribute(&mut self, key: &str) -> Result<Option<Vec<u8>>, LibraryError> {
        if self.api == LibraryApi::Pmi1 {
            return self.get(key);
        }
        let attribute = self.function::<Attribute2>("PMI2_Info_GetJobAttr")?;
        let (key, mut value, mut found) = (text(key.as_bytes())?, vec![0_u8; VALUE_MAX], 0);
        // SAFETY: the key is NUL-terminated, and the buffer has the length that is passed.
        let code = unsafe { attribute(key.as_ptr(), value.as_mut_ptr().cast(), VALUE_MAX as c_int, &raw mut found) };
        Ok((code == 0 && found != 0).then(|| text_in(&value).into_bytes()))
    }

    /// Takes leave in good order.
    ///
    /// # Errors
    /// Fails when the library does.
    pub fn finalize(self) -> Result<(), LibraryError> {
        match self.api {
            LibraryApi::Pmi1 => self.call("PMI_Finalize"),
            LibraryApi::Pmi2 => self.call("PMI2_Finalize"),
        }
    }

    /// Joins; returns rank and number of ranks.
    fn init(&self) -> Result<(c_int, c_int), LibraryError> {
        let (mut spawned, mut rank, mut size, mut appnum) = (0, 0, 0, 0);
        match self.api {
            LibraryApi::Pmi1 => {
                for (name, number) in
                    [("PMI_Init", &mut spawned), ("PMI_Get_rank", &mut rank), ("PMI_Get_size", &mut size)]
                {
                    // SAFETY: each takes the place of one number.
                    check(name, unsafe { self.function::<Number>(name)?(number) })?;
                }
            }
            LibraryApi::Pmi2 => {
                let init = self.function::<Init2>("PMI2_Init")?;
                // SAFETY: it takes the places of four numbers.
                let code = unsafe { init(&raw mut spawned, &raw mut size, &raw mut rank, &raw mut appnum) };
                check("PMI2_Init", code)?;
            }
        }
        Ok((rank, size))
    }

    fn own_space(&self) -> Result<CString, LibraryError> {
        let name = "PMI_KVS_Get_my_name";
        let mut space = vec![0; NAME_MAX];
        // SAFETY: as the prototype of pmi.h has it; the buffer has the length that is passed.
        check(name, unsafe { self.function::<Text>(name)?(space.as_mut_ptr().cast(), NAME_MAX as c_int) })?;
        Ok(text_in(&space))
    }

    /// Calls a function without arguments.
    fn call(&self, name: &'static str) -> Result<(), LibraryError> {
        let function = self.function::<Plain>(name)?;
        // SAFETY: it takes nothing.
        check(name, unsafe { function() })
    }

    /// A function of the library, which must have the type that pmi.h or pmi2.h gives it.
    fn function<F>(&self, name: &str) -> Result<Symbol<'_, F>, LibraryError> {
        // SAFETY: callers take the types of the two headers; the symbol cannot outlive the library.
        unsafe { self.library.get(name) }.map_err(|error| {
            let reason = error.source().map_or_else(|| error.to_string(), ToString::to_string);
            LibraryError::Load { library: "the PMI library".to_owned(), reason }
        })
    }
}

fn check(function: &'static str, code: c_int) -> Result<(), LibraryError> {
    if code == 0 { Ok(()) } else { Err(LibraryError::Code { function, code }) }
}

fn text(bytes: &[u8]) -> Result<CString, LibraryError> {
    CString::new(bytes).map_err(|_| LibraryError::Nul)
}

/// The text at the beginning of a buffer; a library that wrote no NUL has filled all of it.
fn text_in(buffer: &[u8]) -> CString {
    CStr::from_bytes_until_nul(buffer).map(CStr::to_owned).unwrap_or_default()
}
