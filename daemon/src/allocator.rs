//! The allocator of a daemon.

#![cfg_attr(
    all(target_os = "linux", target_env = "gnu"),
    expect(unsafe_code, reason = "a setting of the C library that nix does not wrap; it says what makes it sound")
)]

/// Keeps the C library from having a heap for each thread: what one has freed is of no use to the others, and is never given back, so that a
/// daemon whose threads for blocking work are many for a moment grows by all of them (measured: 60 launches of 1.5 MB that end together leave the
/// API server with 250 MiB, and with one heap with 160). Threads that are there already keep theirs. musl has one as it is.
pub(crate) fn keep_one_heap() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: the call has a lock of its own, and sets a number. A number that it does not take changes nothing.
    unsafe {
        nix::libc::mallopt(nix::libc::M_ARENA_MAX, 1);
    }
}
