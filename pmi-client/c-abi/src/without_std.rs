//! Replacements for `std` in the small libraries: memory of the C library, and a process end for a panic, which would be a bug.
//!
//! `std` alone would be nine tenths of a library, because it can print the backtrace of a panic.

use core::alloc::{GlobalAlloc, Layout};
use core::fmt::{self, Write};
use core::panic::PanicInfo;

struct Malloc;

#[global_allocator]
static ALLOCATOR: Malloc = Malloc;

/// Largest alignment that `malloc` guarantees.
const ALIGNMENT: usize = 2 * size_of::<usize>();

#[expect(unsafe_code, reason = "an allocator hands out pointers")]
// SAFETY: `malloc`, `realloc` and `free` satisfy the rules of an allocator for alignments up to theirs. `aligned_alloc` does for larger ones.
unsafe impl GlobalAlloc for Malloc {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: by the contract of the caller, sizes are above 0, and alignments are powers of two.
        unsafe {
            match layout.align() <= ALIGNMENT {
                true => libc::malloc(layout.size()).cast(),
                false => libc::aligned_alloc(layout.align(), layout.pad_to_align().size()).cast(),
            }
        }
    }

    unsafe fn dealloc(&self, memory: *mut u8, _layout: Layout) {
        // SAFETY: the memory comes from one of the two functions above.
        unsafe { libc::free(memory.cast()) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: as above. Memory with a large alignment is copied, which the contract of the caller allows.
        unsafe {
            if layout.align() <= ALIGNMENT {
                return libc::realloc(memory.cast(), size).cast();
            }
            let moved = self.alloc(Layout::from_size_align_unchecked(size, layout.align()));
            if !moved.is_null() {
                moved.copy_from_nonoverlapping(memory, layout.size().min(size));
                self.dealloc(memory, layout);
            }
            moved
        }
    }
}

/// Standard error.
struct StandardError;

impl Write for StandardError {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        #[expect(unsafe_code, reason = "a number that always names standard error")]
        // SAFETY: if the program has closed the descriptor, the write fails.
        let error = unsafe { rustix::fd::BorrowedFd::borrow_raw(2) };
        rustix::io::write(error, text.as_bytes()).map(drop).map_err(|_| fmt::Error)
    }
}

/// Prints the location of the panic and ends the process, so that no panic unwinds into the caller.
#[panic_handler]
fn end(panic: &PanicInfo<'_>) -> ! {
    let _ = writeln!(StandardError, "PMI library: {panic}");
    abort()
}

/// The `alloc` crate of Rust contains cleanup code for unwinding, which refers to these symbols. No panic unwinds here. The symbols are
/// hidden, because programs in C++ have their own.
#[expect(unsafe_code, reason = "nothing safe defines a symbol that is hidden")]
mod unwinding {
    core::arch::global_asm!(
        ".globl rust_eh_personality",
        ".hidden rust_eh_personality",
        ".set rust_eh_personality, {abort}",
        ".globl _Unwind_Resume",
        ".hidden _Unwind_Resume",
        ".set _Unwind_Resume, {abort}",
        abort = sym super::abort,
    );
}

extern "C" fn abort() -> ! {
    #[expect(unsafe_code, reason = "nothing safe ends a process by a signal")]
    // SAFETY: `abort` has no preconditions.
    unsafe {
        libc::abort()
    }
}
