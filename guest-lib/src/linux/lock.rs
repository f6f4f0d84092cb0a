//! Who has which client: one byte each of a file, locked.
//!
//! Open file description locks (fcntl(2), F_OFD_SETLK): one per client, held
//! against other processes, gone with the last descriptor. A fork shares the
//! description, so a child that kept it would hold its parent's clients.
//!
//! Unsafe, because of fcntl and raw descriptors.
#![allow(unsafe_code)]

use std::fmt::Write;
use std::fs::File;
use std::io;
use std::os::fd::{BorrowedFd, IntoRawFd};
use std::sync::atomic::{AtomicI32, Ordering::Relaxed};

/// A file whose bytes stand for clients. Its descriptor is closed on exec.
pub(super) struct LockFile {
    /// -1: closed.
    descriptor: AtomicI32,
    /// The byte of client 0.
    base: u64,
}

impl LockFile {
    pub(super) fn new(file: File, base: u64) -> LockFile {
        let descriptor = file.into_raw_fd();
        // SAFETY: our own descriptor. std opens files so already, but this one
        // may have come over a socket.
        unsafe { libc::fcntl(descriptor, libc::F_SETFD, libc::FD_CLOEXEC) };
        LockFile { descriptor: AtomicI32::new(descriptor), base }
    }

    /// Whether the file takes locks at all, tried on a byte that is no
    /// client's.
    pub(super) fn check(&self, byte: u32) -> io::Result<()> {
        let locked = self.lock(byte);
        let why = io::Error::last_os_error();
        self.unlock(byte);
        match why.raw_os_error() {
            // Another process tries just now.
            Some(libc::EAGAIN | libc::EACCES) => Ok(()),
            _ if locked => Ok(()),
            _ => Err(why),
        }
    }

    /// `false` if another process has it, or the system refuses.
    pub(super) fn lock(&self, client: u32) -> bool {
        self.set(client, libc::F_WRLCK)
    }

    pub(super) fn unlock(&self, client: u32) {
        self.set(client, libc::F_UNLCK);
    }

    fn set(&self, client: u32, kind: libc::c_int) -> bool {
        let lock = libc::flock {
            l_type: kind as libc::c_short,
            l_whence: libc::SEEK_SET as libc::c_short,
            l_start: (self.base + u64::from(client)) as libc::off_t,
            l_len: 1,
            // Must be 0 for this kind of lock.
            l_pid: 0,
        };
        // SAFETY: fcntl reads `lock`, and nothing else of ours.
        unsafe { libc::fcntl(self.descriptor.load(Relaxed), libc::F_OFD_SETLK, &lock) == 0 }
    }

    /// In a forked child: lets go of the parent's locks.
    pub(super) fn close(&self) {
        let descriptor = self.descriptor.swap(-1, Relaxed);
        if descriptor >= 0 {
            // SAFETY: this type owns it, and has just forgotten it.
            unsafe { libc::close(descriptor) };
        }
    }

    /// In a forked child: puts the same file, with a description of its own
    /// that holds nothing yet, in the inherited one's place. Without a /proc
    /// the file is closed.
    pub(super) fn reopen(&self) {
        let mut path = Path::default();
        let inherited = self.descriptor.load(Relaxed);
        let own = match write!(path, "/proc/self/fd/{inherited}") {
            // SAFETY: `path` ends with a NUL, since it began as zeros and its
            // last byte is never written.
            Ok(()) => unsafe {
                libc::open(path.text.as_ptr().cast(), libc::O_RDWR | libc::O_CLOEXEC)
            },
            Err(_) => -1,
        };
        self.close();
        self.descriptor.store(own, Relaxed);
    }

    /// Another descriptor of the file.
    pub(super) fn file(&self) -> io::Result<File> {
        let descriptor = self.descriptor.load(Relaxed);
        if descriptor < 0 {
            return Err(io::ErrorKind::NotFound.into());
        }
        // SAFETY: our own descriptor, open until this type closes it.
        let descriptor = unsafe { BorrowedFd::borrow_raw(descriptor) };
        descriptor.try_clone_to_owned().map(File::from)
    }

    /// Moves the file out, if it is open.
    pub(super) fn take(&self) -> Option<LockFile> {
        let descriptor = self.descriptor.swap(-1, Relaxed);
        (descriptor >= 0)
            .then_some(LockFile { descriptor: AtomicI32::new(descriptor), base: self.base })
    }
}

impl Drop for LockFile {
    fn drop(&mut self) {
        self.close();
    }
}

/// A path on the stack: fork handlers must not allocate.
#[derive(Default)]
struct Path {
    text: [u8; 32],
    len: usize,
}

impl Write for Path {
    fn write_str(&mut self, piece: &str) -> std::fmt::Result {
        let room = &mut self.text[self.len..31];
        if piece.len() > room.len() {
            return Err(std::fmt::Error);
        }
        room[..piece.len()].copy_from_slice(piece.as_bytes());
        self.len += piece.len();
        Ok(())
    }
}
