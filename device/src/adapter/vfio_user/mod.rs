// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The device in a process of its own, as a vfio-user server for one VMM at a time.
//!
//! QEMU (`-device vfio-user-pci`) and Cloud Hypervisor (`--user-device`) are clients. The client maps BARs 1
//! and 4. Accesses to the other BARs and to config space are messages, which the serving thread handles in
//! their order. The device performs no DMA and has no interrupts: guest memory that a client offers is
//! accepted but not used, and every descriptor that the client sends is closed at once.

mod server;
mod wire;

pub use server::{Notice, Server};

use crate::pci::PciFunction;
use hypertrace_abi::layout::Region;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, IoSlice, IoSliceMut};
use rustix::net::{
    RecvAncillaryBuffer, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, recvmsg,
    sendmsg,
};
use std::fs::File;
use std::io::{self, ErrorKind};
use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};
use wire::{
    Access, DeviceInfo, Header, IrqInfo, MAX_BYTES, MAX_DATA, Message, RegionInfo, Version, command,
};
use zerocopy::IntoBytes;

/// Number of regions of a PCI device in VFIO: six BARs, ROM, config space, VGA.
const REGIONS: u32 = 9;
const CONFIG_SPACE: u32 = 7;
/// Size of config space in bytes, without PCI Express.
const CONFIG_BYTES: u64 = 256;
/// Number of kinds of interrupts in VFIO: INTx, MSI, MSI-X, error, request. The device has no interrupts.
const IRQS: u32 = 5;

const DEVICE_RESETS: u32 = 1;
const DEVICE_IS_PCI: u32 = 2;
const REGION_READ: u32 = 1;
const REGION_WRITE: u32 = 2;
const REGION_MMAP: u32 = 4;

/// Capabilities of this server as JSON, with the terminating NUL.
const CAPABILITIES: &str = "{\"capabilities\":{\"max_msg_fds\":16,\"max_data_xfer_size\":4096,\"migration\":{\"pgsize\":4096}}}\0";

/// Maximum number of descriptors that the server receives with one message, and closes. The kernel closes
/// further descriptors.
const MAX_FDS: usize = 16;

/// Minimum time between two resets, so that a client that resets all the time does not fill the session with
/// generations.
const RESET: Duration = Duration::from_millis(100);

/// Maximum time for three waits: for a client's first message, for the rest of a message that has begun, and
/// for a client to take a reply. Between messages a client may be silent for any time, like a VM whose guest
/// makes no points.
pub const PATIENCE: Duration = Duration::from_secs(5);

/// How a connection ended.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum End {
    /// The client has closed the connection.
    Closed,
    /// The client sent bytes that are not a message, or did not complete a message or take a reply in
    /// [time](PATIENCE). The text says what is wrong.
    Protocol(String),
}

impl End {
    /// Returns the [`End`] for a client that is too slow. `what` names what the server waited for.
    fn late(what: &str) -> End {
        End::Protocol(format!("{what} after {} s", PATIENCE.as_secs()))
    }
}

/// Serves the function to the client on this connection until one side ends the connection. The connection
/// must be blocking. Changes the connection's timeouts.
///
/// # Errors
/// If the connection fails for any other reason.
pub fn serve(function: &PciFunction, stream: &UnixStream) -> io::Result<End> {
    serve_counted(function, stream, &AtomicU64::new(0))
}

/// Serves the function as [`serve`] does, and counts the client's messages. `messages` is incremented before
/// the server replies to a message.
///
/// # Errors
/// As [`serve`].
pub fn serve_counted(
    function: &PciFunction,
    stream: &UnixStream,
    messages: &AtomicU64,
) -> io::Result<End> {
    let mut connection = Connection {
        function,
        stream,
        messages,
        received: Vec::with_capacity(2 * MAX_BYTES),
        reply: Vec::with_capacity(MAX_BYTES),
        has_version: false,
        is_used: false,
        reset: None,
        begun: None,
        is_limited: false,
    };
    connection.run()
}

