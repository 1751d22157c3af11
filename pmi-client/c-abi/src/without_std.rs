//! What the small libraries have instead of `std`: memory of the C library, and an end for a panic, which would be a bug.
//!
//! `std` alone is nine tenths of a library: it can print where a panic came from, function by function.

use core::alloc::{GlobalAlloc, Layout};
use core::fmt::{self, Write};
use core::panic::PanicInfo;

struct Malloc;

#[global_allocator]
static ALLOCATOR: Malloc = Malloc;

/// Largest alignment that `malloc` keeps by itself.
const ALIGNMENT: usize = 2 * size_of::<usize>();

#[expect(unsafe_code, reason = "an allocator hands out pointers")]
// SAFETY: `malloc`, `realloc` and `free` do what is asked of an allocator for alignments up to theirs, and `aligned_alloc` for others.
unsafe impl GlobalAlloc for Malloc {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: sizes are above 0, and alignments powers of two, as the caller promises.
        unsafe {
            match layout.align() <= ALIGNMENT {
                true => libc::malloc(layout.size()).cast(),
                false => libc::aligned_alloc(layout.align(), layout.pad_to_align().size()).cast(),
            }
        }
    }

    unsafe fn dealloc(&self, memory: *mut u8, _layout: Layout) {
        // SAFETY: it comes from one of the two above.
        unsafe { libc::free(memory.cast()) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: as above. For a large alignment it is copied, which the caller's promises allow.
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
        // SAFETY: a descriptor that the program has closed is refused.
        let error = unsafe { rustix::fd::BorrowedFd::borrow_raw(2) };
        rustix::io::write(error, text.as_bytes()).map(drop).map_err(|_| fmt::Error)
    }
}

/// Tells where it came from and ends the process: nothing unwinds into the caller.
#[panic_handler]
fn end(panic: &PanicInfo<'_>) -> ! {
    let _ = writeln!(StandardError, "PMI library: {panic}");
    abort()
}

/// `alloc` as it comes with Rust knows how to clean up while something unwinds, and names what would lead it there. Nothing unwinds here. The
/// names are hidden: programs in C++ have their own.
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
