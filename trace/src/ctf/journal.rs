//! A journal: the operations on a session's files as a sequence of frames. A process that can open no file
//! writes a journal. Another process reads the frames and does the operations.
//!
//! The writer never waits for the reader before the session ends. The writer either accepts a whole frame or
//! refuses the frame. Bytes that the socket does not take at once wait in a bounded buffer. While the buffer
//! is full, the writer refuses further frames, as failed writes.
//!
//! [`frame`] has the layout.

pub mod frame;

use super::files::Description;
use frame::{FrameHeader, HEADER_BYTES, Kind, LARGEST, name_bytes};
use hypertrace_format::folder::retry;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt::{set_socket_send_buffer_size, socket_type};
use rustix::net::{SendFlags, SocketType, send};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use zerocopy::IntoBytes;

/// Maximum number of bytes that wait for the reader before further frames are refused.
const WAITING: usize = 1 << 20;
/// Number of bytes that the kernel is asked to buffer for the reader.
const KERNELS_BYTES: usize = 1 << 20;
/// Maximum time that the session's end waits while the reader makes no progress.
const PATIENCE: Duration = Duration::from_secs(1);
/// Maximum time that the session's end waits for a reader that makes progress now and then.
const MAX_PATIENCE: Duration = Duration::from_secs(10);
/// Time between two attempts to write. The attempts must not depend on poll(2), because poll(2) reports a
/// socket as writable only if much of the socket's buffer is free.
const ATTEMPTS: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };

/// The writer of a journal.
#[derive(Debug)]
pub(crate) struct Journal {
    socket: OwnedFd,
    /// Path of the session's directory, for messages.
    path: PathBuf,
    /// Bytes of the accepted frames. The first `sent` bytes are written already.
    bytes: Vec<u8>,
    sent: usize,
    /// Sequence number of the next frame.
    sequence: u64,
    /// Instant at which the session's end began to wait for the journal's reader. The value is `None` before
    /// the session's end, and returns to `None` if the reader has taken no byte for [`PATIENCE`]. The journal
    /// then refuses frames instead of waiting.
    patient: Option<Instant>,
    /// True if the reader is gone. The journal then takes no more frames, because a new reader would begin in
    /// the middle of a frame.
    is_broken: bool,
    is_ended: bool,
}

