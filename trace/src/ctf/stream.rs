//! The files of a stream, which any reader can read at every instant.
//!
//! A stream file has its full size from the start and ends in a *filler*: an empty packet that reaches to the
//! file's end. A packet is written in two steps. First, one write puts the packet's body and the header of
//! the next filler inside the old filler, but leaves out the packet's header. No reader sees any of these
//! bytes yet. Then a second write puts the packet's header over the old filler's header. This second write is
//! the commit: it has 128 bytes and crosses no page. So if the process is killed at any instant, readers can
//! read the file to its end. Only `pwrite` is used, so a full disk is an error and never a signal. A limit of
//! the file size (RLIMIT_FSIZE) is an error, too, because the full size is compared with the limit before the
//! file is made. The limit causes a signal only if the process lowers the limit later.

use super::files::{FileId, Files};
use super::packet_buffer::PacketBuffer;
use hypertrace_format::error::WriteFailed;
use hypertrace_format::packet::{HEADER_BYTES, PacketHeader};
use std::io;
use zerocopy::IntoBytes;

/// Default size of a stream's sparse file in bytes.
pub const DEFAULT_FILE_BYTES: u64 = 64 * 1024 * 1024;

/// One file of a stream.
#[derive(Debug)]
struct StreamFile {
    file: FileId,
    /// Offset of the filler in bytes.
    at: u64,
    /// Header of the filler in the file.
    filler: PacketHeader,
    /// True if the filler has newer counters than the last packet. Such a filler must stay in the file.
    amended: bool,
    /// True if two writes failed: first the write of a header, then the write that should restore the filler.
    /// In this case, the file has neither a valid header nor the filler.
    torn: bool,
}

/// One stream: a sequence of files.
///
/// A CTF reader takes each file as a separate stream, and assumes that its count of lost events begins at 0.
/// If a file began with any other count, the reader would warn that events "may have been discarded" at the
/// file's beginning. So each file's counts are the callers' totals minus the totals of earlier files.
#[derive(Debug)]
pub struct Stream {
    prefix: String,
    file_bytes: u64,
    next_number: u32,
    /// Number of lost events in earlier files.
    lost_before: u64,
    file: StreamFile,
}

impl Stream {
    /// Creates the first file. An empty packet in this file carries the baseline.
    ///
    /// # Errors
    /// If the file cannot be made. In this case, no part of the file is left.
    pub fn create(
        files: &mut Files,
        prefix: &str,
        file_bytes: u64,
        baseline: &PacketHeader,
    ) -> Result<Stream, WriteFailed> {
        let file = StreamFile::create(files, prefix, 0, file_bytes, baseline)?;
        Ok(Stream { prefix: prefix.to_owned(), file_bytes, next_number: 1, lost_before: 0, file })
    }

    /// Commits the contents of the buffer as one packet. Sets both sizes in `header`, and replaces the
    /// stream's total of lost events with the file's total.
    ///
    /// # Errors
    /// If a write fails or is short. In this case, the stream does not change.
    pub fn append(
        &mut self,
        files: &mut Files,
        buffer: &mut PacketBuffer,
        header: &PacketHeader,
        next_sequence: u64,
    ) -> Result<(), WriteFailed> {
        let bytes = buffer.padded_bytes() as u64;
        if bytes + HEADER_BYTES as u64 > self.file.left() {
            let baseline = self.file.filler;
            self.next_file(files, &baseline)?;
        }
        let header = self.in_file(header);
        self.file.append(files, buffer, &header, next_sequence)
    }

    /// Returns the header with this file's total of lost events. This total never decreases.
    fn in_file(&self, header: &PacketHeader) -> PacketHeader {
        let events_discarded = header.events_discarded.max(self.lost()) - self.lost_before;
        PacketHeader { events_discarded, ..*header }
    }

    /// Commits only counters, as an empty packet. If the disk is full, the counters go into the filler,
    /// because the filler already has its room on the disk. In this case, the file keeps its full, sparse
    /// size.
    ///
    /// # Errors
    /// If neither the packet nor the filler can be written.
    pub fn append_counters(
        &mut self,
        files: &mut Files,
        buffer: &mut PacketBuffer,
        header: &PacketHeader,
        next_sequence: u64,
    ) -> Result<(), WriteFailed> {
        buffer.clear();
        self.append(files, buffer, header, next_sequence).or_else(|_| {
            let header = self.in_file(header);
            self.file.amend(files, &header, next_sequence)
        })
    }

