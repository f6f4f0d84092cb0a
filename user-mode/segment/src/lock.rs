//! Which process has which client: the process locks the client's byte of a file.
//!
//! Open file description locks (fcntl(2), F_OFD_SETLK), one per client, exclude other processes, and end when
//! the last descriptor is closed. A forked child shares the description, so a child that kept the descriptor
//! would hold its parent's clients.
//!
//! A program may close descriptors that it does not know, as daemons do, and may open files of its own under
//! the same numbers. So each use first asks the kernel whether the descriptor is still a descriptor of the
//! lock file. If the descriptor is another file's, the locks are gone, and this module forgets the
//! descriptor, because the descriptor now belongs to the program.
//!
//! This module allocates nothing, because signal handlers lock clients, and fork handlers open files again.
//!
//! The code is unsafe because this module calls fcntl(2) and uses raw descriptors.
#![allow(unsafe_code)]

use hypertrace_abi::layout::module;
use rustix::fs::{Mode, OFlags};
use rustix::io::{FdFlags, fcntl_dupfd_cloexec, fcntl_setfd};
use std::ffi::CStr;
use std::fs::File;
use std::io::{self, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicI32, Ordering::Relaxed};

/// A file with a byte for each client. The file's descriptor is closed on exec.
#[derive(Debug)]
pub struct LockFile {
    /// The file's descriptor; -1 after this type or the program has closed it.
    descriptor: AtomicI32,
    /// Identity of the file that this value was made of.
    inode: Option<Inode>,
    /// The byte of client 0.
    base: u64,
    /// True if the file is `/dev/hypertrace`, whose clients are leased and not locked.
    is_module: bool,
    /// Lowest number that the descriptor should have, if the system has such a number left.
    lowest: RawFd,
}

/// Device and inode, which identify a file as long as a process keeps the file open.
type Inode = (libc::dev_t, libc::ino_t);

impl LockFile {
    /// Lowest number of a descriptor that is not a standard stream's.
    pub const ANY: RawFd = 3;

    /// Makes a `LockFile` of a file. `base` is the byte of client 0. `lowest` is the lowest number that the
    /// file's descriptor should have.
    pub fn new(file: impl Into<OwnedFd>, base: u64, lowest: RawFd) -> LockFile {
        let descriptor = raise(file.into(), lowest).into_raw_fd();
        let inode = inode_of(descriptor);
        LockFile { descriptor: AtomicI32::new(descriptor), inode, base, is_module: false, lowest }
    }

    /// Makes a `LockFile` of `/dev/hypertrace`. For this file, a lease of a client takes the place of a
    /// locked byte.
    pub fn of_module(file: impl Into<OwnedFd>) -> LockFile {
        let mut lock = LockFile::new(file, 0, LockFile::ANY);
        lock.is_module = true;
        lock
    }

    /// Checks whether the file takes locks at all. The check locks `byte`, which belongs to no client.
    ///
    /// # Errors
    /// If the system refuses.
    pub fn check(&self, byte: u32) -> io::Result<()> {
        if !self.is_module && self.try_lock(byte)? {
            self.unlock(byte);
        }
        Ok(())
    }

    /// Locks a client's byte. Returns `false` if another process holds the lock, or the system
    /// refuses.
    pub fn lock(&self, client: u32) -> bool {
        self.try_lock(client).unwrap_or(false)
    }

    /// Locks a client's byte. Returns `false` if another process holds the lock.
    ///
    /// # Errors
    /// If the system refuses.
    pub fn try_lock(&self, client: u32) -> io::Result<bool> {
        match self.set(client, libc::F_WRLCK) {
            Ok(()) => Ok(true),
            Err(why) => match why.raw_os_error() {
                Some(libc::EAGAIN | libc::EACCES | libc::EBUSY) => Ok(false),
                _ => Err(why),
            },
        }
    }

    /// Unlocks a client's byte.
    pub fn unlock(&self, client: u32) {
        // If the file is gone, the lock is gone, too.
        let _ = self.set(client, libc::F_UNLCK);
    }

