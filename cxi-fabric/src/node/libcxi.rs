//! HPE's libcxi, loaded at run time. The only file of this crate with `unsafe` code.
//!
//! Functions and their contracts are from `libcxi.h`; `abi` has their structures.
#![allow(unsafe_code, reason = "a C library is called, and its memory is read")]

mod abi;

use std::error::Error as _;
use std::ffi::c_int;
use std::path::Path;

use libloading::Library;
use thiserror::Error;

use super::sysfs::{self, Sysfs};
use super::{CxiBackend, CxiError, FoundService, Nic, ServiceSpec};
use abi::{Descriptor, Device, FailInfo, List};

const ENOSPC: i32 = 28;
const EINVAL: i32 = 22;
const ENOENT: i32 = 2;

type Open = unsafe extern "C" fn(u32, *mut *mut Device) -> c_int;
type Close = unsafe extern "C" fn(*mut Device);
type Alloc = unsafe extern "C" fn(*mut Device, *const Descriptor, *mut FailInfo) -> c_int;
type Destroy = unsafe extern "C" fn(*mut Device, u32) -> c_int;
type GetList = unsafe extern "C" fn(*mut Device, *mut *mut List) -> c_int;
type FreeList = unsafe extern "C" fn(*mut List);

/// Error of a libcxi that is not usable.
#[derive(Debug, Error)]
#[error("cannot use {library}: {reason}; install the library libcxi, or use the cxi_service command")]
pub struct LoadError {
    library: String,
    /// Error of the dynamic linker.
    reason: String,
}

impl LoadError {
    fn new(library: &Path, error: &libloading::Error) -> Self {
        let reason = error.source().map_or_else(|| error.to_string(), ToString::to_string);
        Self { library: library.display().to_string(), reason }
    }
}

/// Back end with libcxi.
pub struct LibCxi {
    open: Open,
    close: Close,
    alloc: Alloc,
    destroy: Destroy,
    get_list: GetList,
    free_list: FreeList,
    sysfs: Sysfs,
    /// Keeps the functions in memory.
    _library: Library,
}

impl LibCxi {
    /// File name of the library on a node.
    pub const LIBRARY: &'static str = "libcxi.so.1";

    /// Loads the library, which must be libcxi: its initialisers run, and its functions are called by name.
    ///
    /// # Errors
    /// Fails if there is no such library, or a function is missing.
    pub fn load(library: impl AsRef<Path>, sysfs: Sysfs) -> Result<Self, LoadError> {
        let path = library.as_ref();
        let failed = |error| LoadError::new(path, &error);
        // SAFETY: libcxi's initialisers have no preconditions; the caller guarantees that this is libcxi.
        let library = unsafe { Library::new(path) }.map_err(failed)?;
        // SAFETY (of each of the six): the types are the prototypes in libcxi.h, and `library` lives as long as the pointers.
        macro_rules! function {
            ($name:literal) => {
                // SAFETY: as above.
                *unsafe { library.get($name) }.map_err(failed)?
            };
        }
        Ok(Self {
            open: function!(b"cxil_open_device\0"),
            close: function!(b"cxil_close_device\0"),
            alloc: function!(b"cxil_alloc_svc\0"),
            destroy: function!(b"cxil_destroy_svc\0"),
            get_list: function!(b"cxil_get_svc_list\0"),
            free_list: function!(b"cxil_free_svc_list\0"),
            sysfs,
            _library: library,
        })
    }

    /// Opens a NIC for the duration of `work`.
    fn with_device<T>(&self, nic: &str, work: impl FnOnce(*mut Device) -> Result<T, CxiError>) -> Result<T, CxiError> {
        let mut device = std::ptr::null_mut();
        // SAFETY: `device` is valid for the function's result.
        check(nic, "opening the device", unsafe { (self.open)(sysfs::number(nic)?, &raw mut device) })?;
        let result = work(device);
        // SAFETY: `device` was opened above, and `work` has returned.
        unsafe { (self.close)(device) };
        result
    }
}

impl CxiBackend for LibCxi {
    fn nics(&self) -> Result<Vec<Nic>, CxiError> {
        self.sysfs.nics()
    }

    fn create(&self, nic: &str, spec: &ServiceSpec) -> Result<u32, CxiError> {
        let descriptor = Descriptor::new(spec);
        let mut missing = FailInfo::default();
        self.with_device(nic, |device| {
            // SAFETY: `device` is open; both structures have the kernel's layout, and live during the call.
            let code = unsafe { (self.alloc)(device, &raw const descriptor, &raw mut missing) };
            if code == -ENOSPC {
                return Err(CxiError::Short { nic: nic.to_owned(), shortage: missing.shortage(spec) });
            }
            check(nic, "making a service", code)
        })
    }

    fn destroy(&self, nic: &str, svc_id: u32) -> Result<(), CxiError> {
        self.with_device(nic, |device| {
            // SAFETY: `device` is open.
            match unsafe { (self.destroy)(device, svc_id) } {
                code if code == -EINVAL || code == -ENOENT => Err(CxiError::Unknown { nic: nic.to_owned(), svc_id }),
                code => check(nic, "ending a service", code).map(|_| ()),
            }
        })
    }

    fn list(&self, nic: &str) -> Result<Vec<FoundService>, CxiError> {
        self.with_device(nic, |device| {
            let mut list: *mut List = std::ptr::null_mut();
            // SAFETY: `device` is open, and `list` is valid for the function's result.
            check(nic, "listing services", unsafe { (self.get_list)(device, &raw mut list) })?;
            // SAFETY: on success `list` points to a count, followed by that many descriptors. The pointer to the first one is
            // derived from `list` itself, so that it may extend beyond the struct.
            let found = unsafe {
                let first = (&raw const (*list).descriptors).cast::<Descriptor>();
                std::slice::from_raw_parts(first, (*list).count as usize).iter().map(Descriptor::found).collect()
            };
            // SAFETY: the list came from the library, and no pointer into it is left.
            unsafe { (self.free_list)(list) };
            Ok(found)
        })
    }
}

/// Converts a result; a negative one is an error number of the driver.
fn check(nic: &str, action: &'static str, code: c_int) -> Result<u32, CxiError> {
    u32::try_from(code).map_err(|_| CxiError::from_errno(nic, action, code.saturating_neg()))
}
