// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The parts of a trace.dat of trace-cmd: versions 6 and 7.
//!
//! Both versions begin with magic bytes, the version, the byte order and the page size. In version 6, all
//! parts follow each other. Version 7 has sections, whose places stand in options, and sections may be
//! compressed. `trace-cmd.dat.v6(5)` and `trace-cmd.dat.v7(5)` describe the versions. trace-cmd differs from
//! these pages: a section's size is an u64, the option BUFFER has the page size, and TIME_SHIFT has fraction
//! bits.

use super::bytes::{Bytes, MAX};
use super::foreign::seems;
use super::formats::Formats;
use super::guest_file::GuestKernel;
use super::options::{Options, chosen_clock, short_name};
use super::printk::Printk;
use super::zstd::decompress;
use crate::error::{Error, Result};
use crate::inputs::regular::{Opened, read_at};
use hypertrace_abi::event::cut;
use hypertrace_abi::ring::MAX_NAME_BYTES;
use hypertrace_format::error::Warning;
use hypertrace_format::number::grouped;
use hypertrace_format::trace_dat::{MAGIC, MAX_STEALS, MAX_TSCS, id};
use ruzstd::decoding::FrameDecoder;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Description of the expected version, for errors.
const VERSION: &str = "the version 6 or 7";
/// Size in bytes that is enough for the part before the first section of version 7.
const BEGIN: u64 = 64;
/// Sizes in bytes of the first part of a file of version 6, in the order in which the reader tries the sizes.
/// A larger part is read only if the smaller part is not enough. The first size is enough for most files, and
/// [`MAX`] is enough for all files.
const TRIES: [u64; 3] = [1 << 20, 8 << 20, MAX];
/// Maximum number of sections of options. trace-cmd writes one or two such sections.
const MAX_SECTIONS: u32 = 64;
/// Maximum size of a section of options in bytes.
const MAX_OPTIONS: u64 = 16 << 20;
/// Maximum number of CPUs over all buffers. A buffer without CPUs counts as one CPU. Linux has at most 8,192
/// CPUs.
const MAX_CPUS: usize = 8192;
/// Maximum size of the names of a machine's clocks in bytes. Linux has 11 clocks.
const MAX_CLOCKS: u64 = 4096;
/// Maximum number of names of threads.
const MAX_COMMS: usize = 1 << 18;
/// Possible sizes of a page of the ring buffer in bytes.
const PAGE_SIZES: std::ops::RangeInclusive<u32> = 512..=1 << 20;
/// Flag of a compressed section.
const COMPRESSED: u64 = 1;

/// An open trace.dat, without its events.
#[derive(Debug)]
pub(crate) struct TraceFile {
    pub path: PathBuf,
    pub content: Content,
    /// Size of the content in bytes.
    pub len: u64,
    pub formats: Formats,
    /// Texts to which events refer by address.
    pub printk: Printk,
    pub options: Options,
    pub buffers: Vec<Buffer>,
    /// Buffer with the scheduling of all threads. Only a recording of hypertrace has this buffer, in addition
    /// to the buffer with the events of the recorded threads.
    pub cpus: Option<Buffer>,
    /// Names of threads, in the order of thread ids.
    comms: Vec<(u32, Box<str>)>,
    /// Warnings about missing or wrong parts of the file, if the other parts can be read.
    pub warnings: Vec<Warning>,
}

/// Place of the bytes of a trace.dat.
#[derive(Debug)]
pub(crate) enum Content {
    File(Opened),
    /// The bytes lie in the events of a session.
    Guest(Box<GuestKernel>),
}

/// The buffers of an instance.
#[derive(Debug)]
pub(crate) struct Buffer {
    /// Name of the instance; empty for the first instance.
    pub name: Arc<str>,
    pub clock: String,
    pub page_size: usize,
    pub is_compressed: bool,
    pub cpus: Vec<Cpu>,
}

/// The pages of a CPU.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cpu {
    pub number: u32,
    pub at: u64,
    pub len: u64,
    /// Whether the file was cut before the end of the pages.
    pub is_cut: bool,
}

/// Values from the first bytes, which both versions have.
struct Begin {
    version: u8,
    page_size: u32,
}

