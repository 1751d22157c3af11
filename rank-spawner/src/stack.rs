//! Stack of a child until `execve`.

#![expect(unsafe_code, reason = "maps and unmaps memory")]

use std::ffi::c_void;
use std::num::NonZeroUsize;
use std::ptr::NonNull;

use nix::sys::mman::{MapFlags, ProtFlags, mmap_anonymous, mprotect, munmap};

/// Mapping with an inaccessible region below it. Any number of children can use it, one after the other.
pub(crate) struct ChildStack {
    base: NonNull<c_void>,
}

impl ChildStack {
    /// The child calls a few small functions, without recursion, and its largest value on the stack is a `sigaction` (152
    /// bytes): 2 KiB in a debug build. The rest is reserve for sanitizers; untouched pages cost nothing.
    const LEN: usize = 64 * 1024;

    /// Covers the largest page size that Linux uses, and keeps the stack above it page-aligned.
    const GUARD_LEN: usize = 64 * 1024;

    /// Maps a stack.
    pub(crate) fn map() -> nix::Result<Self> {
        let len = NonZeroUsize::new(Self::GUARD_LEN + Self::LEN).expect("a sum of positive constants");
        let flags = MapFlags::MAP_PRIVATE | MapFlags::MAP_STACK | MapFlags::MAP_NORESERVE;
        // SAFETY: without MAP_FIXED the kernel selects an unused place.
        let base = unsafe { mmap_anonymous(None, len, ProtFlags::PROT_READ | ProtFlags::PROT_WRITE, flags)? };
        let stack = Self { base };
        // SAFETY: the region is the start of the new mapping, and is unused.
        unsafe { mprotect(base, Self::GUARD_LEN, ProtFlags::PROT_NONE)? };
        Ok(stack)
    }

    /// Address for `clone`: the end of the mapping, since stacks grow downwards. It is page-aligned.
    pub(crate) fn top(&mut self) -> *mut c_void {
        // SAFETY: one past the end of the mapping.
        unsafe { self.base.as_ptr().byte_add(Self::GUARD_LEN + Self::LEN) }
    }
}

// SAFETY: only this value owns the mapping, on any thread.
unsafe impl Send for ChildStack {}

impl Drop for ChildStack {
    fn drop(&mut self) {
        // SAFETY: only this value owns the mapping, and no child runs on it: each had left it before `clone` returned. The
        // call cannot fail for a whole mapping.
        let _ = unsafe { munmap(self.base, Self::GUARD_LEN + Self::LEN) };
    }
}