    fn set(&self, client: u32, kind: libc::c_int) -> io::Result<()> {
        let lock = libc::flock {
            l_type: kind as libc::c_short,
            l_whence: libc::SEEK_SET as libc::c_short,
            l_start: (self.base + u64::from(client)) as libc::off_t,
            l_len: 1,
            // For a lock of an open file description, the kernel requires 0 here.
            l_pid: 0,
        };
        let descriptor = self.borrow()?;
        if self.is_module {
            return self.lease(descriptor, client, kind != libc::F_UNLCK);
        }
        // SAFETY: fcntl reads `lock`, and no other memory of this program.
        match unsafe { libc::fcntl(descriptor.as_raw_fd(), libc::F_OFD_SETLK, &lock) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    fn lease(&self, file: BorrowedFd<'_>, mut client: u32, begins: bool) -> io::Result<()> {
        let call = if begins { module::LEASE } else { module::RELEASE };
        // SAFETY: the kernel module reads `client`, and stores the same number back.
        match unsafe { libc::ioctl(file.as_raw_fd(), call.into(), &mut client) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Returns whether the file is still open. All locks of a closed file are gone.
    pub fn is_open(&self) -> bool {
        self.borrow().is_ok()
    }

    /// Returns true if this is the kernel module's file, and its device is gone.
    pub fn is_device_gone(&self) -> bool {
        // Asks for a client that no device has, so that nothing is leased.
        let refused = || self.lease(self.borrow()?, u32::MAX - 1, true);
        self.is_module && refused().is_err_and(|why| why.raw_os_error() == Some(libc::ENODEV))
    }

    /// Returns whether `other` is or was the same file.
    pub fn is_same_file(&self, other: &LockFile) -> bool {
        self.inode.is_some() && self.inode == other.inode
    }

    /// Closes the file. In a forked child, the call lets go of the parent's locks.
    pub fn close(&self) {
        if let Some(descriptor) = self.take() {
            // SAFETY: this type owns the descriptor, and has just forgotten it.
            drop(unsafe { OwnedFd::from_raw_fd(descriptor) });
        }
    }

    /// Opens the same file again. The new description has no locks. In a forked child, the call lets go of
    /// the parent's locks. If there is no /proc, then the file is closed.
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
    /// If the file is closed, or there are no more descriptors.
    pub fn file(&self) -> io::Result<File> {
        Ok(self.borrow()?.try_clone_to_owned()?.into())
    }

    /// Returns the descriptor if the file is still open; otherwise forgets the descriptor.
    fn borrow(&self) -> io::Result<BorrowedFd<'_>> {
        let descriptor = self.descriptor.load(Relaxed);
        if descriptor >= 0 && self.may_have(descriptor) {
            // SAFETY: the descriptor belongs to this type, and is open until this type closes the descriptor.
            // (A program that closes the descriptor just now causes an error here, as with any other
            // library.)
            return Ok(unsafe { BorrowedFd::borrow_raw(descriptor) });
        }
        let _ = self.descriptor.compare_exchange(descriptor, -1, Relaxed, Relaxed);
        Err(io::ErrorKind::NotFound.into())
    }

    /// Returns true if the descriptor is the file's, or if the system refuses to tell, as under a seccomp
    /// filter.
    fn may_have(&self, descriptor: RawFd) -> bool {
        match inode_of(descriptor) {
            Some(inode) => Some(inode) == self.inode,
            None => io::Error::last_os_error().raw_os_error() != Some(libc::EBADF),
        }
    }

    /// Takes the descriptor, if the file is still open.
    fn take(&self) -> Option<RawFd> {
        self.borrow().ok()?;
        Some(self.descriptor.swap(-1, Relaxed)).filter(|descriptor| *descriptor >= 0)
    }

    /// Moves the file to a new `LockFile`, if the file is open.
    pub fn move_out(&self) -> Option<LockFile> {
        let descriptor = AtomicI32::new(self.take()?);
        Some(LockFile { descriptor, ..*self })
    }
}

impl Drop for LockFile {
    fn drop(&mut self) {
        self.close();
    }
}

/// Returns the identity of the file that this descriptor has open. Returns `None` if the descriptor is not
/// open.
fn inode_of(descriptor: RawFd) -> Option<Inode> {
    let mut stat = MaybeUninit::<libc::stat>::uninit();
    // SAFETY: fstat takes any number, and fills `stat` if it returns 0.
    unsafe {
        let found = libc::fstat(descriptor, stat.as_mut_ptr()) == 0;
        found.then(|| stat.assume_init()).map(|stat| (stat.st_dev, stat.st_ino))
    }
}

/// Opens a file once more with a new description, for loads and stores.
pub(crate) fn own_description(file: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let mut path = [0; 32];
    write!(&mut path[..31], "/proc/self/fd/{}", file.as_raw_fd())?;
    let path = CStr::from_bytes_until_nul(&path).unwrap_or_default();
    Ok(rustix::fs::open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?)
}

/// Gives the file a descriptor that is closed on exec and whose number is at least `lowest`, if the system
/// has such a number left.
fn raise(file: OwnedFd, lowest: RawFd) -> OwnedFd {
    fcntl_dupfd_cloexec(&file, lowest).unwrap_or_else(|_| {
        // This call fails only for a closed descriptor. The flag is set here, because a descriptor that has
        // come over a socket may lack the flag.
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

    /// The program closes the descriptor, and then opens a file of its own under the same number.
    #[test]
    fn a_descriptor_that_is_another_files_now_is_not_touched() {
        let (file, programs) = (tempfile::tempfile().unwrap(), tempfile::tempfile().unwrap());
        let other = lock_file(&programs);
        let uses: [fn(&LockFile); 6] = [
            |lost| assert!(!lost.lock(1) && lost.check(1).is_err()),
            |lost| lost.unlock(0),
            |lost| lost.close(),
            |lost| lost.reopen(),
            |lost| assert!(lost.move_out().is_none()),
            |lost| assert!(lost.file().is_err() && !lost.is_open()),
        ];
        for use_it in uses {
            let lost = lock_file(&file);
            assert!(lost.lock(0) && lost.is_open());
            let number = lost.descriptor.load(Relaxed);
            // The program opens the file again, under the number that `lost` remembers.
            let opened = own_description(programs.as_fd()).unwrap();
            // SAFETY: dup2 takes numbers, and replaces no descriptor that `lost` still uses.
            assert_eq!(unsafe { libc::dup2(opened.as_raw_fd(), number) }, number);
            drop(opened);
            let (descriptor, inode) = (AtomicI32::new(number), inode_of(number));
            let (base, is_module) = (0, false);
            let own = LockFile { descriptor, inode, base, is_module, lowest: LockFile::ANY };
            assert!(own.lock(0));

            use_it(&lost);
            drop(lost);

            assert!(!other.lock(0), "the program's lock is there");
            assert!(other.lock(1), "and no other");
            other.unlock(1);
            own.close();
            assert!(other.lock(0));
            other.unlock(0);
        }
    }
}
