//! Locks are taken in signal handlers and files are opened again in fork handlers:
//! neither may allocate.
//!
//! Unsafe, because an allocator is.
#![allow(unsafe_code)]

use hypertrace_segment::{LockFile, token};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: the system's allocator does all of it.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn locks_and_tokens_allocate_nothing() {
    let file = LockFile::new(tempfile::tempfile().unwrap(), 0, 900);
    let other = LockFile::new(file.file().unwrap(), 0, LockFile::ANY);
    let before = ALLOCATIONS.get();

    let locked = file.lock(7);
    file.reopen();
    let refused = !file.lock(7);
    file.unlock(7);
    let token = token();

    assert_eq!(ALLOCATIONS.get(), before);
    assert!(locked && refused && token != 0);
    drop(other);
}
