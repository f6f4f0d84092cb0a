//! Writes trace.dat, version 7: the file of trace-cmd(1) and KernelShark.
//!
//! A file consists of a head, sections, and options that refer to the sections, see trace-cmd.dat.v7(5). In
//! two points, the manual page differs from the programs trace-cmd 3.1 to 3.3. In these points, this module
//! follows the programs: the size of a section has 64 bits, and the option BUFFER has the size of a page.

use crate::clock::Clock;
use crate::error::Error;
use crate::state::Buffer;
use crate::stats::Stats;
use hypertrace_format::folder::{Folder, check_size, read_at, write_at};
use hypertrace_format::ring_page;
use hypertrace_format::trace_dat::{MAGIC, id};
use rustix::fs::OFlags;
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;

/// The version, which comes after the magic bytes.
const VERSION: &[u8] = b"7\0";

/// Size of a section's header in bytes: id, flags, name, size.
pub(crate) const SECTION: usize = 2 + 2 + 4 + 8;

/// Position of the field with the offset of the options section. Before this field come the magic bytes, the
/// version, the byte order and size of `long`, the size of a page, and the compression.
pub(crate) const PLACE_OF_OPTIONS: usize = MAGIC.len() + VERSION.len() + 2 + 4 + 6;

/// Sections of the descriptions, in their order.
const DESCRIPTIONS: [u16; 4] = [id::HEADER_INFO, id::FTRACE_EVENTS, id::EVENT_FORMATS, id::PRINTK];

/// Size of a copied chunk in bytes. This size is a multiple of every page size.
const CHUNK: usize = 1 << 20;

/// Formats of events, by system and name.
pub(crate) type Formats = BTreeMap<String, BTreeMap<String, Vec<u8>>>;

/// Descriptions of a recording's data: everything before the data in a file.
#[derive(Debug, Default)]
pub(crate) struct Description {
    pub header_page: Vec<u8>,
    pub header_event: Vec<u8>,
    /// Events of the tracer itself, such as markers
    pub ftrace: Vec<Vec<u8>>,
    pub events: Formats,
    pub printk: Vec<u8>,
    pub page_size: u32,
}

impl Description {
    /// Returns the beginning of a file: the head, and the sections of the descriptions.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = head(self.page_size);
        let sized = |body: &mut Vec<u8>, text: &[u8]| {
            body.extend((text.len() as u64).to_ne_bytes());
            body.extend(text);
        };
        let count = |n: usize| u32::try_from(n).unwrap_or(u32::MAX).to_ne_bytes();
        let mut body = b"header_page\0".to_vec();
        sized(&mut body, &self.header_page);
        body.extend(b"header_event\0");
        sized(&mut body, &self.header_event);
        section(&mut out, id::HEADER_INFO, &body);

        let mut body = count(self.ftrace.len()).to_vec();
        self.ftrace.iter().for_each(|format| sized(&mut body, format));
        section(&mut out, id::FTRACE_EVENTS, &body);

        let mut body = count(self.events.len()).to_vec();
        for (system, events) in &self.events {
            body.extend(system.bytes().chain([0]));
            body.extend(count(events.len()));
            events.values().for_each(|format| sized(&mut body, format));
        }
        section(&mut out, id::EVENT_FORMATS, &body);

        let mut body = count(self.printk.len()).to_vec();
        body.extend(&self.printk);
        section(&mut out, id::PRINTK, &body);
        out
    }
}

/// Returns the head of a file that is not compressed and has no options yet.
fn head(page_size: u32) -> Vec<u8> {
    let mut out = [MAGIC, VERSION].concat();
    out.push(u8::from(cfg!(target_endian = "big")));
    out.push(size_of::<std::ffi::c_long>() as u8);
    out.extend(page_size.to_ne_bytes());
    out.extend(b"none\0\0");
    // The offset of the options is 0 here, because the offset is known only at the end.
    out.extend(0u64.to_ne_bytes());
    out
}