impl TraceFile {
    /// Reads all parts of a file except the pages. The file was opened by this path.
    ///
    /// # Errors
    /// If the file is no trace.dat of a 64-bit little-endian machine, or is damaged.
    pub fn open(path: &Path, content: Content) -> Result<TraceFile> {
        let len = match &content {
            Content::File(file) => file.len,
            Content::Guest(kernel) => kernel.bytes(),
        };
        let mut trace = TraceFile {
            path: path.to_owned(),
            content,
            len,
            formats: Formats::new(),
            printk: Printk::default(),
            options: Options::default(),
            buffers: Vec::new(),
            cpus: None,
            comms: Vec::new(),
            warnings: Vec::new(),
        };
        let begin = trace.read(0, BEGIN.min(trace.len), "the begin of a trace.dat")?;
        // A file that was cut within the magic is damaged.
        if begin.is_empty() || begin.iter().zip(MAGIC).any(|(found, magic)| found != magic) {
            return Err(Error::NotATrace { path: path.to_owned(), found: seems(&begin) });
        }
        let mut bytes = Bytes::new(path, &begin, 0, true);
        let begin = begin_of(&mut bytes)?;
        match begin.version {
            6 => trace.version_6(begin.page_size)?,
            _ => trace.version_7(&mut bytes, begin.page_size)?,
        }
        trace.check_buffers()?;
        if trace.options.has_bad_steals {
            trace.warnings.push(format!(
                "its list of when a hypervisor took time is left out: more than {MAX_STEALS} times, or damaged"
            ).into());
        }
        if trace.options.has_bad_tscs {
            trace.warnings.push(format!(
                "its list of KVM's TSC offsets is left out: more than {MAX_TSCS} TSCs, or damaged"
            ).into());
        }
        if trace.options.has_text {
            trace.warnings.push(
                "the text of a latency tracer is left out: `trace-cmd report` shows it".into(),
            );
        }
        let unknown = &trace.options.unknown;
        if !unknown.is_empty() {
            let first: Vec<String> = unknown.iter().take(8).map(u16::to_string).collect();
            let more = if unknown.len() > first.len() { ", .." } else { "" };
            trace.warnings.push(
                format!("options of unknown kinds are left out: {}{more}", first.join(", ")).into(),
            );
        }
        let is_cpus = |buffer: &Buffer| Some(&*buffer.name) == trace.options.all.as_deref();
        if let Some(at) = trace.buffers.iter().position(is_cpus).filter(|at| *at > 0) {
            let buffer = trace.buffers.remove(at);
            let lost = buffer.cpus.iter().map(|cpu| trace.lost(&buffer, cpu.number));
            let lost = lost.fold(0, u64::saturating_add);
            trace.cpus = Some(buffer);
            if lost > 0 {
                trace.warnings.push(format!(
                    "{} events of the scheduling of all threads were lost: record with a larger --buffer",
                    grouped(lost)
                ).into());
            }
        }
        Ok(trace)
    }

    /// Reads a part of the file. The part has to be within the file, and to have at most [`MAX`] bytes.
    fn read(&self, at: u64, len: u64, what: &str) -> Result<Vec<u8>> {
        let path = &self.path;
        let end = at.checked_add(len);
        if end.is_none_or(|end| end > self.len) {
            let found = format!("the end of the file at {}: it is cut", self.len);
            return Err(Error::damaged(path, at, format!("{what}, {len} bytes"), found));
        }
        if len > MAX {
            let found = format!("{len} bytes");
            return Err(Error::damaged(path, at, format!("{what} of at most {MAX} bytes"), found));
        }
        // MAX and the file's length bound the size.
        let mut bytes = vec![0; len as usize];
        self.fill(&mut bytes, at, || format!("{what}, {len} bytes"))?;
        Ok(bytes)
    }

    /// Fills `bytes` from an offset on. The caller knows that the file had these bytes when it was opened.
    pub fn fill(&self, bytes: &mut [u8], at: u64, what: impl FnOnce() -> String) -> Result<()> {
        let path = &self.path;
        let read = match &self.content {
            Content::File(file) => read_at(&file.file, bytes, at).map_err(Error::io(path))?,
            Content::Guest(kernel) => kernel.read_at(bytes, at)?,
        };
        if read < bytes.len() {
            return Err(Error::damaged(path, at + read as u64, what(), "the end of the file"));
        }
        Ok(())
    }

    /// Returns the number of a CPU's lost events that the kernel counted.
    pub fn lost(&self, buffer: &Buffer, cpu: u32) -> u64 {
        self.options.counters(&buffer.name, cpu).map_or(0, |counters| counters.lost)
    }

