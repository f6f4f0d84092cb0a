// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! A reader of a stream, record by record, over all segment files of the stream.
//!
//! A window of 64 KiB slides over a packet's content, so memory does not
//! depend on the size of packets, files or sessions.

use super::class::{Class, Classes};
use super::packet::{Domain, HEADER_BYTES, MAX_CLIENTS, Packet, PacketHeader, Packets, is_back};
use crate::error::{Error, Result};
use crate::event::EventKind;
use crate::value::ValueRef;
use hypertrace_abi::record::{HEADER_WORDS, Header, id};
use std::mem::offset_of;
use std::path::PathBuf;
use zerocopy::IntoBytes;

/// Size of the window in words. The window grows if a record is longer.
const WINDOW: usize = 8192;
/// Total size of the windows of all streams that are read at once, and minimum size of one window, in words.
const WINDOWS: (usize, usize) = (1 << 21, 1 << 10);

/// A segment file, with the packets that the writer had committed when the session was opened.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Segment {
    /// Path of the file.
    pub path: PathBuf,
    /// Offset from which the file is read: 0, or the end of an earlier scan.
    pub(crate) start: u64,
    /// End of the file's last packet with events.
    pub end: u64,
    /// Packet that is the baseline of the counters: the first packet, or the last packet of an earlier scan.
    pub first: Packet,
    /// Last packet, which holds the newest counters.
    pub last: Packet,
    /// Number of packets with events.
    pub packets: u64,
    /// Tokens of the first [`MAX_LEASES`] leases in order. Each token comes with the clock and the end time
    /// of the lease's last packet with events.
    pub(crate) leases: Vec<(u64, u32, u64)>,
}

/// Maximum number of leases of a file that are kept.
const MAX_LEASES: usize = 1 << 16;

impl Segment {
    /// Reads all headers of a file.
    ///
    /// # Errors
    /// If a header is damaged.
    pub(crate) fn scan(path: PathBuf) -> Result<Segment> {
        let mut packets = Packets::open(&path, None)?;
        let mut segment: Option<Segment> = None;
        while let Some(packet) = packets.next()? {
            let segment = segment.get_or_insert_with(|| Segment {
                path: path.clone(),
                start: 0,
                end: 0,
                first: packet,
                last: packet,
                packets: 0,
                leases: Vec::new(),
            });
            segment.last = packet;
            if !packet.is_empty() {
                segment.add(&packet);
            }
        }
        segment.ok_or_else(|| Error::damaged(&path, 0, "a packet", "an empty file"))
    }

    /// Reads further headers after an earlier scan, until the packets have about `most` bytes. Returns the
    /// new part, and the position at which the next scan begins.
    ///
    /// # Errors
    /// If a header is damaged.
    pub(crate) fn scan_after(
        path: PathBuf,
        after: Option<&Cursor>,
        most: u64,
    ) -> Result<(Segment, Cursor)> {
        let mut packets = Packets::open(&path, None)?;
        let len = packets.len();
        let (mut cursor, start) = match after {
            Some(cursor) => {
                packets.skip_to(cursor.at, cursor.last);
                (*cursor, cursor.at)
            }
            None => match packets.next()? {
                // The first packet is the baseline of the counters.
                Some(last) if last.is_empty() => {
                    let at = HEADER_BYTES;
                    packets.skip_to(at, last);
                    (Cursor { at, last, has_more: false, is_whole: false }, at)
                }
                _ => return Err(Error::damaged(&path, 0, "an empty packet", "another")),
            },
        };
        let first = cursor.last;
        let leases = Vec::new();
        let mut segment =
            Segment { path, start, end: start, first, last: first, packets: 0, leases };
        cursor.has_more = false;
        while let Some(packet) = packets.next()? {
            segment.last = packet;
            if packet.is_empty() {
                continue;
            }
            segment.add(&packet);
            (cursor.at, cursor.last) = (segment.end, packet);
            if segment.end - start >= most {
                cursor.has_more = true;
                break;
            }
        }
        cursor.is_whole = !cursor.has_more && cursor.at >= len;
        cursor.last = cursor.last.with_lost(segment.last.events_discarded);
        Ok((segment, cursor))
    }