/// Returns true if these bytes are the beginning of a file of version 7 that is not compressed.
pub(crate) fn is_plain(begin: &[u8]) -> bool {
    begin.starts_with(&[MAGIC, VERSION].concat()) && begin.ends_with(b"none\0\0")
}

/// Returns the id and the offset of each section of descriptions in the beginning of a file. Accepts only the
/// sections that [`Description::to_bytes`] makes, because a guest could put its own options and compressed
/// data in sections of other kinds.
///
/// # Errors
/// The error is the offset of the first wrong section, or 0 if the file's head is wrong.
pub(crate) fn sections(first: &[u8], page_size: usize) -> Result<Vec<(u16, u64)>, usize> {
    let head = head(u32::try_from(page_size).map_err(|_| 0usize)?);
    if !first.starts_with(&head) {
        return Err(0);
    }
    let (mut sections, mut at) = (Vec::new(), head.len());
    for id in DESCRIPTIONS {
        let header = first.get(at..at + SECTION).ok_or(at)?;
        let size = header[8..].try_into().map(u64::from_ne_bytes).map_err(|_| at)?;
        if header != section_header(id, size) {
            return Err(at);
        }
        sections.push((id, at as u64));
        let next = usize::try_from(size).ok().and_then(|size| (at + SECTION).checked_add(size));
        at = next.filter(|next| *next <= first.len()).ok_or(at)?;
    }
    if at == first.len() { Ok(sections) } else { Err(at) }
}

pub(crate) fn section(out: &mut Vec<u8>, id: u16, body: &[u8]) {
    out.extend(section_header(id, body.len() as u64));
    out.extend(body);
}

pub(crate) fn section_header(id: u16, bytes: u64) -> [u8; SECTION] {
    let mut header = [0; SECTION];
    header[..2].copy_from_slice(&id.to_ne_bytes());
    header[8..].copy_from_slice(&bytes.to_ne_bytes());
    header
}

/// Facts that are known only at the end of a recording.
#[derive(Debug)]
pub(crate) struct Ending {
    /// CPUs of the machine
    pub cpus: Vec<u32>,
    /// Buffers of the recording, with the counters of each CPU's buffer as the kernel prints them
    pub buffers: Vec<(Buffer, Vec<Stats>)>,
    /// Lines with threads' numbers and names
    pub names: String,
    pub clock: Clock,
    /// Frequency of the counter in ticks per second
    pub frequency: u64,
    /// Identity of the recording
    pub trace_id: u64,
    /// Origin of the data: `KEY=VALUE`, separated by `; `
    pub origin: String,
    pub page_size: usize,
    /// System, host name, release and machine
    pub system: String,
}

/// Place of a CPU's pages in the file.
#[derive(Debug)]
pub(crate) struct PageRange {
    pub cpu: u32,
    pub offset: u64,
    pub bytes: u64,
}

/// Contents of a completed file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Contents {
    /// For each of [`Ending::buffers`], the number of events of each CPU
    pub events: Vec<BTreeMap<u32, u64>>,
    /// Damage of the data. The file lacks the damaged parts
    pub damage: Vec<String>,
}

/// Writes a file from its first part and the CPUs' files in a folder.
pub(crate) fn write(
    out: &OwnedFd,
    first: &[u8],
    from: &Folder,
    ending: &Ending,
) -> Result<Contents, Error> {
    let damaged = |at: usize| Error::Damaged {
        path: from.path().join(crate::state::HEAD),
        why: format!("not the descriptions of a recording at byte {at}"),
    };
    let sections = sections(first, ending.page_size).map_err(damaged)?;
    let mut contents = Contents::default();
    let parts = parts(first, &sections, ending, |buffer, start| {
        copy(out, from, ending, buffer, start, &mut contents)
    })?;
    for (at, bytes) in &parts {
        let written = check_size(at + bytes.len() as u64);
        let written = written.and_then(|()| write_at(out, bytes, *at));
        written.map_err(|source| writing(from, source))?;
    }
    Ok(contents)
}