    /// Returns the number of CPUs of all buffers, at least 1.
    pub fn cpus(&self) -> u64 {
        let cpus: usize = self.buffers.iter().map(|buffer| buffer.cpus.len()).sum();
        cpus.max(1) as u64
    }

    /// Returns the name of a thread.
    pub fn comm(&self, tid: u32) -> Option<&str> {
        let at = self.comms.binary_search_by_key(&tid, |(tid, _)| *tid).ok()?;
        Some(&self.comms[at].1)
    }

    fn version_6(&mut self, page_size: u32) -> Result<()> {
        let path = self.path.clone();
        // Each try reads more bytes.
        for most in TRIES {
            let all = self.read(0, self.len.min(most), "a trace.dat")?;
            let mut bytes = Bytes::new(&path, &all, 0, true);
            self.formats = Formats::new();
            self.options = Options::default();
            match self.parts_6(&mut bytes, page_size) {
                Ok(()) => return Ok(()),
                Err(error) if self.len <= most || most == MAX => return Err(error),
                Err(_) => {}
            }
        }
        Ok(())
    }

    fn parts_6(&mut self, bytes: &mut Bytes<'_>, page_size: u32) -> Result<()> {
        begin_of(bytes)?;
        header_info(bytes)?;
        self.formats.take_ftrace(bytes)?;
        self.formats.take(bytes)?;
        let len = bytes.u32("the addresses of functions")?;
        bytes.take(len.into(), "the addresses of functions")?;
        self.options.unused.extend((len > 0).then_some(id::KALLSYMS));
        self.printk = Printk::of(bytes)?;
        self.comms = comms(bytes)?;
        let cpus = bytes.u32("a number of CPUs")?;
        if cpus as usize > MAX_CPUS {
            return Err(bytes.damaged(&format!("at most {MAX_CPUS} CPUs"), cpus));
        }
        let mut kind = bytes.take(10, "the kind of the data")?;
        let mut instances = Vec::new();
        if kind == b"options  \0" {
            // The loop ends, because each option takes at least 2 bytes.
            loop {
                let option = bytes.number(2, "an option")? as u16;
                if option == id::OPTIONS {
                    break;
                }
                let mut data = option_data(bytes)?;
                if option == id::BUFFER {
                    let at = data.u64("the offset of an instance's buffers")?;
                    instances.push((at, Arc::from(short_name(&data.rest()))));
                    // Each instance has the same number of CPUs as the trace.
                    self.check_cpus((instances.len() + 1).saturating_mul(cpus.max(1) as usize))?;
                } else {
                    self.options.take(option, &mut data)?;
                }
            }
            kind = bytes.take(10, "the kind of the data")?;
        }
        check_kind(bytes, kind)?;
        self.buffers = vec![self.buffer_6(bytes, "".into(), cpus, page_size)?];
        for (at, name) in instances {
            // The table has the kind, 16 bytes for each CPU (at most 128 KiB), and the text of the clock.
            let len = 10 + u64::from(cpus) * 16;
            let clock = self.len.saturating_sub(at.saturating_add(len)).min(8 + MAX_CLOCKS);
            let table = self.read(at, len + clock, "an instance's buffers")?;
            let path = self.path.clone();
            let mut bytes = Bytes::new(&path, &table, at, true);
            let kind = bytes.take(10, "the kind of the data")?;
            check_kind(&bytes, kind)?;
            let buffer = self.buffer_6(&mut bytes, name, cpus, page_size)?;
            self.buffers.push(buffer);
        }
        Ok(())
    }

    fn buffer_6(
        &self,
        bytes: &mut Bytes<'_>,
        name: Arc<str>,
        cpus: u32,
        page_size: u32,
    ) -> Result<Buffer> {
        let cpu = |number| {
            let at = bytes.u64("the offset of a CPU's pages")?;
            Ok(Cpu { number, at, len: bytes.u64("the bytes of a CPU's pages")?, is_cut: false })
        };
        let cpus = (0..cpus).map(cpu).collect::<Result<_>>()?;
        let mut clock = self.options.clock.clone().unwrap_or_default();
        // If the option of the clock has no name, as in files of trace-cmd 2, the names of the clocks follow
        // the table.
        if self.options.clock.is_some() && clock.is_empty() {
            let len = bytes.u64("the length of the clocks' names")?;
            if len > MAX_CLOCKS {
                let expected = format!("names of clocks of at most {MAX_CLOCKS} bytes");
                return Err(bytes.damaged(&expected, len));
            }
            clock = chosen_clock(&String::from_utf8_lossy(bytes.take(len, "the clocks' names")?));
        }
        let page_size = page_size as usize;
        Ok(Buffer { name, clock, page_size, is_compressed: false, cpus })
    }

