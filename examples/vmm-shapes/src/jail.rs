//! The device in a process of its own that may open no file, as crosvm jails each of its devices.
//!
//! The VMM makes the device, and then forks. [`JailedDevice`] stays on the bus of the VMM's process, and
//! passes each access over a socket. The child has the device and its threads. If the child may open no file,
//! the child sends the session's journal through another socket to a process that may open files.
#![allow(unsafe_code)] // fork(2), close(2), waitpid(2) and mallopt(3): minijail's part in crosvm

use std::collections::BTreeMap;
use std::error::Error;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixStream;
use std::sync::{Mutex, PoisonError};

use hypertrace_vmm::{
    Destination, Device, DeviceConfig, Drain, Hypertrace, Region, SessionConfig, syscalls,
};
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter, TargetArch, apply_filter};

/// System calls of the child's own code, which takes accesses, answers the VMM, and ends the process.
const PROXY: &[i64] = &[libc::SYS_recvfrom, libc::SYS_sendto, libc::SYS_exit_group];

/// One more than the greatest descriptor that the VMM can have.
const MAX_FD: RawFd = 4096;

/// A guest's access, as a message on the socket: region, whether the access is a store, number of bytes,
/// offset, bytes.
struct Access(u8, bool, u8, u64, [u8; 8]);

impl Access {
    fn send(&self, mut socket: &UnixStream) -> io::Result<()> {
        let Access(region, is_store, len, offset, data) = self;
        let mut bytes = [0; 19];
        bytes[..3].copy_from_slice(&[*region, (*is_store).into(), *len]);
        bytes[3..11].copy_from_slice(&offset.to_le_bytes());
        bytes[11..].copy_from_slice(data);
        socket.write_all(&bytes)
    }

    fn receive(mut socket: &UnixStream) -> io::Result<Access> {
        let mut bytes = [0; 19];
        socket.read_exact(&mut bytes)?;
        let [offset, data] = [3, 11].map(|at| bytes[at..at + 8].try_into().unwrap_or_default());
        Ok(Access(bytes[0], bytes[1] != 0, bytes[2], u64::from_le_bytes(offset), data))
    }
}

/// A device in a child process, as the VMM's process sees it.
pub struct JailedDevice {
    socket: Mutex<UnixStream>,
    child: libc::pid_t,
    /// Memory of the device, for the guest.
    _device: Device,
}

impl JailedDevice {
    /// Makes a device that records to this place, and moves the device to a child process. The child keeps
    /// only the device's descriptors and the socket.
    ///
    /// # Errors
    /// If the device cannot be made, or the kernel refuses.
    pub fn start(to: Destination, vcpus: u32) -> Result<JailedDevice, Box<dyn Error>> {
        let may_open = !matches!(to, Destination::Journal(..));
        let session = SessionConfig::new("").with(|config| config.destination = to);
        let device = DeviceConfig::new(vcpus).with(|config| config.drain = Drain::Later);
        let hypertrace = Hypertrace::start(session, device)?;
        let (socket, childs) = UnixStream::pair()?;
        let mut keep = hypertrace.descriptors();
        keep.extend([0, 1, 2, childs.as_raw_fd()]);
        // SAFETY: glibc's fork leaves the locks of the C library free, and the child takes no other lock of
        // this process.
        match unsafe { libc::fork() } {
            -1 => Err(io::Error::last_os_error().into()),
            0 => {
                let ran = run(hypertrace, &childs, &keep, may_open);
                // SAFETY: a plain call, which does not return.
                unsafe { libc::_exit(ran.is_err().into()) }
            }
            child => {
                let device = hypertrace.leave();
                Ok(JailedDevice { socket: Mutex::new(socket), child, _device: device })
            }
        }
    }

    /// Performs a guest's load, or its store, of up to 8 bytes.
    ///
    /// # Errors
    /// If the child has ended.
    pub fn access(
        &self,
        region: Region,
        offset: u64,
        data: &mut [u8],
        is_store: bool,
    ) -> io::Result<()> {
        let mut bytes = [0; 8];
        bytes[..data.len()].copy_from_slice(data);
        let socket = self.socket.lock().unwrap_or_else(PoisonError::into_inner);
        Access(region as u8, is_store, data.len() as u8, offset, bytes).send(&socket)?;
        let Access(.., bytes) = Access::receive(&socket)?;
        data.copy_from_slice(&bytes[..data.len()]);
        Ok(())
    }

    /// Ends the device and its session. Returns the child's status in the form of wait(2).
    pub fn finish(self) -> i32 {
        drop(self.socket);
        let mut status = 0;
        // SAFETY: the status is on this stack, and the child is waited for once.
        unsafe { libc::waitpid(self.child, &raw mut status, 0) };
        status
    }
}

/// Code of the child, which first gives up its rights, and then serves the device until the VMM's end of the
/// socket is closed.
fn run(
    mut hypertrace: Hypertrace,
    socket: &UnixStream,
    keep: &[RawFd],
    may_open: bool,
) -> Result<(), Box<dyn Error>> {
    enter_jail(keep, may_open)?;
    hypertrace.start_threads(|| Ok(()))?;
    hypertrace.session().attach("vcpus");
    while let Ok(Access(region, is_store, len, offset, mut data)) = Access::receive(socket) {
        let region = *Region::ALL.get(usize::from(region)).ok_or("no region")?;
        let bytes = data.get_mut(..usize::from(len)).ok_or("too long")?;
        match is_store {
            true => hypertrace.chip().write(region, offset, bytes),
            false => hypertrace.chip().read(region, offset, bytes),
        }
        Access(0, is_store, len, offset, data).send(socket)?;
    }
    hypertrace.finish()?;
    Ok(())
}

/// Closes all descriptors except these. From then on, the kernel ends this process at any system call that is
/// not in the lists below. If `may_open` is true, the lists allow the system calls by which the drain thread
/// makes files in a directory.
fn enter_jail(keep: &[RawFd], may_open: bool) -> Result<(), Box<dyn Error>> {
    for fd in (0..MAX_FD).filter(|fd| !keep.contains(fd)) {
        // SAFETY: the child uses no closed descriptor, because all descriptors besides these belong to the
        // VMM.
        unsafe { libc::close(fd) };
    }
    // SAFETY: mallopt only sets a number that the allocator reads. Without this setting, the allocator would
    // open a file.
    unsafe { libc::mallopt(libc::M_TRIM_THRESHOLD, libc::c_int::MAX) };
    let drain = if may_open { syscalls::DRAIN } else { syscalls::DRAIN_JOURNAL };
    let lists = [
        syscalls::START,
        syscalls::ATTACH,
        drain,
        syscalls::RESET_SAVE_FINISH,
        syscalls::RUNTIME,
        PROXY,
    ];
    let calls = lists.into_iter().flatten().map(|call| (*call, vec![]));
    let filter = SeccompFilter::new(
        calls.collect::<BTreeMap<_, _>>(),
        SeccompAction::KillProcess,
        SeccompAction::Allow,
        TargetArch::try_from(std::env::consts::ARCH)?,
    )?;
    apply_filter(&BpfProgram::try_from(filter)?)?;
    Ok(())
}
