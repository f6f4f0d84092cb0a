//! Which process has which client: one byte each of a file, locked.
//!
//! Open file description locks (fcntl(2), F_OFD_SETLK): one per client, held
//! against other processes, gone with the last descriptor. A fork shares the
//! description, so a child that kept it would hold its parent's clients.
//!
//! Nothing here allocates: clients are locked in signal handlers, and files
//! opened again in fork handlers.
//!
//! Unsafe, because of fcntl and raw descriptors.
#![allow(unsafe_code)]

use rustix::fs::{Mode, OFlags};
use rustix::io::{FdFlags, fcntl_dupfd_cloexec, fcntl_setfd};
use std::ffi::CStr;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{BorrowedFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicI32, Ordering::Relaxed};

/// A file whose bytes are clients. Its descriptor is closed on exec.
#[derive(Debug)]
pub struct LockFile {
    /// -1: closed.
    descriptor: AtomicI32,
    /// The byte of client 0.
    base: u64,
    /// The descriptor's number is no lower, if there is such a one.
    lowest: RawFd,
}

impl LockFile {
    /// The lowest number of a descriptor that is no standard stream's.
    pub const ANY: RawFd = 3;

    /// Moves the file in. `base` is the byte of client 0, `lowest` the lowest
    /// number that its descriptor is to have.
    pub fn new(file: impl Into<OwnedFd>, base: u64, lowest: RawFd) -> LockFile {
        let descriptor = raise(file.into(), lowest).into_raw_fd();
        LockFile { descriptor: AtomicI32::new(descriptor), base, lowest }
    }

    /// Checks whether the file takes locks at all, by a byte that is no client's.
    ///
    /// # Errors
    /// If the system refuses.
    pub fn check(&self, byte: u32) -> io::Result<()> {
        let locked = self.try_lock(byte)?;
        if locked {
            self.unlock(byte);
        }
        Ok(())
    }

    /// Locks a client's byte. `false` if another process has it, or the system refuses.
    pub fn lock(&self, client: u32) -> bool {
        self.try_lock(client).unwrap_or(false)
    }

    /// Locks a client's byte. `false` if another process has it.
    ///
    /// # Errors
    /// If the system refuses.
    pub fn try_lock(&self, client: u32) -> io::Result<bool> {
        match self.set(client, libc::F_WRLCK) {
            Ok(()) => Ok(true),
            Err(why) if matches!(why.raw_os_error(), Some(libc::EAGAIN | libc::EACCES)) => {
                Ok(false)
            }
            Err(why) => Err(why),
        }
    }

    /// Unlocks a client's byte.
    pub fn unlock(&self, client: u32) {
        // The lock is gone also where the file is.
        let _ = self.set(client, libc::F_UNLCK);
    }

    fn set(&self, client: u32, kind: libc::c_int) -> io::Result<()> {
        let lock = libc::flock {
            l_type: kind as libc::c_short,
            l_whence: libc::SEEK_SET as libc::c_short,
            l_start: (self.base + u64::from(client)) as libc::off_t,
            l_len: 1,
            // Must be 0 for this kind of lock.
            l_pid: 0,
        };
        // SAFETY: fcntl reads `lock`, and no other memory of this program.
        match unsafe { libc::fcntl(self.descriptor.load(Relaxed), libc::F_OFD_SETLK, &lock) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Closes the file. In a forked child: lets go of the parent's locks.
    pub fn close(&self) {
        let descriptor = self.descriptor.swap(-1, Relaxed);
        if descriptor >= 0 {
            // SAFETY: this type owns it, and has just forgotten it.
            drop(unsafe { OwnedFd::from_raw_fd(descriptor) });
        }
    }

    /// Opens the same file again, by a description of its own that holds no lock.
    /// In a forked child: lets go of the parent's locks. Without a /proc the file
    /// is closed.
    pub fn reopen(&self) {
        let own = self.borrow().and_then(own_description);
        self.close();
        if let Ok(own) = own {
            self.descriptor.store(raise(own, self.lowest).into_raw_fd(), Relaxed);
        }
    }

    /// Returns another descriptor of the file.
    ///
    /// # Errors
    /// If it is closed, or there are no more descriptors.
    pub fn file(&self) -> io::Result<File> {
        Ok(self.borrow()?.try_clone_to_owned()?.into())
    }

    fn borrow(&self) -> io::Result<BorrowedFd<'_>> {
        match self.descriptor.load(Relaxed) {
            ..0 => Err(io::ErrorKind::NotFound.into()),
            // SAFETY: this type's own descriptor, open until this type closes it.
            descriptor => Ok(unsafe { BorrowedFd::borrow_raw(descriptor) }),
        }
    }

    /// Moves the file out, if it is open.
    pub fn move_out(&self) -> Option<LockFile> {
        let descriptor = self.descriptor.swap(-1, Relaxed);
        (descriptor >= 0).then_some(LockFile { descriptor: AtomicI32::new(descriptor), ..*self })
    }
}

impl Drop for LockFile {
    fn drop(&mut self) {
        self.close();
    }
}

/// Opens a file once more, for loads and stores: a description of its own.
pub(crate) fn own_description(file: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    use std::os::fd::AsRawFd;
    let mut path = [0; 32];
    write!(&mut path[..31], "/proc/self/fd/{}", file.as_raw_fd())?;
    let path = CStr::from_bytes_until_nul(&path).unwrap_or_default();
    Ok(rustix::fs::open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?)
}

/// Gives the file a descriptor that is no lower and closed on exec, if there is one.
fn raise(file: OwnedFd, lowest: RawFd) -> OwnedFd {
    fcntl_dupfd_cloexec(&file, lowest).unwrap_or_else(|_| {
        // It fails for a closed descriptor only, and this one may have come over a socket.
        let _ = fcntl_setfd(&file, FdFlags::CLOEXEC);
        file
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    fn lock_file(file: &File) -> LockFile {
        LockFile::new(own_description(file.as_fd()).unwrap(), 0, LockFile::ANY)
    }

    #[test]
    fn a_byte_is_one_descriptions_until_it_is_unlocked_or_opened_again() {
        let file = tempfile::tempfile().unwrap();
        let (one, other) = (lock_file(&file), lock_file(&file));
        assert!(one.lock(3) && one.lock(3));
        assert!(!other.lock(3) && other.lock(4));
        one.unlock(3);
        assert!(other.lock(3));
        other.reopen();
        assert!(one.lock(3) && one.lock(4));
        assert!(other.check(3).is_ok());
    }

    #[test]
    fn a_closed_file_locks_no_byte_and_a_moved_one_keeps_its_locks() {
        let file = tempfile::tempfile().unwrap();
        let (one, other) = (lock_file(&file), lock_file(&file));
        assert!(one.lock(1));
        let moved = one.move_out().unwrap();
        assert!(!other.lock(1) && moved.lock(1));
        assert!(!one.lock(2) && one.check(2).is_err() && one.move_out().is_none());
        assert!(one.file().is_err());
        moved.close();
        assert!(other.lock(1));
    }
}