struct Connection<'c> {
    function: &'c PciFunction,
    stream: &'c UnixStream,
    messages: &'c AtomicU64,
    /// Received bytes that are not handled yet.
    received: Vec<u8>,
    reply: Vec<u8>,
    has_version: bool,
    /// Whether the client has stored to a BAR since the last reset.
    is_used: bool,
    reset: Option<Instant>,
    /// Beginning of the wait for the first message, or for the rest of a message.
    begun: Option<Instant>,
    /// Whether the connection has a read timeout now.
    is_limited: bool,
}

/// What the server does after a command, in addition to its reply.
enum Then<'f> {
    Nothing,
    /// The reply carries this file's descriptor.
    Send(&'f Arc<File>),
    End(End),
}

impl Connection<'_> {
    fn run(&mut self) -> io::Result<End> {
        self.stream.set_write_timeout(Some(PATIENCE))?;
        let mut bytes = vec![0; MAX_BYTES];
        loop {
            self.limit_wait()?;
            let n = match self.receive(&mut bytes) {
                Ok(0) => return Ok(End::Closed),
                Ok(n) => n,
                Err(why) if why.kind() == ErrorKind::WouldBlock && self.is_limited => {
                    return Ok(End::late("no whole message"));
                }
                Err(why) => return Err(why),
            };
            self.received.extend_from_slice(&bytes[..n]);
            if let Some(end) = self.handle()? {
                return Ok(end);
            }
        }
    }

    /// Sets a limit for the next wait. Only the wait for the first message and the wait for the rest of a
    /// message have a limit. If two waits between messages follow each other, this function makes no system
    /// call.
    fn limit_wait(&mut self) -> io::Result<()> {
        let is_between = self.has_version && self.received.is_empty();
        if is_between && !self.is_limited {
            return Ok(());
        }
        self.is_limited = !is_between;
        let left = self.is_limited.then(|| {
            let begun = *self.begun.get_or_insert_with(Instant::now);
            // At least 1 ms, because a timeout of zero is an error.
            PATIENCE.saturating_sub(begun.elapsed()).max(Duration::from_millis(1))
        });
        self.stream.set_read_timeout(left)
    }

    /// Receives at least a byte, and closes all descriptors. Returns the number of bytes, 0 at the end.
    fn receive(&self, bytes: &mut [u8]) -> io::Result<usize> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
        loop {
            let mut control = RecvAncillaryBuffer::new(&mut space);
            let mut parts = [IoSliceMut::new(bytes)];
            match recvmsg(self.stream, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC) {
                // The drop of `control` closes the descriptors in it.
                Ok(received) => return Ok(received.bytes),
                Err(Errno::INTR) => {}
                Err(Errno::CONNRESET) => return Ok(0),
                Err(why) => return Err(why.into()),
            }
        }
    }

    /// Handles all messages that have been received completely.
    fn handle(&mut self) -> io::Result<Option<End>> {
        let received = std::mem::take(&mut self.received);
        let mut rest = &received[..];
        loop {
            match Message::first(rest) {
                Ok(None) => break,
                Ok(Some(message)) => {
                    rest = &rest[message.header.size as usize..];
                    self.messages.fetch_add(1, Relaxed);
                    self.reply.clear();
                    let then = self.command(&message);
                    let file = match then {
                        Then::Nothing => None,
                        Then::Send(file) => Some(Arc::clone(file)),
                        Then::End(end) => return Ok(Some(end)),
                    };
                    self.begun = None;
                    if message.wants_reply() {
                        match self.send(file.as_deref()) {
                            Ok(()) => {}
                            Err(why) if why.kind() == ErrorKind::WouldBlock => {
                                return Ok(Some(End::late("a reply was not taken")));
                            }
                            Err(why) => return Err(why),
                        }
                    }
                }
                Err(broken) => {
                    return Ok(Some(End::Protocol(format!("a message with wrong {broken:?}"))));
                }
            }
        }
        let left = rest.len();
        let handled = received.len() - left;
        self.received = received;
        self.received.drain(..handled);
        Ok(None)
    }

    /// Sends the reply.
    fn send(&self, file: Option<&File>) -> io::Result<()> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let fds = file.map(|file| [file.as_fd()]);
        if let Some(fds) = &fds {
            control.push(SendAncillaryMessage::ScmRights(fds));
        }
        let mut left = &self.reply[..];
        while !left.is_empty() {
            match sendmsg(self.stream, &[IoSlice::new(left)], &mut control, SendFlags::NOSIGNAL) {
                Ok(n) => left = &left[n..],
                Err(Errno::INTR) => continue,
                Err(why) => return Err(why.into()),
            }
            // Only the first byte carries descriptors.
            control.clear();
        }
        Ok(())
    }

    /// Handles a command and makes its reply.
    fn command(&mut self, message: &Message<'_>) -> Then<'_> {
        let Header { command, .. } = message.header;
        if !self.has_version && command != command::VERSION {
            return Then::End(End::Protocol(format!("command {command} before VERSION")));
        }
        match command {
            command::VERSION => return self.version(message),
            // These commands have no effect, because the device never accesses guest memory.
            command::DMA_MAP => message.reply(&[], &mut self.reply),
            command::DMA_UNMAP => message.reply(&[message.body], &mut self.reply),
            command::DEVICE_GET_INFO => {
                let argsz = size_of::<DeviceInfo>() as u32;
                let flags = DEVICE_RESETS | DEVICE_IS_PCI;
                let info = DeviceInfo { argsz, flags, regions: REGIONS, irqs: IRQS };
                message.reply(&[info.as_bytes()], &mut self.reply);
            }
            command::DEVICE_GET_REGION_INFO => return self.region_info(message),
            command::DEVICE_GET_IRQ_INFO => match message.body::<IrqInfo>() {
                Some((IrqInfo { index, .. }, _)) if index < IRQS => {
                    let argsz = size_of::<IrqInfo>() as u32;
                    let info = IrqInfo { argsz, flags: 0, index, count: 0 };
                    message.reply(&[info.as_bytes()], &mut self.reply);
                }
                _ => self.refuse(message),
            },
            // The command is accepted, because QEMU turns INTx off although the device has no interrupts.
            command::DEVICE_SET_IRQS => message.reply(&[], &mut self.reply),
            command::REGION_READ => self.read(message),
            command::REGION_WRITE => self.write(message),
            command::DEVICE_RESET => {
                if !self.reset() {
                    return Then::End(End::Closed);
                }
                message.reply(&[], &mut self.reply);
            }
            _ => self.refuse(message),
        }
        Then::Nothing
    }

    fn refuse(&mut self, message: &Message<'_>) {
        self.refuse_with(message, &[]);
    }

    /// Refuses a command. `more` follows the command's body in the reply.
    fn refuse_with(&mut self, message: &Message<'_>, more: &[u8]) {
        message.refuse(Errno::INVAL.raw_os_error(), more, &mut self.reply);
    }

    fn version(&mut self, message: &Message<'_>) -> Then<'_> {
        let Some((proposed, _)) = message.body::<Version>() else {
            return Then::End(End::Protocol("VERSION without a version".into()));
        };
        let own = wire::VERSION;
        if proposed.major != own.major {
            let Version { major, minor } = proposed;
            return Then::End(End::Protocol(format!("version {major}.{minor}, not 0.x")));
        }
        self.has_version = true;
        let version = Version { minor: own.minor.min(proposed.minor), ..own };
        message.reply(&[version.as_bytes(), CAPABILITIES.as_bytes()], &mut self.reply);
        Then::Nothing
    }

    fn region_info(&mut self, message: &Message<'_>) -> Then<'_> {
        let index = message.body::<RegionInfo>().map(|(info, _)| info.index);
        let Some(index) = index.filter(|index| *index < REGIONS) else {
            self.refuse(message);
            return Then::Nothing;
        };
        let chip = self.function.chip();
        let argsz = size_of::<RegionInfo>() as u32;
        let mut info = RegionInfo { argsz, flags: 0, index, cap_offset: 0, size: 0, offset: 0 };
        let mut file = None;
        if index == CONFIG_SPACE {
            (info.size, info.flags) = (CONFIG_BYTES, REGION_READ | REGION_WRITE);
        } else if let Some(region) = bar(index) {
            (info.size, info.flags) =
                (chip.geometry().bar_size(region), REGION_READ | REGION_WRITE);
            // The client must not map a read-only region, because the guest could then store to this region.
            let mapping = chip.mapping(region, 0).filter(|mapping| !mapping.is_read_only);
            if let Some(mapping) = mapping {
                info.flags |= REGION_MMAP;
                info.offset = mapping.file_offset;
                file = Some(mapping.file);
            }
        }
        message.reply(&[info.as_bytes()], &mut self.reply);
        file.map_or(Then::Nothing, Then::Send)
    }

    fn read(&mut self, message: &Message<'_>) {
        let Some((access, _)) = message.body::<Access>() else { return self.refuse(message) };
        let count = access.count as usize;
        let mut data = [0; MAX_DATA];
        let data = &mut data[..count.min(MAX_DATA)];
        match (access.region, bar(access.region)) {
            _ if count > MAX_DATA => return self.refuse_with(message, data),
            (CONFIG_SPACE, _) => self.function.config_read(access.offset, data),
            (_, Some(region)) => self.function.chip().read(region, access.offset, data),
            _ => return self.refuse_with(message, data),
        }
        message.reply(&[access.as_bytes(), data], &mut self.reply);
    }

    fn write(&mut self, message: &Message<'_>) {
        let Some((access, data)) = message.body::<Access>() else { return self.refuse(message) };
        if data.len() != access.count as usize || data.len() > MAX_DATA {
            return self.refuse(message);
        }
        match (access.region, bar(access.region)) {
            // A change of a BAR's address is ignored, because the client decodes the BARs.
            (CONFIG_SPACE, _) => self.function.config_write(access.offset, data, |_| ()),
            (_, Some(region)) => {
                self.is_used = true;
                self.function.chip().write(region, access.offset, data);
            }
            _ => return self.refuse(message),
        }
        message.reply(&[access.as_bytes()], &mut self.reply);
    }

    /// Resets the device, unless no guest has used the device since the last reset. Returns false if the
    /// client has gone. No message of such a client is handled, so the thread need not wait for the time
    /// between two resets.
    fn reset(&mut self) -> bool {
        let chip = self.function.chip();
        let has_rings = (0..chip.geometry().clients).any(|client| chip.head(client) != 0);
        if !self.is_used && !has_rings {
            return true;
        }
        // This wait delays only this client.
        if let Some(before) = self.reset
            && hangs_up(self.stream, RESET.saturating_sub(before.elapsed()))
        {
            return false;
        }
        self.function.chip().count_reset();
        self.function.reset(|_| ());
        (self.is_used, self.reset) = (false, Some(Instant::now()));
        true
    }
}

/// Waits until the other side has closed the connection, at most for `wait`. Returns whether the other side
/// has closed the connection. If `poll` fails, the function returns false after this time.
fn hangs_up(stream: &UnixStream, wait: Duration) -> bool {
    let begin = Instant::now();
    loop {
        let left = wait.saturating_sub(begin.elapsed());
        let timeout =
            Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
        // `poll` needs no flags here, because it always reports a hang-up.
        let mut polled = [PollFd::new(stream, PollFlags::empty())];
        match poll(&mut polled, Some(&timeout)) {
            Ok(0) if left.is_zero() => return false,
            Ok(0) | Err(Errno::INTR) => {}
            Ok(_) => return true,
            Err(_) => {
                std::thread::sleep(left);
                return false;
            }
        }
    }
}

/// Returns the region of the BAR of this index.
fn bar(index: u32) -> Option<Region> {
    Region::ALL.into_iter().find(|region| region.bar() as u32 == index)
}