    /// Adds a packet with events.
    fn add(&mut self, packet: &Packet) {
        self.end = packet.at + packet.size();
        self.packets += 1;
        let end = (packet.lease_token, packet.stream_id, packet.timestamp_end);
        self.leases.pop_if(|last| last.0 == end.0);
        if self.leases.len() < MAX_LEASES {
            self.leases.push(end);
        }
    }

    /// Returns whether the packets after the earlier scan have events, or count further lost events.
    pub(crate) fn has_news(&self) -> bool {
        self.packets > 0 || self.last.events_discarded > self.first.events_discarded
    }
}

/// Position at which a scan of a file ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cursor {
    /// Offset of the next packet.
    at: u64,
    /// Packet before the offset `at`, with the newest count of lost events.
    last: Packet,
    /// Whether the file already holds more packets.
    pub has_more: bool,
    /// Whether the file has no room for more packets.
    pub is_whole: bool,
}

/// All segments of one client or of one ring of the host, in order.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Stream {
    /// Producer of the stream.
    pub domain: Domain,
    /// Id of the client, or of the host ring.
    pub client: u32,
    /// Files in order. There is at least one file.
    pub segments: Vec<Segment>,
}

impl Stream {
    /// Groups segments by the producers of the segments, in the order of the segments' contents. The segments
    /// with this UUID come first, and the recovered segments come last. The numbers in the files' names
    /// decide only the order of segments that have no contents.
    ///
    /// # Errors
    /// If two segments cover the same part of a ring, because one of the segments must be a copy.
    pub(crate) fn group(mut segments: Vec<Segment>, uuid: &[u8; 16]) -> Result<Vec<Stream>> {
        fn part(p: &Packet, uuid: &[u8; 16]) -> impl Ord + use<> {
            (p.uuid != *uuid, p.epoch, p.faults)
        }
        fn key<'s>(s: &'s Segment, uuid: &[u8; 16]) -> impl Ord + use<'s> {
            let p = &s.first;
            let name = s.path.file_name().unwrap_or_default();
            // The positions in a ring never decrease, unless a guest made the position jump. The key has the
            // number of faults before the position, because each such jump counts as a fault.
            let place = (part(p, uuid), p.ring_begin, p.sequence);
            (p.domain, p.client, place, s.last.ring_end, name.len(), name)
        }
        segments.sort_by(|a, b| key(a, uuid).cmp(&key(b, uuid)));
        let mut streams: Vec<Stream> = Vec::new();
        for segment in segments {
            let (domain, client) = (segment.first.domain, segment.first.client);
            let before = streams.last().filter(|s| (s.domain, s.client) == (domain, client));
            if let Some(before) = before.and_then(|s| s.segments.last())
                && part(&before.last, uuid) >= part(&segment.first, uuid)
                && is_back(before.last.ring_end, segment.first.ring_begin)
            {
                let (end, file) = (before.last.ring_end, before.path.display());
                let expected = format!("a ring begin of at least {end}, where {file} ends");
                let (field, found) =
                    (offset_of!(PacketHeader, ring_begin), segment.first.ring_begin);
                return Err(segment.first.damaged(&segment.path, field, expected, found));
            }
            match streams.last_mut() {
                Some(s) if (s.domain, s.client) == (domain, client) => s.segments.push(segment),
                _ => streams.push(Stream { domain, client, segments: vec![segment] }),
            }
        }
        Ok(streams)
    }

    /// Reads the stream from the beginning of the stream.
    pub fn records<'a>(&'a self, classes: &'a Classes) -> Records<'a> {
        Records {
            segments: self.segments.iter(),
            classes,
            open: None,
            last: None,
            window: vec![0; WINDOW].into_boxed_slice(),
            size: WINDOW,
            at: 0,
            filled: 0,
            files: 0,
            lost: 0,
            packets: 0,
            skip: Skip::Nothing,
            skipped: (0, None),
        }
    }
}

/// A record of a stream.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Record<'a> {
    /// Time in ticks of the packet's clock.
    pub timestamp: u64,
    /// Flags that the producer has set.
    pub flags: u16,
    /// Class of the event.
    pub class: &'a Class,
    /// Packet of the record.
    pub packet: &'a Packet,
    /// Payload, as long as the class requires.
    pub payload: &'a [u64],
}