    /// Ends this file, and creates the next file with the given baseline. The baseline may belong to another
    /// stream class.
    ///
    /// # Errors
    /// If the new file cannot be made. In this case, the stream does not change.
    pub fn next_file(
        &mut self,
        files: &mut Files,
        baseline: &PacketHeader,
    ) -> Result<(), WriteFailed> {
        // The old file is mended first. Otherwise a partly written header could show a packet in the old
        // file, although the next file will have this packet, too.
        self.file.mend(files)?;
        let next =
            StreamFile::create(files, &self.prefix, self.next_number, self.file_bytes, baseline)?;
        self.next_number = self.next_number.saturating_add(1);
        // The cut may fail, because the old file is valid even with its filler.
        let _ = self.file.close(files);
        self.lost_before = self.lost();
        self.file = next;
        Ok(())
    }

    /// Returns the number of lost events in all files of the stream.
    pub fn lost(&self) -> u64 {
        self.lost_before + self.file.filler.events_discarded
    }

    /// Returns the state after the last packet: its counters and its end.
    pub fn last(&self) -> &PacketHeader {
        &self.file.filler
    }

    /// Cuts the file to the end of its last packet, unless the filler has newer counters.
    ///
    /// # Errors
    /// If the file cannot be cut. The file is valid even with the filler.
    pub fn close(mut self, files: &mut Files) -> Result<(), WriteFailed> {
        self.file.close(files)
    }
}

impl StreamFile {
    fn create(
        files: &mut Files,
        prefix: &str,
        number: u32,
        file_bytes: u64,
        baseline: &PacketHeader,
    ) -> Result<StreamFile, WriteFailed> {
        let name = format!("{prefix}-{number:04}");
        let unit = HEADER_BYTES as u64;
        let baseline = PacketHeader {
            content_size: unit * 8,
            packet_size: unit * 8,
            events_discarded: 0,
            ..*baseline
        };
        let filler = baseline.following(baseline.sequence, file_bytes - unit);
        let mut head = [0; 2 * HEADER_BYTES];
        head[..HEADER_BYTES].copy_from_slice(baseline.as_bytes());
        head[HEADER_BYTES..].copy_from_slice(filler.as_bytes());
        match files.create(&name, file_bytes, &head) {
            Ok(file) => Ok(StreamFile { file, at: unit, filler, amended: false, torn: false }),
            Err(source) => Err(WriteFailed { action: "create", path: files.path(&name), source }),
        }
    }

    /// Returns the number of bytes from the filler's beginning to the file's end.
    fn left(&self) -> u64 {
        self.filler.packet_size / 8
    }

    fn append(
        &mut self,
        files: &mut Files,
        buffer: &mut PacketBuffer,
        header: &PacketHeader,
        next_sequence: u64,
    ) -> Result<(), WriteFailed> {
        let bytes = buffer.padded_bytes() as u64;
        let header = PacketHeader {
            content_size: buffer.content_bytes() as u64 * 8,
            packet_size: bytes * 8,
            ..*header
        };
        let filler = header.following(next_sequence, self.left() - bytes);
        let sealed = buffer.seal(&header, &filler);
        let (head, body) = sealed.split_at(HEADER_BYTES);

        if files.takes_whole_packets() {
            self.write(files, sealed, self.at)?;
        } else {
            self.mend(files)?;
            self.write(files, body, self.at + HEADER_BYTES as u64)?;
            self.write_header(files, head)?;
        }
        self.at += bytes;
        self.filler = filler;
        self.amended = false;
        Ok(())
    }

    /// Puts newer counters into the filler with one write of 128 bytes.
    fn amend(
        &mut self,
        files: &mut Files,
        header: &PacketHeader,
        next_sequence: u64,
    ) -> Result<(), WriteFailed> {
        let filler = header.following(next_sequence, self.left());
        self.mend(files)?;
        self.write_header(files, filler.as_bytes())?;
        self.filler = filler;
        self.amended = true;
        Ok(())
    }

    /// Replaces the filler's header.
    fn write_header(&mut self, files: &mut Files, header: &[u8]) -> Result<(), WriteFailed> {
        self.write(files, header, self.at).inspect_err(|_| {
            // The kernel copies either all of the 128 bytes within one page or none of them. For a file
            // system without this guarantee, the filler is written again.
            self.torn = !files.takes_whole_packets();
            let _ = self.mend(files);
        })
    }

    /// Restores the filler after a failed write has left a part of a header.
    fn mend(&mut self, files: &mut Files) -> Result<(), WriteFailed> {
        if self.torn {
            self.write(files, self.filler.as_bytes(), self.at)?;
            self.torn = false;
        }
        Ok(())
    }

    fn write(&self, files: &mut Files, bytes: &[u8], at: u64) -> Result<(), WriteFailed> {
        let written = files.write(&self.file, bytes, at);
        written.map_err(|source| self.failed("write", files, source))
    }