impl AsFd for Journal {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Journal {
    /// Returns a journal that writes to this stream socket.
    ///
    /// # Errors
    /// If the descriptor is no stream socket.
    pub fn new(socket: OwnedFd, path: &Path) -> io::Result<Journal> {
        if socket_type(&socket) != Ok(SocketType::STREAM) {
            let why = "it is not a stream socket";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        }
        // A smaller buffer works too, but loses more events if the reader is slow.
        let _ = set_socket_send_buffer_size(&socket, KERNELS_BYTES);
        Ok(Journal {
            socket,
            path: path.to_owned(),
            bytes: Vec::with_capacity(WAITING),
            sent: 0,
            sequence: 0,
            patient: None,
            is_broken: false,
            is_ended: false,
        })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Replaces a description.
    pub fn replace(&mut self, what: Description, text: &[u8]) -> io::Result<()> {
        self.send(Kind::Replace, what.name(), 0, text)
    }

    /// Appends to a description whose present size is `len`.
    pub fn append(&mut self, what: Description, len: u64, piece: &[u8]) -> io::Result<()> {
        self.send(Kind::Append, what.name(), len, piece)
    }

    /// Creates a stream file of length `len` that begins with `head`.
    pub fn create(&mut self, name: &str, len: u64, head: &[u8]) -> io::Result<()> {
        self.send(Kind::Create, name, len, head)
    }

    /// Writes a packet and the header of the filler after the packet. If there is no packet, `bytes` has only
    /// the header of the filler.
    pub fn write(&mut self, name: &str, bytes: &[u8], at: u64) -> io::Result<()> {
        self.send(Kind::Write, name, at, bytes)
    }

    /// Closes a stream file. If `end` is given, first cuts the file to this length.
    pub fn close(&mut self, name: &str, end: Option<u64>) -> io::Result<()> {
        self.send(Kind::Close, name, end.unwrap_or(frame::KEEP), &[])
    }

    /// From this call on, if the buffer is full, the journal waits for the reader, and refuses a frame only
    /// after this wait.
    pub fn block_until_drained(&mut self) {
        self.patient = Some(Instant::now());
    }

    /// Returns true if accepted frames wait for the reader.
    pub fn has_waiting(&self) -> bool {
        self.waiting() > 0 && !self.is_broken
    }

    /// Ends the journal, and waits until its reader has taken all of it. After a failure, the caller may call
    /// this method again.
    ///
    /// # Errors
    /// If the reader takes no byte for a second, or does not take all bytes within ten seconds.
    pub fn end(&mut self) -> io::Result<()> {
        self.block_until_drained();
        if !self.is_ended {
            self.send(Kind::End, "", 0, &[])?;
            self.is_ended = true;
        }
        self.wait_for_less(0)
    }

    /// Sends the waiting bytes until the socket takes no more.
    pub fn flush(&mut self) -> io::Result<()> {
        if self.is_broken {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        // The number of waiting bytes bounds this loop.
        while self.waiting() > 0 {
            let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
            match retry(|| send(&self.socket, &self.bytes[self.sent..], flags)) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(n) => self.sent += n,
                Err(why) => match why.kind() {
                    io::ErrorKind::WouldBlock => return Ok(()),
                    io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => {
                        self.is_broken = true;
                        (self.bytes, self.sent) = (Vec::new(), 0);
                        return Err(why);
                    }
                    _ => return Err(why),
                },
            }
        }
        self.sent = 0;
        self.bytes.clear();
        if self.bytes.capacity() > 4 * WAITING {
            // The buffer may have grown a lot, because a description can be much larger than a packet.
            self.bytes.shrink_to(WAITING);
        }
        Ok(())
    }

    fn waiting(&self) -> usize {
        self.bytes.len() - self.sent
    }

    /// Waits until the buffer holds at most `most` bytes.
    fn wait_for_less(&mut self, most: usize) -> io::Result<()> {
        let mut before = self.waiting();
        let mut progress = Instant::now();
        loop {
            self.flush()?;
            if self.waiting() <= most {
                return Ok(());
            }
            if self.waiting() < before {
                progress = Instant::now();
            }
            before = self.waiting();
            let waits = self.patient.is_some_and(|since| {
                progress.elapsed() < PATIENCE && since.elapsed() < MAX_PATIENCE
            });
            if waits {
                let mut socket = [PollFd::new(&self.socket, PollFlags::OUT)];
                retry(|| poll(&mut socket, Some(&ATTEMPTS)))?;
            } else {
                // The journal waits in this way only once: otherwise each of many rings would wait for the
                // same time.
                self.patient = None;
                let why = "the journal's reader does not take it";
                return Err(io::Error::new(io::ErrorKind::WouldBlock, why));
            }
        }
    }

    /// Accepts a frame, and writes the bytes that the socket takes at once.
    ///
    /// # Errors
    /// If the frame is refused. No part of a refused frame is written.
    fn send(&mut self, kind: Kind, name: &str, at: u64, payload: &[u8]) -> io::Result<()> {
        if self.is_ended {
            // The reader already has all frames up to the session's end.
            return Ok(());
        }
        let header = u32::try_from(payload.len())
            .ok()
            .filter(|_| payload.len() <= LARGEST)
            .zip(name_bytes(name))
            .map(|(length, name)| FrameHeader::new(kind, name, self.sequence, at, length));
        let Some(mut header) = header else {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "it does not fit a frame of a journal",
            ));
        };
        self.wait_for_less(WAITING)?;
        self.bytes.drain(..self.sent);
        self.sent = 0;
        let before = self.bytes.len();
        self.bytes.extend_from_slice(header.as_bytes());
        self.bytes.extend_from_slice(payload);
        let (place, payload) = self.bytes[before..].split_at_mut(HEADER_BYTES);
        header.seal(payload);
        place.copy_from_slice(header.as_bytes());
        match self.flush() {
            Err(why) if self.is_broken || self.sent <= before => {
                self.bytes.truncate(before);
                Err(why)
            }
            // The frame is accepted even if only a part was written: the journal writes the rest before any
            // other frame.
            _ => {
                self.sequence += 1;
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use frame::sum;
    use std::io::Read;
    use std::os::unix::net::UnixStream;
    use zerocopy::FromBytes;

    /// Writes packets until the journal refuses a packet. Returns the journal and the number of accepted
    /// packets.
    fn fill(socket: UnixStream, packet: &[u8]) -> (Journal, u64) {
        let mut journal = Journal::new(socket.into(), Path::new("J")).unwrap();
        let mut accepted = 0;
        loop {
            match journal.write("host-000-0000", packet, accepted) {
                Ok(()) => accepted += 1,
                Err(why) => {
                    assert_eq!(why.kind(), io::ErrorKind::WouldBlock);
                    return (journal, accepted);
                }
            }
        }
    }

    /// Asserts that the bytes consist of whole frames, and that each frame has `packet` as its payload.
    /// Returns the number of frames.
    #[track_caller]
    fn frames(mut bytes: &[u8], packet: &[u8]) -> u64 {
        let mut number = 0;
        while !bytes.is_empty() {
            let (header, rest) = FrameHeader::read_from_prefix(bytes).unwrap();
            let (payload, rest) = rest.split_at(header.length as usize);
            assert_eq!((header.sequence, header.own_sum()), (number, header.header_sum));
            assert_eq!(sum(payload), header.payload_sum);
            if header.kind == Kind::Write as u16 {
                assert_eq!((header.at, payload), (number, packet));
            }
            number += 1;
            bytes = rest;
        }
        number
    }

    #[test]
    fn a_reader_that_comes_late_gets_a_bounded_number_of_whole_frames() {
        let (mut from, to) = UnixStream::pair().unwrap();
        let packet = [7; 100_001];
        let (mut journal, accepted) = fill(to, &packet);
        assert!(journal.waiting() > WAITING && journal.has_waiting());
        assert!(journal.bytes.len() <= WAITING + HEADER_BYTES + packet.len());

        let read = std::thread::scope(|scope| {
            let reader = scope.spawn(|| {
                let mut bytes = Vec::new();
                from.read_to_end(&mut bytes).map(|_| bytes)
            });
            journal.end().unwrap();
            drop(journal);
            reader.join().unwrap().unwrap()
        });

        assert_eq!(frames(&read, &packet), accepted + 1);
    }

    #[test]
    fn the_end_waits_for_a_socket_that_is_never_reported_as_writable() {
        let (mut from, to) = UnixStream::pair().unwrap();
        let packet = [7; 100_001];
        let (mut journal, accepted) = fill(to, &packet);

        let read = std::thread::scope(|scope| {
            let reader = scope.spawn(|| {
                let (mut all, mut part) = (Vec::new(), vec![0; 32 << 10]);
                while let Ok(n @ 1..) = from.read(&mut part) {
                    all.extend_from_slice(&part[..n]);
                    // The reader takes so few bytes in a second that poll(2) never reports the socket as
                    // writable.
                    std::thread::sleep(Duration::from_millis(60));
                }
                all
            });
            journal.end().unwrap();
            drop(journal);
            reader.join().unwrap()
        });

        assert_eq!(frames(&read, &packet), accepted + 1);
    }

    #[test]
    fn the_end_waits_for_a_reader_and_not_for_ever() {
        let (_from, to) = UnixStream::pair().unwrap();
        let (mut journal, _) = fill(to, &[7; 1000]);

        let ended = journal.end().unwrap_err();

        assert_eq!(ended.kind(), io::ErrorKind::WouldBlock);
    }

    #[test]
    fn a_reader_that_takes_nothing_is_waited_for_once_at_the_end_of_all_rings() {
        let (_from, to) = UnixStream::pair().unwrap();
        let (mut journal, _) = fill(to, &[7; 1000]);
        journal.block_until_drained();

        let refused = journal.write("a", b"b", 0).unwrap_err();

        assert_eq!(refused.kind(), io::ErrorKind::WouldBlock);
        assert!(journal.patient.is_none());
    }

    #[test]
    fn a_journal_whose_reader_is_gone_refuses_all_frames() {
        let (from, to) = UnixStream::pair().unwrap();
        let (mut journal, _) = fill(to, &[7; 1000]);
        drop(from);

        let replaced = journal.replace(Description::Session, b"a");
        let refused = [journal.write("a", b"b", 0), replaced, journal.end()];

        for refused in refused {
            assert_eq!(refused.unwrap_err().kind(), io::ErrorKind::BrokenPipe);
        }
        assert!(!journal.has_waiting());
    }
}