    fn version_7(&mut self, begin: &mut Bytes<'_>, page_size: u32) -> Result<()> {
        let name = begin.text("the name of a compression")?;
        match name {
            b"none" | b"zstd" => {}
            _ => {
                let found = String::from_utf8_lossy(name);
                let what =
                    "`trace-cmd convert -i FILE -o OUT --compression zstd` makes a file that is";
                return Err(not_supported(
                    &self.path,
                    format!("the compression {found:?}: {what}"),
                ));
            }
        }
        begin.text("the version of a compression")?;
        let path = self.path.clone();
        let mut next = begin.u64("the offset of the options")?;
        let (mut sections, mut parts) = (0, Vec::new());
        while next != 0 {
            sections += 1;
            if sections > MAX_SECTIONS {
                let expected = format!("at most {MAX_SECTIONS} sections of options");
                return Err(Error::damaged(&path, next, expected, "one more"));
            }
            let section = self.section(next, id::OPTIONS, MAX_OPTIONS)?;
            next = 0;
            let mut bytes = section.bytes(&path);
            // The loop ends, because each option takes at least 6 bytes.
            while bytes.left() > 0 {
                let option = bytes.number(2, "an option")? as u16;
                let mut data = option_data(&mut bytes)?;
                match option {
                    id::OPTIONS => {
                        next = data.u64("the offset of the next options")?;
                        break;
                    }
                    id::BUFFER => {
                        let buffer = self.buffer_7(&mut data, page_size)?;
                        self.buffers.push(buffer);
                        self.check_cpus(self.buffers.iter().map(|b| b.cpus.len().max(1)).sum())?;
                    }
                    id::HEADER_INFO
                    | id::FTRACE_EVENTS
                    | id::EVENT_FORMATS
                    | id::PRINTK
                    | id::CMDLINES => {
                        // Each section may occur once, so the sizes bound the memory that the sections need.
                        if parts.contains(&option) {
                            return Err(data.damaged("one section of each kind", option));
                        }
                        parts.push(option);
                        self.part_7(option, data.u64("a section's offset")?)?
                    }
                    _ => self.options.take(option, &mut data)?,
                }
            }
        }
        Ok(())
    }

    fn check_cpus(&self, count: usize) -> Result<()> {
        let expected = || format!("at most {MAX_CPUS} CPUs in all buffers");
        match count <= MAX_CPUS {
            true => Ok(()),
            false => Err(Error::damaged(&self.path, 0, expected(), count)),
        }
    }

    fn part_7(&mut self, option: u16, at: u64) -> Result<()> {
        let path = self.path.clone();
        let section = self.section(at, option, MAX)?;
        let mut bytes = section.bytes(&path);
        match option {
            id::HEADER_INFO => header_info(&mut bytes)?,
            id::FTRACE_EVENTS => self.formats.take_ftrace(&mut bytes)?,
            id::EVENT_FORMATS => self.formats.take(&mut bytes)?,
            id::PRINTK => self.printk = Printk::of(&mut bytes)?,
            _ => self.comms = comms(&mut bytes)?,
        }
        Ok(())
    }

    fn buffer_7(&self, data: &mut Bytes<'_>, default: u32) -> Result<Buffer> {
        let at = data.u64("the offset of a buffer's section")?;
        let name = short_name(&String::from_utf8_lossy(data.text("an instance's name")?)).into();
        let clock = chosen_clock(&String::from_utf8_lossy(data.text("a clock's name")?));
        let page_size = match data.u32("a page size")? {
            0 => default,
            size => check_page_size(data, size)?,
        };
        let count = data.u32("a number of CPUs")?;
        let cpu = |_| {
            let number = data.u32("a CPU's number")?;
            let at = data.u64("the offset of a CPU's pages")?;
            Ok(Cpu { number, at, len: data.u64("the bytes of a CPU's pages")?, is_cut: false })
        };
        // Each CPU takes 20 bytes of the option, so the option's size bounds the number.
        let cpus = (0..count).map(cpu).collect::<Result<Vec<Cpu>>>()?;
        // A file that was cut may end before the pages.
        let is_compressed = match self.read(at, 16, "a section's header") {
            Ok(header) => crate::value::number(&header[2..4]) & COMPRESSED != 0,
            Err(error) if cpus.iter().all(|cpu| cpu.len == 0) => return Err(error),
            Err(_) => false,
        };
        Ok(Buffer { name, clock, page_size: page_size as usize, is_compressed, cpus })
    }

