//! `hypertrace info --events` and `--names`: list the names of events that can be recorded or were recorded.

use crate::output::{Faults, grouped, print, print_json, table};
use crate::report::{open_all, session};
use crate::units::shown;
use crate::{Usage, unreadable};
use anyhow::{Context, Result};
use hypertrace_abi::record::id;
use hypertrace_abi::schema::{MAX_FIELDS, MAX_TEXT};
use hypertrace_export::escape::Escaped;
use hypertrace_format::error::BadInput;
use hypertrace_format::folder::open_given;
use hypertrace_kernel::ability;
use hypertrace_timeline::{Domain, UnreadPart, Warning, regions};
use object::elf::{FileHeader32, FileHeader64};
use object::read::elf::FileHeader;
use object::{Endianness, FileKind, Object, ObjectSection, ReadRef};
use rustix::fs::OFlags;
use serde::Serialize;
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;
use std::sync::Arc;

/// Maximum size of a section of notes in bytes.
const MAX_NOTES: u64 = 4 << 20;

/// Maximum number of events of a program. The table needs time and memory for each event. QEMU has 3,000.
const MAX_EVENTS: usize = 1 << 14;

/// Maximum number of sections of a program. An executable rarely has more than 100 sections.
const MAX_SECTIONS: usize = 1 << 14;

/// Maximum number of bytes that are read from a program's file.
const MAX_READ: usize = 64 << 20;

/// An event's name, and the names of its fields.
type Event = (String, Option<Vec<String>>);

/// Names to show.
#[derive(Debug, Default)]
struct Names {
    /// Events, with the names of their fields if these are known. The value is the number of such events in a
    /// session.
    events: BTreeMap<Event, Option<u64>>,
    regions: BTreeSet<String>,
    streams: Vec<(String, String)>,
}

/// Names to show, as JSON.
#[derive(Serialize)]
#[cfg_attr(test, derive(serde::Deserialize))]
pub struct Shown {
    events: Vec<Declared>,
    regions: BTreeSet<String>,
    streams: Vec<Stream>,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(serde::Deserialize))]
struct Declared {
    name: String,
    fields: Option<Vec<String>>,
    count: Option<u64>,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(serde::Deserialize))]
struct Stream {
    source: String,
    name: String,
}

impl Shown {
    fn of(names: Names) -> Shown {
        let events = names.events.into_iter();
        let streams = names.streams.into_iter();
        Shown {
            events: events
                .map(|((name, fields), count)| Declared { name, fields, count })
                .collect(),
            regions: names.regions,
            streams: streams.map(|(source, name)| Stream { source, name }).collect(),
        }
    }
}

/// Shows the names in a session.
pub fn show_names(session: &Path, is_json: bool) -> Result<()> {
    let mut faults = Faults::default();
    show(of_session(session, &mut faults)?, faults, is_json)
}

/// Shows the events of a program or a session or, without a path, of this machine's kernel.
pub fn show_events(of: Option<&Path>, is_json: bool) -> Result<()> {
    let mut faults = Faults::default();
    let names = match of {
        None => of_kernel()?,
        Some(path) if path.is_dir() => of_session(path, &mut faults)?,
        Some(path) => of_program(path)?,
    };
    show(Names { events: names.events, ..Names::default() }, faults, is_json)
}

fn show(names: Names, faults: Faults, is_json: bool) -> Result<()> {
    match is_json {
        true => print_json(json!(Shown::of(names)))?,
        false => print(text(&names))?,
    }
    faults.end()
}

fn of_kernel() -> Result<Names> {
    let events = ability::events().context("cannot list the kernel's events")?;
    let events = events.into_iter().map(|event| ((event, None), None)).collect();
    Ok(Names { events, ..Names::default() })
}

