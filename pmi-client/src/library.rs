//! PMI through a C library that is loaded at run time, as in C programs: any implementation of `libpmi.so.0` or `libpmi2.so.0`.
//!
//! For self-tests and comparisons. Programs in Rust use [`Client`](crate::Client) for PMI.
#![allow(unsafe_code, reason = "functions of a C library are called")]

mod spawn;

use std::error::Error as _;
use std::ffi::{CStr, CString, c_char, c_int};
use std::path::Path;
use std::ptr;

use libloading::{Library, Symbol};

/// Maximum size of a value, including its NUL, in bytes. Libraries accept longer values only if their launcher does.
const VALUE_MAX: usize = 64 * 1024;
/// Maximum size of the name of a key-value space, including its NUL, in bytes.
const NAME_MAX: usize = 1024;

/// Functions through which a library is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LibraryApi {
    /// PMI-1, of `libpmi.so.0`.
    Pmi1,
    /// PMI-2, of `libpmi2.so.0`.
    Pmi2,
}

/// A failed call through a library.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LibraryError {
    /// The library does not exist, or lacks a function.
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
    /// The library returned a rank that the job cannot have.
    #[error("the library reports rank {rank} of {size}")]
    NoSuchRank {
        /// The rank.
        rank: c_int,
        /// Number of ranks.
        size: c_int,
    },
    /// A number that does not fit into an `int` of C.
    #[error("{number} is too much for a C library, with numbers up to 2147483647")]
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

/// Connection of a rank to its launcher through a C library.
#[derive(Debug)]
pub struct LibraryClient {
    library: Library,
    api: LibraryApi,
    rank: u32,
    size: u32,
    /// Name of the job's key-value space; empty in PMI-2, where calls without a name refer to the job of the caller.
    space: CString,
}

impl LibraryClient {
    /// Loads a library by its path, or by a name that the dynamic linker resolves, and joins the job through it.
    ///
    /// The file must be a PMI library: its initialisers run, and its functions are called by name.
    ///
    /// # Errors
    /// Fails if the library does not exist, lacks a function, or cannot join.
    pub fn load(file: &Path, api: LibraryApi) -> Result<Self, LibraryError> {
        let reason = |error: &libloading::Error| error.source().map_or_else(|| error.to_string(), ToString::to_string);
        // SAFETY: initialisers of PMI libraries have no preconditions. The caller guarantees that the file is such a library.
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

    /// The rank of this process in the job, from 0.
    pub fn rank(&self) -> u32 {
        self.rank
    }

    /// The number of ranks in the job.
    pub fn size(&self) -> u32 {
        self.size
    }

    /// Puts `value` under `key`. Every rank can get it after the next [`fence`](Self::fence).
    ///
    /// # Errors
    /// Fails if the call of the library fails.
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

    /// Waits until every rank of the job has called this the same number of times.
    ///
    /// # Errors
    /// Fails if the call of the library fails.
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

    /// Returns the value under `key`; `None` if the library does not return one.
    ///
    /// # Errors
    /// Fails if the library lacks the function.
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
                // SAFETY: as above. A null job is the job of the caller, and -1 is an unknown owner.
                unsafe { get(ptr::null(), -1, key.as_ptr(), buffer, length, &raw mut found) }
            }
        };
        Ok((code == 0).then(|| text_in(&value).into_bytes()))
    }

    /// A fact about the job, such as `PMI_process_mapping`; `None` if the launcher does not have the key.
    ///
    /// # Errors
    /// Fails if the library lacks the function.
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

    /// Leaves the job in good order.
    ///
    /// # Errors
    /// Fails if the call of the library fails.
    pub fn finalize(self) -> Result<(), LibraryError> {
        match self.api {
            LibraryApi::Pmi1 => self.call("PMI_Finalize"),
            LibraryApi::Pmi2 => self.call("PMI2_Finalize"),
        }
    }

    /// Joins the job. Returns the rank and the number of ranks.
    fn init(&self) -> Result<(c_int, c_int), LibraryError> {
        let (mut spawned, mut rank, mut size, mut appnum) = (0, 0, 0, 0);
        match self.api {
            LibraryApi::Pmi1 => {
                for (name, number) in
                    [("PMI_Init", &mut spawned), ("PMI_Get_rank", &mut rank), ("PMI_Get_size", &mut size)]
                {
                    // SAFETY: each function writes one number.
                    check(name, unsafe { self.function::<Number>(name)?(number) })?;
                }
            }
            LibraryApi::Pmi2 => {
                let init = self.function::<Init2>("PMI2_Init")?;
                // SAFETY: the function writes four numbers.
                let code = unsafe { init(&raw mut spawned, &raw mut size, &raw mut rank, &raw mut appnum) };
                check("PMI2_Init", code)?;
            }
        }
        Ok((rank, size))
    }

    fn own_space(&self) -> Result<CString, LibraryError> {
        let name = "PMI_KVS_Get_my_name";
        let mut space = vec![0; NAME_MAX];
        // SAFETY: by the prototype of pmi.h. The buffer has the length that is passed.
        check(name, unsafe { self.function::<Text>(name)?(space.as_mut_ptr().cast(), NAME_MAX as c_int) })?;
        Ok(text_in(&space))
    }

    /// Calls a function without arguments.
    fn call(&self, name: &'static str) -> Result<(), LibraryError> {
        let function = self.function::<Plain>(name)?;
        // SAFETY: the function has no arguments.
        check(name, unsafe { function() })
    }

    /// Returns a function of the library. The type must be that of pmi.h or pmi2.h.
    fn function<F>(&self, name: &str) -> Result<Symbol<'_, F>, LibraryError> {
        // SAFETY: callers use the types of the two headers. The symbol cannot outlive the library.
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

/// Returns the text at the start of a buffer. A library that wrote no NUL has filled the whole buffer.
fn text_in(buffer: &[u8]) -> CString {
    CStr::from_bytes_until_nul(buffer).map(CStr::to_owned).unwrap_or_default()
}