    /// Reads a section, and decompresses the section if it is compressed.
    fn section(&self, at: u64, id: u16, most: u64) -> Result<Section> {
        let path = &self.path;
        let header = self.read(at, 16, "a section's header")?;
        let mut bytes = Bytes::new(path, &header, at, true);
        let found = bytes.number(2, "a section's id")? as u16;
        if found != id {
            return Err(Error::damaged(path, at, format!("a section of id {id}"), found));
        }
        let flags = bytes.number(2, "a section's flags")?;
        bytes.take(4, "a section's name")?;
        let len = bytes.u64("a section's size")?;
        if len > most {
            let expected = format!("a section of at most {most} bytes");
            return Err(Error::damaged(path, at + 8, expected, len));
        }
        let at = at + 16;
        let content = self.read(at, len, "a section")?;
        if flags & COMPRESSED == 0 {
            return Ok(Section { at, content, plain: true });
        }
        let mut bytes = Bytes::new(path, &content, at, true);
        let packed = bytes.u32("the length of compressed data")?;
        let len = bytes.u32("the length of decompressed data")?;
        if u64::from(len) > most {
            let expected = format!("at most {most} bytes of decompressed data");
            return Err(Error::damaged(path, at + 4, expected, len));
        }
        let packed = bytes.take(packed.into(), "compressed data")?;
        let mut out = Vec::new();
        decompress(&mut FrameDecoder::new(), packed, len as usize, &mut out)
            .map_err(|why| Error::damaged(path, at + 8, "compressed data of zstd", why))?;
        Ok(Section { at, content: out, plain: false })
    }

    /// Checks the places of all pages, and cuts the pages at the file's end. The pages of two CPUs must not
    /// overlap, so that the windows of all CPUs need no more memory than the file has bytes.
    fn check_buffers(&mut self) -> Result<()> {
        let cpus = self.buffers.iter().flat_map(|buffer| &buffer.cpus);
        let mut places: Vec<(u64, u64)> = cpus.map(|c| (c.at, c.len)).filter(|p| p.1 > 0).collect();
        places.sort_by_key(|place| *place);
        for pair in places.windows(2) {
            if let [(at, len), (next, _)] = *pair
                && at.saturating_add(len) > next
            {
                let expected = "pages of a CPU after those of the one before";
                return Err(Error::damaged(&self.path, next, expected, "pages of both"));
            }
        }
        let len = self.len;
        for cpu in self.buffers.iter_mut().flat_map(|buffer| &mut buffer.cpus) {
            let there = cpu.len.min(len.saturating_sub(cpu.at));
            if there < cpu.len {
                self.warnings.push(Warning::damage(format!(
                    "cut at byte {len}: {} of {} bytes of CPU {} are missing",
                    cpu.len - there,
                    cpu.len,
                    cpu.number
                )));
                (cpu.len, cpu.is_cut) = (there, true);
            }
        }
        if self.buffers.is_empty() {
            self.warnings.push("no buffers: it has no events".into());
        }
        Ok(())
    }
}

/// A section's content.
struct Section {
    at: u64,
    content: Vec<u8>,
    plain: bool,
}

impl Section {
    fn bytes<'a>(&'a self, path: &'a Path) -> Bytes<'a> {
        Bytes::new(path, &self.content, self.at, self.plain)
    }
}

/// Name of a form that is not supported.
const OF_32_BITS: &str = "a trace of a 32-bit kernel";

fn not_supported(path: &Path, why: String) -> Error {
    Error::NotSupported { path: path.to_owned(), why }
}