/// Returns the names in a session. Events after damage are not counted, and the damage is noted.
fn of_session(dir: &Path, faults: &mut Faults) -> Result<Names> {
    // Unlike other commands, this command needs no clocks, because it shows no times.
    let mut recording = open_all(&[session(dir)])?;
    // Recordings that were not finished are not reported here, because the attempt to complete them has
    // reported the failure. Names of guests' kernels are not listed.
    let is_shown = |what| !matches!(what, UnreadPart::Unfinished | UnreadPart::Guest);
    let unread = std::mem::take(&mut recording.unread).into_iter();
    unread.filter(|unread| is_shown(unread.what)).for_each(|unread| faults.add(unread.why));
    let (session, _) = recording.sessions.first().context("no session")?;
    let mut names = Names::default();
    let mut counts: BTreeMap<u32, u64> = BTreeMap::new();
    let mut used = BTreeSet::new();
    for stream in session.streams() {
        let mut records = stream.records(session.classes());
        loop {
            match records.read() {
                Ok(Some(record)) => {
                    used.insert((stream.domain, stream.client));
                    *counts.entry(record.class.id).or_default() += 1;
                }
                Ok(None) => break,
                Err(why) => {
                    faults.add(why);
                    break;
                }
            }
        }
    }
    let mut add = |name: &str, fields: &[Arc<str>], count| {
        let fields = fields.iter().map(|field| field.to_string()).collect();
        let known = names.events.entry((name.to_owned(), Some(fields))).or_default();
        *known = Some(known.unwrap_or(0) + count);
    };
    for class in session.classes().iter().filter(|class| class.id >= id::FIRST) {
        add(&class.name, &class.fields, counts.get(&class.id).copied().unwrap_or(0));
    }
    // The kernel's file describes many events that did not occur, so only the events that occurred are
    // listed.
    let (stats, warnings) = match recording.kernel_of(0) {
        Some(trace) => trace.event_stats()?,
        None => Default::default(),
    };
    // All other warnings are about times, which this command does not show.
    faults.say(warnings.into_iter().filter(Warning::is_bad_input));
    stats.iter().for_each(|stat| add(&stat.name, &stat.fields, stat.events));
    let is_used = |domain, client| used.contains(&(domain, client));
    for stream in session.json().streams.iter().filter(|s| is_used(s.domain, s.client)) {
        let domain = match stream.domain {
            Domain::Host => session.json().sides()[1],
            Domain::Guest => session.json().sides()[0],
        };
        let source = format!("{domain}/{}", stream.client);
        names.streams.push((source, stream.name.clone()));
    }
    names.regions = regions::names(&recording.sessions);
    Ok(names)
}

/// Returns the events that a program declares in notes of its file. Events of the guest's library have their
/// fields. Events of trace-events files are probes of the provider `hypertrace`, which debuggers read, too.
fn of_program(path: &Path) -> Result<Names> {
    let (file, _) = open_given(path, OFlags::RDONLY).map_err(unreadable(path))?;
    let refused = |why: &str| Usage(format!("{}: {why}", path.display()));
    let file = object::ReadCache::new(Limited { file: File::from(file), left: MAX_READ });
    let sections = headers(&file).unwrap_or(0);
    if sections > MAX_SECTIONS {
        let (sections, most) = (grouped(sections as u64), grouped(MAX_SECTIONS as u64));
        return Err(refused(&format!(
            "{sections} sections or segments, more than the {most} of a program"
        ))
        .into());
    }
    let file = object::File::parse(&file);
    let file = file.map_err(|_| refused("neither a program (ELF) nor a session's directory"))?;
    let mut names = Names::default();
    for name in [".note.hypertrace", ".note.stapsdt"] {
        let Some(section) = file.section_by_name(name) else { continue };
        let damaged = || refused(&format!("its section {name} is damaged"));
        if section.size() > MAX_NOTES {
            let most = shown(MAX_NOTES);
            return Err(refused(&format!("its section {name} has more than {most}")).into());
        }
        let mut notes = section.data().map_err(|_| damaged())?;
        while !notes.is_empty() {
            let (owner, text) = note(&mut notes).ok_or_else(damaged)?;
            names
                .events
                .extend(event(owner, text).map_err(|()| damaged())?.map(|event| (event, None)));
            if names.events.len() > MAX_EVENTS {
                let most = grouped(MAX_EVENTS as u64);
                return Err(refused(&format!("it declares more than {most} events")).into());
            }
        }
    }
    match names.events.is_empty() {
        true => Err(refused(
            "the program declares no event; if it names events while it runs, `info --names` lists them for \
             a session",
        )
        .into()),
        false => Ok(names),
    }
}

/// A program's file, with a limit: at most `left` more bytes are read, because the sizes that a hostile file
/// states may be wrong.
struct Limited {
    file: File,
    left: usize,
}

impl Read for Limited {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let Some(left) = self.left.checked_sub(buffer.len()) else {
            return Err(io::ErrorKind::FileTooLarge.into());
        };
        self.left = left;
        self.file.read(buffer)
    }
}

impl Seek for Limited {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.file.seek(to)
    }
}