/// Returns all parts of a file except for the pages. The parts are in order, and each part has its offset.
/// `sections` are the sections of the first part. For each buffer, the function calls `pages` with the offset
/// of the buffer's first page. `pages` returns the places of the pages, and the offset of their end.
///
/// # Errors
/// If `pages` fails.
pub(crate) fn parts<E>(
    first: &[u8],
    sections: &[(u16, u64)],
    ending: &Ending,
    mut pages: impl FnMut(Buffer, u64) -> Result<(Vec<PageRange>, u64), E>,
) -> Result<Vec<(u64, Vec<u8>)>, E> {
    let mut options = Vec::new();
    let mut bytes = first.to_vec();
    for (id, at) in sections {
        option(&mut options, *id, &at.to_ne_bytes());
    }
    option(&mut options, id::CMDLINES, &(bytes.len() as u64).to_ne_bytes());
    let mut body = (ending.names.len() as u64).to_ne_bytes().to_vec();
    body.extend(ending.names.bytes());
    section(&mut bytes, id::CMDLINES, &body);

    let (page_size, clock) = (ending.page_size as u64, ending.clock.name());
    let (mut parts, mut end) = (Vec::new(), bytes.len() as u64);
    for (buffer, stats) in &ending.buffers {
        let (name, at) = (buffer.name(), end);
        let places;
        (places, end) = pages(*buffer, (at + SECTION as u64).next_multiple_of(page_size))?;
        parts.push((at, section_header(id::BUFFER, end - at - SECTION as u64).to_vec()));

        let mut data = at.to_ne_bytes().to_vec();
        data.extend(format!("{name}\0{clock}\0").bytes());
        data.extend(u32::try_from(page_size).unwrap_or(4096).to_ne_bytes());
        data.extend((places.len() as u32).to_ne_bytes());
        for place in &places {
            data.extend(place.cpu.to_ne_bytes());
            data.extend(place.offset.to_ne_bytes());
            data.extend(place.bytes.to_ne_bytes());
        }
        option(&mut options, id::BUFFER, &data);
        let whose = if name.is_empty() { String::new() } else { format!("Buffer: {name}\n") };
        for Stats { cpu, text } in stats {
            option(&mut options, id::CPUSTAT, format!("{whose}CPU: {cpu}\n{text}\0").as_bytes());
        }
    }
    option(&mut options, id::TRACECLOCK, format!("[{clock}]\0").as_bytes());
    let system: String = ending.system.chars().filter(|c| !c.is_control()).take(512).collect();
    option(&mut options, id::UNAME, format!("{system}\0").as_bytes());
    let cpus = ending.cpus.iter().max().map_or(0, |last| last + 1);
    option(&mut options, id::CPUCOUNT, &cpus.to_ne_bytes());
    option(&mut options, id::VERSION, format!("{}\0", ending.origin).as_bytes());
    option(&mut options, id::TRACEID, &ending.trace_id.to_ne_bytes());
    // If the clock already counts nanoseconds, the file must not have the option TSC2NSEC, because trace-cmd
    // would scale these nanoseconds.
    if ending.clock == Clock::Tsc {
        let (mult, shift) = scale(ending.frequency);
        let mut data = mult.to_ne_bytes().to_vec();
        data.extend(shift.to_ne_bytes());
        data.extend(0u64.to_ne_bytes());
        option(&mut options, id::TSC2NSEC, &data);
    }
    // The last option tells that the file has no further section of options.
    option(&mut options, 0, &0u64.to_ne_bytes());

    bytes[PLACE_OF_OPTIONS..PLACE_OF_OPTIONS + 8].copy_from_slice(&end.to_ne_bytes());
    let mut last = Vec::new();
    section(&mut last, id::OPTIONS, &options);
    parts.insert(0, (0, bytes));
    parts.push((end, last));
    Ok(parts)
}

/// Returns this machine's system, host name, release and machine.
pub(crate) fn system() -> String {
    let name = rustix::system::uname();
    let parts = [name.sysname(), name.nodename(), name.release(), name.machine()];
    parts.map(|part| part.to_string_lossy().into_owned()).join(" ")
}