/// Reads the common beginning of both versions, after the check of the magic.
fn begin_of(bytes: &mut Bytes<'_>) -> Result<Begin> {
    bytes.take(MAGIC.len() as u64, "the magic of a trace.dat")?;
    let at_version = *bytes;
    let version = match bytes.text(VERSION)? {
        b"6" => 6,
        b"7" => 7,
        other => {
            let found = String::from_utf8_lossy(&other[..other.len().min(8)]).into_owned();
            return Err(match found.parse::<u16>() {
                Ok(number) => {
                    let why = format!("version {number} of trace.dat, 6 and 7 are");
                    not_supported(bytes.path(), why)
                }
                Err(_) => at_version.damaged(VERSION, format_args!("{found:?}")),
            });
        }
    };
    match bytes.number(1, "a byte order")? {
        0 => {}
        1 => return Err(not_supported(bytes.path(), "a trace of a big-endian machine".into())),
        order => return Err(bytes.damaged("little endian (0) before it", order)),
    }
    match bytes.number(1, "the size of long")? {
        8 => {}
        4 => return Err(not_supported(bytes.path(), OF_32_BITS.into())),
        long => return Err(bytes.damaged("8 bytes in a long before it", long)),
    }
    let page_size = bytes.u32("a page size")?;
    Ok(Begin { version, page_size: check_page_size(bytes, page_size)? })
}

/// Checks that the data in a file of version 6 are pages and not the text of a latency tracer.
fn check_kind(bytes: &Bytes<'_>, kind: &[u8]) -> Result<()> {
    if kind == b"flyrecord\0" {
        return Ok(());
    }
    if kind == b"latency  \0" {
        let why = "the text of a latency tracer: `trace-cmd report` shows it";
        return Err(not_supported(bytes.path(), why.into()));
    }
    let found = String::from_utf8_lossy(kind).trim_end_matches(['\0', ' ']).to_owned();
    Err(bytes.damaged("pages of the ring buffer (flyrecord)", found))
}

fn check_page_size(bytes: &Bytes<'_>, size: u32) -> Result<u32> {
    if PAGE_SIZES.contains(&size) && size.is_power_of_two() {
        return Ok(size);
    }
    let expected =
        format!("a page size of {} to {} before it", PAGE_SIZES.start(), PAGE_SIZES.end());
    Err(bytes.damaged(&expected, size))
}

/// Reads an option's length, and returns the option's data.
fn option_data<'a>(bytes: &mut Bytes<'a>) -> Result<Bytes<'a>> {
    let len = bytes.u32("an option's length")?;
    let at = *bytes;
    let data = bytes.take(len.into(), "an option")?;
    Ok(at.part(data))
}

/// Checks the layout of pages, which is the same in every 64-bit kernel.
fn header_info(bytes: &mut Bytes<'_>) -> Result<()> {
    for name in [&b"header_page"[..], b"header_event"] {
        let at = *bytes;
        if bytes.text("the description of pages")? != name {
            let expected = format!("the text {:?}", String::from_utf8_lossy(name));
            return Err(at.damaged(&expected, "another"));
        }
        let len = bytes.u64("the length of a description")?;
        let at = *bytes;
        let text = bytes.take(len, "the description of pages")?;
        if name == b"header_page" {
            let text = String::from_utf8_lossy(text).replace(['\t', ' '], "");
            if text.contains("commit;offset:8;size:4;") {
                return Err(not_supported(bytes.path(), OF_32_BITS.into()));
            }
            for place in
                ["timestamp;offset:0;size:8;", "commit;offset:8;size:8;", "data;offset:16;"]
            {
                if !text.contains(place) {
                    let expected = format!("pages of a 64-bit kernel, with {place}");
                    return Err(at.damaged(&expected, "another layout"));
                }
            }
        }
    }
    Ok(())
}

/// Reads the names of threads: lines of a thread id and a name.
fn comms(bytes: &mut Bytes<'_>) -> Result<Vec<(u32, Box<str>)>> {
    let len = bytes.u64("the length of the threads' names")?;
    let text = String::from_utf8_lossy(bytes.take(len, "the threads' names")?);
    let line = |line: &str| {
        let (tid, name) = line.trim_start().split_once(' ')?;
        // The name is cut, because each event of the thread is shown with the name. The kernel's own names
        // are shorter than the limit.
        Some((tid.parse().ok()?, cut(name, MAX_NAME_BYTES).into()))
    };
    let mut comms: Vec<(u32, Box<str>)> =
        text.lines().filter_map(line).take(MAX_COMMS + 1).collect();
    if comms.len() > MAX_COMMS {
        return Err(bytes.damaged(&format!("names of at most {MAX_COMMS} threads"), "more"));
    }
    comms.sort_by_key(|(tid, _)| *tid);
    Ok(comms)
}