/// Returns the number of sections or of segments that a program's header states, whichever is larger.
fn headers<'d>(data: impl ReadRef<'d>) -> object::Result<usize> {
    fn of<'d, H: FileHeader<Endian = Endianness>>(data: impl ReadRef<'d>) -> object::Result<usize> {
        let header = H::parse(data)?;
        let endian = header.endian()?;
        let sections = header.shnum(endian, data)? as usize;
        Ok(sections.max(header.phnum(endian, data)? as usize))
    }
    match FileKind::parse(data)? {
        FileKind::Elf32 => of::<FileHeader32<Endianness>>(data),
        FileKind::Elf64 => of::<FileHeader64<Endianness>>(data),
        _ => Ok(0),
    }
}

/// Returns the event in a note, with its fields if they are known; `None` for a note of another kind. If
/// the text is larger than a schema's text can be, an error is returned.
fn event(owner: &[u8], text: &[u8]) -> Result<Option<Event>, ()> {
    let shown = |text: &[u8]| String::from_utf8_lossy(text).into_owned();
    let texts = match owner {
        b"hypertrace\0" => text,
        // The note of a probe begins with three addresses, the provider and the name.
        _ => text.get(24..).unwrap_or_default(),
    };
    let mut texts = texts.split(|byte| *byte == 0);
    let first = texts.next().unwrap_or_default();
    if owner != b"hypertrace\0" {
        let name = texts.next().filter(|_| first == b"hypertrace");
        return match name {
            Some(name) if name.len() > MAX_TEXT => Err(()),
            name => Ok(name.map(|name| (shown(name), None))),
        };
    }
    if first.len() > MAX_TEXT {
        return Err(());
    }
    let text = shown(first);
    let declared = text.strip_suffix(')').and_then(|text| text.split_once('('));
    let Some((name, fields)) = declared else { return Ok(None) };
    let fields = fields.split(',').filter(|field| !field.is_empty()).map(str::to_owned);
    let fields = Vec::from_iter(fields);
    if fields.len() > MAX_FIELDS {
        return Err(());
    }
    Ok(Some((name.to_owned(), Some(fields))))
}

/// Takes a note: three words, an owner padded to a word, and a text. `None`: the note is damaged.
fn note<'n>(notes: &mut &'n [u8]) -> Option<(&'n [u8], &'n [u8])> {
    let (head, rest) = notes.split_first_chunk::<12>()?;
    let word =
        |at: usize| Some(u32::from_le_bytes(head.get(at..at + 4)?.try_into().ok()?) as usize);
    let (owners, texts) = (word(0)?, word(4)?);
    let (owner, rest) = rest.split_at_checked(owners.checked_next_multiple_of(4)?)?;
    *notes = rest.get(texts.checked_next_multiple_of(4)?..).unwrap_or_default();
    Some((owner.get(..owners)?, rest.get(..texts)?))
}

fn text(names: &Names) -> String {
    let Names { events, regions, streams } = names;
    let has_counts = events.values().any(Option::is_some);
    let events = events.iter().map(|((name, fields), count)| {
        let fields = fields.as_ref().map_or(String::new(), |fields| fields.join(" "));
        let fields = Escaped(fields.as_bytes()).to_string();
        let count = count.map_or(String::new(), grouped);
        ["event".into(), Escaped(name.as_bytes()).to_string(), count, fields]
    });
    let regions = regions.iter().map(|name| {
        ["region".into(), Escaped(name.as_bytes()).to_string(), String::new(), String::new()]
    });
    let streams = streams.iter().map(|(source, name)| {
        ["source".into(), source.clone(), String::new(), Escaped(name.as_bytes()).to_string()]
    });
    let rows = events.chain(regions).chain(streams);
    let table = match has_counts {
        true => table(["kind", "name", "count", ""], 2..3, rows),
        false => {
            let rows = rows.map(|[kind, name, _, more]| [kind, name, more]);
            table(["kind", "name", ""], 0..0, rows)
        }
    };
    let table = table.to_string();
    table.lines().map(|line| line.trim_end().to_owned() + "\n").collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_a_program_chose_reaches_no_terminal_as_it_is() {
        let fields = Some(vec!["b\u{1b}[32m".to_owned()]);
        let events = BTreeMap::from([(("a\u{1b}[31m".to_owned(), fields), None)]);
        let shown = text(&Names { events, ..Names::default() });
        assert!(
            shown.contains("[31m") && shown.contains("[32m") && !shown.contains('\u{1b}'),
            "{shown:?}"
        );
    }
}