impl<'a> Record<'a> {
    /// Iterates over the values of the event's own fields.
    pub fn values(&self) -> impl Iterator<Item = ValueRef<'a>> + use<'a> {
        let (class, payload) = (self.class, self.payload);
        class.values(payload).map(ValueRef::from)
    }
}

impl Record<'_> {
    /// Returns the kind of the event.
    pub(crate) fn kind(&self) -> EventKind {
        self.class.kind(self.flags)
    }

    /// Returns the client for which a vCPU's thread made this record in a ring of the host. Returns `None` if
    /// the record has no client, or a client that cannot exist.
    pub(crate) fn made_for(&self) -> Option<u32> {
        let has_client = self.class.reference_point || self.kind() == EventKind::Hypertrace;
        let client = self.payload.first().filter(|_| has_client).map(|client| *client as u32);
        client.filter(|client| *client < MAX_CLIENTS)
    }
}

/// The records of a stream, in order.
#[derive(Debug)]
pub struct Records<'a> {
    segments: std::slice::Iter<'a, Segment>,
    classes: &'a Classes,
    open: Option<Open>,
    /// Header and class of the record before `at`.
    last: Option<(Header, &'a Class)>,
    window: Box<[u64]>,
    /// Normal size of the window in words. The window is larger if a record is longer.
    size: usize,
    /// Position of the next record in the window, in words.
    at: usize,
    /// Number of words in the window that hold data of the file.
    filled: usize,
    /// Number of files that were opened so far.
    files: u32,
    /// Number of lost events of all packets so far.
    lost: u64,
    /// Number of packets with events so far.
    packets: u64,
    skip: Skip<'a>,
    /// Number of skipped records, and the timestamp of the last skipped record. [`Records::take_skipped`]
    /// takes the timestamp away.
    skipped: (u64, Option<u64>),
}

/// Records that nobody needs. The first record of a packet is never skipped. The reader also checks the
/// records that it skips.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Skip<'a> {
    Nothing,
    /// Records of a class are skipped if the list has `true` at the class's id.
    Classes(&'a [bool]),
    /// All records except leases are skipped. Leases are needed because they name the source of later
    /// records.
    AllButLeases,
}

impl Skip<'_> {
    fn has(self, id: u32) -> bool {
        match self {
            Skip::Nothing => false,
            Skip::Classes(classes) => classes.get(id as usize) == Some(&true),
            Skip::AllButLeases => id != id::LEASE,
        }
    }
}

/// The packet that is being read.
#[derive(Debug)]
struct Open {
    packets: Packets,
    packet: Packet,
    /// Offset in the file of the next word in the window.
    offset: u64,
    /// End of the packet's content in the file, rounded up to whole words.
    end: u64,
    /// Timestamp of the last record.
    last: u64,
    /// Running total of lost events up to the current packet of this file. `discarded_last` is the running
    /// total in the file's last packet.
    discarded: u64,
    discarded_last: u64,
}

impl Open {
    /// `discarded` is the running total of a packet. Adds to `lost` the number of events that were lost since
    /// the previous packet.
    fn lose(&mut self, lost: &mut u64, discarded: u64) {
        *lost = lost.saturating_add(discarded.saturating_sub(self.discarded));
        self.discarded = discarded.max(self.discarded);
    }
}

impl<'a> Records<'a> {
    /// Returns the number of lost events up to and including the packet of the last record. At the end,
    /// returns the number of lost events in the whole stream.
    pub fn lost(&self) -> u64 {
        self.lost
    }

    /// Returns the number of packets with events, up to and including the packet of the last record.
    pub fn packets(&self) -> u64 {
        self.packets
    }

    /// Sets which records are skipped in the rest of the current packet.
    pub(crate) fn skip(&mut self, skip: Skip<'a>) {
        self.skip = skip;
    }

    /// Returns the number of records that were skipped.
    pub(crate) fn skipped(&self) -> u64 {
        self.skipped.0
    }