    fn close(&mut self, files: &mut Files) -> Result<(), WriteFailed> {
        // If a torn header cannot be mended, the header and its counters are cut off.
        let keep = self.amended && self.mend(files).is_ok();
        let end = (!keep).then_some(self.at);
        files.close(&self.file, end).map_err(|source| self.failed("shorten", files, source))
    }

    fn failed(&self, action: &'static str, files: &Files, source: io::Error) -> WriteFailed {
        WriteFailed { action, path: files.path(&self.file.name), source }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hypertrace_format::packet::Domain;
    use std::path::Path;
    use zerocopy::FromBytes;

    fn header() -> PacketHeader {
        PacketHeader::new([1; 16], 0, Domain::Host, 0, 0)
    }

    /// Returns the headers of a file's packets. Checks that the packets fill the file exactly.
    fn packets(path: &Path) -> Vec<PacketHeader> {
        let bytes = std::fs::read(path).unwrap();
        let mut at = 0;
        let mut found = Vec::new();
        while at < bytes.len() {
            let (header, _) = PacketHeader::read_from_prefix(&bytes[at..]).unwrap();
            assert_eq!(header.magic, hypertrace_format::packet::MAGIC);
            at += header.packet_size as usize / 8;
            found.push(header);
        }
        assert_eq!(at, bytes.len());
        found
    }

    #[test]
    fn a_new_stream_is_a_baseline_and_a_filler() {
        let dir = tempfile::tempdir().unwrap();
        let mut files = Files::at(dir.path(), 1).unwrap();
        let stream = Stream::create(&mut files, "host-000", 1 << 20, &header()).unwrap();
        let path = dir.path().join("host-000-0000");
        let found = packets(&path);
        assert_eq!(found.len(), 2);
        assert_eq!(found[1].packet_size, ((1 << 20) - 128) * 8);

        stream.close(&mut files).unwrap();

        assert_eq!(packets(&path).len(), 1);
        assert_eq!(std::fs::metadata(&path).unwrap().len(), 128);
    }

    #[test]
    fn there_is_exactly_one_filler_and_it_carries_the_counters() {
        let dir = tempfile::tempdir().unwrap();
        let mut files = Files::at(dir.path(), 1).unwrap();
        let mut stream = Stream::create(&mut files, "s", 1 << 20, &header()).unwrap();
        let mut buffer = PacketBuffer::new(0);
        for n in 1..=3 {
            buffer.clear();
            buffer.add(4, 0);
            let mut h = header();
            h.timestamp_end = n * 10;
            h.ring_end = n * 4;
            h.events_discarded = n;
            stream.append(&mut files, &mut buffer, &h, n).unwrap();
        }

        let found = packets(&dir.path().join("s-0000"));

        assert_eq!(found.len(), 5);
        let filler = found[4];
        assert_eq!(filler.content_size, 1024);
        assert_eq!((filler.timestamp_begin, filler.timestamp_end), (30, 30));
        assert_eq!((filler.ring_begin, filler.ring_end), (12, 12));
        assert_eq!((filler.events_discarded, filler.sequence), (3, 3));
    }

    #[test]
    fn a_packet_that_does_not_fit_opens_a_file_with_a_baseline() {
        let dir = tempfile::tempdir().unwrap();
        let size = 128 * 10;
        let mut files = Files::at(dir.path(), 1).unwrap();
        let mut stream = Stream::create(&mut files, "s", size, &header()).unwrap();
        let mut buffer = PacketBuffer::new(0);
        for n in 1..=9 {
            buffer.clear();
            buffer.add(1, 0);
            let mut h = header();
            h.events_discarded = n;
            h.timestamp_end = n;
            stream.append(&mut files, &mut buffer, &h, n).unwrap();
        }
        assert_eq!(stream.next_number, 3);
        // The packets take 1 + 4 x 2 units, so one unit is left for the filler. The filler was cut off at the
        // file's end.
        let first = packets(&dir.path().join("s-0000"));
        assert_eq!(first.len(), 5);
        let second = packets(&dir.path().join("s-0001"));
        assert_eq!(second[0].content_size, 1024);
        assert_eq!(second[0].events_discarded, 0);
        assert_eq!(second[1].events_discarded, 1);
        assert_eq!(second[0].timestamp_end, 4);
    }

    #[test]
    fn a_failed_creation_leaves_no_file() {
        let dir = tempfile::tempdir().unwrap();
        let mut files = Files::at(dir.path(), 1).unwrap();
        std::fs::create_dir(dir.path().join("s-0000")).unwrap();
        assert!(Stream::create(&mut files, "s", 1 << 20, &header()).is_err());
        assert!(!dir.path().join(".s-0000").exists());
    }
}