pub(crate) fn option(options: &mut Vec<u8>, id: u16, data: &[u8]) {
    options.extend(id.to_ne_bytes());
    options.extend((data.len() as u32).to_ne_bytes());
    options.extend(data);
}

fn writing(from: &Folder, source: std::io::Error) -> Error {
    let dir = from.path().parent().unwrap_or(from.path());
    Error::File { action: "write", path: dir.join(crate::state::FILE), source }
}

/// Copies the pages of a buffer's CPUs to the file, from the offset `start` on. Counts the events on these
/// pages. If a page is invalid, the file lacks this page and all later pages of the CPU.
fn copy(
    out: &OwnedFd,
    from: &Folder,
    ending: &Ending,
    buffer: Buffer,
    start: u64,
    contents: &mut Contents,
) -> Result<(Vec<PageRange>, u64), Error> {
    let (mut places, mut counts, mut end) = (Vec::new(), BTreeMap::new(), start);
    let page_size = ending.page_size;
    let mut chunk = vec![0; CHUNK.next_multiple_of(page_size)];
    for &cpu in &ending.cpus {
        let name = buffer.file(cpu);
        let mut place = PageRange { cpu, offset: end, bytes: 0 };
        let file = match from.file(&name, OFlags::RDONLY) {
            Ok((file, _)) => Some(file),
            // Nothing happened on this CPU.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
            Err(source) => {
                return Err(Error::File { action: "open", path: from.path().join(name), source });
            }
        };
        let mut events = 0;
        // Each iteration copies a chunk. The loop ends at the end of the CPU's file.
        while let Some(file) = &file {
            let read = read_at(file, &mut chunk, place.bytes);
            let read = read.map_err(|source| {
                let path = from.path().join(&name);
                Error::File { action: "read", path, source }
            })?;
            // If a kill interrupted the write of a page, the copy leaves out this incomplete page.
            let mut whole = read - read % page_size;
            for (at, page) in (0..).step_by(page_size).zip(chunk[..whole].chunks(page_size)) {
                match ring_page::count(page) {
                    Ok(n) => events += n,
                    Err(offset) => {
                        let byte = place.bytes + (at + offset) as u64;
                        let path = from.path().join(&name);
                        contents.damage.push(format!(
                            "{}: byte {byte} begins no event; the file was used up to its page",
                            path.display()
                        ));
                        whole = at;
                        break;
                    }
                }
            }
            let written = check_size(end + whole as u64);
            let written = written.and_then(|()| write_at(out, &chunk[..whole], end));
            written.map_err(|source| writing(from, source))?;
            place.bytes += whole as u64;
            end += whole as u64;
            if whole < chunk.len() {
                break;
            }
        }
        counts.insert(cpu, events);
        places.push(place);
    }
    contents.events.push(counts);
    Ok((places, end))
}

/// Returns the multiplier and the shift that convert ticks to nanoseconds. The multiplier has at most 31
/// bits, because trace-cmd would read a larger multiplier as a negative number.
fn scale(frequency: u64) -> (u32, u32) {
    // The largest shift whose multiplier fits is the most exact, so the loop begins with the largest shift.
    for shift in (0..=32).rev() {
        let mult = ((1_000_000_000u128 << shift) + u128::from(frequency) / 2)
            / u128::from(frequency.max(1));
        if let Ok(mult) = i32::try_from(mult) {
            return (mult.unsigned_abs(), shift);
        }
    }
    (i32::MAX as u32, 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_scaled_within_a_part_in_a_thousand_million() {
        for frequency in
            [24_000_000, 999_999_999, 1_000_000_000, 1_900_000_000, 2_596_138_123, 5_000_000_000u64]
        {
            let (mult, shift) = scale(frequency);
            assert!(i32::try_from(mult).is_ok(), "{frequency}: negative for trace-cmd: {mult}");
            let hour = 3600 * u128::from(frequency);
            let ns = (hour * u128::from(mult)) >> shift;
            let error = ns.abs_diff(3_600_000_000_000);
            assert!(error < 3_600, "{frequency}: {error} ns in an hour");
        }
    }
}