    /// Returns the timestamp of the last record that was skipped since the last call. The skipped record
    /// belongs to the same packet as the record that was read before the call, because the first record of
    /// each packet is not skipped.
    pub(crate) fn take_skipped(&mut self) -> Option<u64> {
        self.skipped.1.take()
    }

    /// Makes the window smaller if many streams are read at once.
    pub(crate) fn of_many(mut self, streams: usize) -> Records<'a> {
        self.size = (WINDOWS.0 / streams.max(1)).clamp(WINDOWS.1, WINDOW);
        self.window = vec![0; self.size].into_boxed_slice();
        self
    }

    /// Returns the next record.
    ///
    /// # Errors
    /// If the file is damaged or cannot be read. The stream then ends.
    pub fn read(&mut self) -> Result<Option<Record<'_>>> {
        match self.advance() {
            Ok(last) => {
                self.last = last;
                Ok(self.last())
            }
            Err(error) => {
                self.open = None;
                self.last = None;
                self.segments = [].iter();
                Err(error)
            }
        }
    }

    /// Returns the record that was read last, or `None` at the end.
    pub(crate) fn last(&self) -> Option<Record<'_>> {
        let (header, class) = self.last?;
        let words = usize::from(header.words);
        Some(Record {
            timestamp: header.timestamp,
            flags: header.flags,
            class,
            packet: &self.open.as_ref()?.packet,
            payload: &self.window[self.at - words..self.at],
        })
    }

    /// Returns the place of the payload of the record that was read last: the index of the payload's file in
    /// the stream, and the offset in this file.
    pub(crate) fn place(&self) -> Option<(u32, u64)> {
        let words = u64::from(self.last?.0.words);
        Some((self.files - 1, self.open.as_ref()?.offset - words * 8))
    }

    /// Reads only the header of the next record. Returns the record's timestamp and the stream id of the
    /// record's packet.
    ///
    /// # Errors
    /// As for [`Records::read`].
    pub(crate) fn read_time(&mut self) -> Result<Option<(u64, u32)>> {
        self.last = None;
        let Some(header) = self.header()? else { return Ok(None) };
        self.pass(header);
        Ok(self.open.as_ref().map(|open| (header.timestamp, open.packet.stream_id)))
    }

    /// Returns the header of the next record after a check of the record's time. The record's payload is then
    /// in the window.
    #[inline]
    fn header(&mut self) -> Result<Option<Header>> {
        let at_end = self.open.as_ref().is_none_or(|open| open.offset >= open.end);
        if at_end && !self.next_packet()? {
            return Ok(None);
        }
        self.need(HEADER_WORDS, "an event header of 16 bytes")?;
        let header = Header::from_words(self.window[self.at], self.window[self.at + 1]);
        let words = HEADER_WORDS + usize::from(header.words);
        self.need(words, "an event's payload")?;
        let Some(open) = &self.open else { return Ok(None) };
        let time = header.timestamp;
        if time < open.last || time > open.packet.timestamp_end {
            let expected = format!("a timestamp of {} to {}", open.last, open.packet.timestamp_end);
            let path = open.packets.path();
            return Err(Error::damaged(path, open.offset, expected, time.to_string()));
        }
        Ok(Some(header))
    }

    /// Moves behind the record with this header.
    #[inline]
    fn pass(&mut self, header: Header) {
        let words = HEADER_WORDS + usize::from(header.words);
        self.at += words;
        if let Some(open) = &mut self.open {
            open.last = header.timestamp;
            open.offset += words as u64 * 8;
        }
    }

    /// Moves behind the next record that is not skipped, and returns the header and class of this record.
    /// Skipped records are checked too, because a record with a wrong length would hide the records after it.
    fn advance(&mut self) -> Result<Option<(Header, &'a Class)>> {
        loop {
            let Some(header) = self.header()? else { return Ok(None) };
            let class = self.checked(header)?;
            self.pass(header);
            if !self.skip.has(header.id) {
                return Ok(Some((header, class)));
            }
            self.skipped = (self.skipped.0 + 1, Some(header.timestamp));
        }
    }

    /// Returns the class of the record with this header. Checks that the payload fits the class.
    #[inline]
    fn checked(&self, header: Header) -> Result<&'a Class> {
        let Records { classes, open: Some(open), window, at, .. } = self else {
            unreachable!("there is a record, so there is a packet")
        };
        let words = HEADER_WORDS + usize::from(header.words);
        let payload = &window[at + HEADER_WORDS..at + words];
        let damaged = |field, expected: String, found: String| {
            Err(Error::damaged(open.packets.path(), open.offset + field, expected, found))
        };
        let Some(class) = classes.get(header.id) else {
            let expected = "the id of an event in session.json".into();
            return damaged(8, expected, header.id.to_string());
        };
        let Some(pad) = class.check(payload) else {
            let expected = format!("a payload of the form {}", class.text());
            return damaged(16, expected, format!("{} words that do not fit it", header.words));
        };
        let content = (open.end - open.packet.at - pad as u64) * 8;
        if open.offset + words as u64 * 8 == open.end && open.packet.content_size != content {
            let expected = format!("a content size of {content} bits");
            let found = format!("{} bits", open.packet.content_size);
            let field = offset_of!(PacketHeader, content_size);
            return Err(open.packet.damaged(open.packets.path(), field, expected, found));
        }
        Ok(class)
    }

    /// Opens the next packet with events, in this file or the next.
    fn next_packet(&mut self) -> Result<bool> {
        loop {
            if self.open.is_none() {
                let Some(segment) = self.segments.next() else { return Ok(false) };
                let mut packets = Packets::open(&segment.path, Some(segment.end))?;
                self.files += 1;
                if segment.start > 0 {
                    packets.skip_to(segment.start, segment.first);
                }
                // The file's first packet is the baseline of the counters. Each file has a baseline of its
                // own, because other readers read each file as a separate stream that begins without losses.
                self.open = Some(Open {
                    packets,
                    packet: segment.first,
                    offset: 0,
                    end: 0,
                    last: 0,
                    discarded: segment.first.events_discarded,
                    discarded_last: segment.last.events_discarded,
                });
            }
            let Some(open) = &mut self.open else { return Ok(false) };
            let packet = if open.packets.is_done() { None } else { open.packets.next()? };
            match packet {
                Some(packet) if packet.is_empty() => {}
                Some(packet) => {
                    open.lose(&mut self.lost, packet.events_discarded);
                    self.packets += 1;
                    open.packet = packet;
                    open.offset = packet.at + HEADER_BYTES;
                    open.end = packet.at + packet.content().next_multiple_of(8);
                    open.last = packet.timestamp_begin;
                    (self.at, self.filled) = (0, 0);
                    self.skip = Skip::Nothing;
                    return Ok(true);
                }
                None => {
                    // The packets behind the last packet with events may still count losses.
                    open.lose(&mut self.lost, open.discarded_last);
                    self.open = None;
                }
            }
        }
    }

    /// Reads until the next `words` words are in the window.
    #[inline]
    fn need(&mut self, words: usize, what: &str) -> Result<()> {
        if self.filled - self.at >= words { Ok(()) } else { self.fill(words, what) }
    }

    #[cold]
    fn fill(&mut self, words: usize, what: &str) -> Result<()> {
        let Some(open) = &self.open else { return Ok(()) };
        let left = (open.end - open.offset) / 8;
        if left < words as u64 {
            let found = format!("the end of the packet's content after {} bytes", left * 8);
            let expected = format!("{what}, {} bytes", words * 8);
            return Err(Error::damaged(open.packets.path(), open.offset, expected, found));
        }
        let size = words.max(self.size);
        if self.window.len() == size {
            self.window.copy_within(self.at..self.filled, 0);
        } else {
            let mut other = vec![0; size];
            other[..self.filled - self.at].copy_from_slice(&self.window[self.at..self.filled]);
            self.window = other.into_boxed_slice();
        }
        self.filled -= self.at;
        self.at = 0;
        let more = (self.window.len() - self.filled).min(left as usize - self.filled);
        let into = &mut self.window[self.filled..self.filled + more];
        open.packets.read_at(into.as_mut_bytes(), open.offset + self.filled as u64 * 8)?;
        self.filled += more;
        Ok(())
    }
}
