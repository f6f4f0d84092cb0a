//! The recording of a guest's kernel, put together from the pieces that its guest has sent.
//!
//! Everything here was written by the guest: sizes are bounded, and what does not fit is damage.

use crate::complete::{Of, Summary, Taken, complete};
use crate::error::Error;
use crate::forward::Piece;
use crate::state::{self, END, EndJson, HEAD, JSON, RecordingJson, State, cpu_file};
use crate::stats::MOST_CPUS;
use crate::threads::Names;
use crate::trace_dat;
use hypertrace_format::folder::{Folder, write_at};
use hypertrace_format::ring_page;
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;

/// Most bytes of the descriptions, and of a JSON file: a guest that sends more takes the reader's memory.
const MOST_HEAD: usize = 8 << 20;
const MOST_JSON: usize = 1 << 20;

/// Size of a page. Recordings of AArch64's kernels with larger ones are not taken.
const PAGE: usize = 4096;

/// A guest's recording that is put together.
#[derive(Debug)]
pub struct Assembly {
    clock: u32,
    client: u32,
    frequency: u64,
    dir: Folder,
    /// Name of the file that it becomes.
    file_name: String,
    description: Description,
    end: Text,
    cpus: BTreeMap<u32, CpuPages>,
    /// File of the CPU whose page was the last.
    file: Option<(u32, OwnedFd)>,
    /// Pages of which a part is missing, and pieces that are none.
    damaged: u64,
}

/// The descriptions of a recording, which come before its pages.
#[derive(Debug)]
enum Description {
    Coming { head: Text, json: Text },
    Whole { head: Vec<u8>, json: Box<RecordingJson>, state: State },
    Damaged,
}

/// A file that is small.
#[derive(Debug, Default)]
struct Text {
    bytes: Vec<u8>,
    is_damaged: bool,
}

/// The pages of a CPU.
#[derive(Debug, Default)]
struct CpuPages {
    /// Number of the page whose pieces come, if one does.
    number: Option<u64>,
    page: Vec<u8>,
    /// Whole pages in the file.
    written: u64,
    /// Whether pages are missing before this one.
    is_after_gap: bool,
}

impl Assembly {
    /// Begins a recording, whose file is made in this directory under this name. Nothing is written before its
    /// descriptions are whole. `clock` is the session's clock of the guest, `frequency` its ticks per second, `client` the
    /// client that sends the pieces.
    pub fn new(
        dir: &Folder,
        file_name: &str,
        (clock, frequency): (u32, u64),
        client: u32,
    ) -> Assembly {
        Assembly {
            clock,
            client,
            frequency: frequency.max(1),
            dir: dir.clone(),
            file_name: file_name.to_owned(),
            description: Description::Coming { head: Text::default(), json: Text::default() },
            end: Text::default(),
            cpus: BTreeMap::new(),
            file: None,
            damaged: 0,
        }
    }

    /// Adds a piece. Those of a file come in order, and the descriptions before the pages: nothing is
    /// written without them.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn add(&mut self, piece: &Piece<'_>) -> Result<(), Error> {
        match (piece.file, &mut self.description) {
            (HEAD, Description::Coming { head, .. }) => head.add(piece, MOST_HEAD),
            (JSON, Description::Coming { json, .. }) => json.add(piece, MOST_JSON),
            (END, _) => self.end.add(piece, MOST_JSON),
            (other, _) => {
                let cpu = other.strip_prefix("cpu").and_then(|number| number.parse::<u32>().ok());
                match cpu.filter(|cpu| (*cpu as usize) < MOST_CPUS) {
                    Some(cpu) if self.is_described()? => return self.add_to_page(cpu, piece),
                    _ => self.damaged += 1,
                }
            }
        }
        Ok(())
    }

    /// Returns whether the descriptions that have come are whole. From then on they are fixed.
    ///
    /// # Errors
    /// If nothing can be written in the directory.
    pub fn is_described(&mut self) -> Result<bool, Error> {
        if let Description::Coming { head, json } = &mut self.description {
            let is_good = |json: &RecordingJson| {
                !head.is_damaged
                    && json.is_good()
                    && json.page_size == PAGE
                    && trace_dat::sections(&head.bytes, PAGE).is_ok()
            };
            self.description = match json.parsed::<RecordingJson>().filter(is_good) {
                Some(json) => Description::Whole {
                    head: std::mem::take(&mut head.bytes),
                    json: Box::new(json),
                    state: State::create_guest(self.dir.clone(), &self.file_name)?,
                },
                None => Description::Damaged,
            };
        }
        Ok(matches!(self.description, Description::Whole { .. }))
    }

    /// Returns whether the guest has said that it has ended.
    pub fn is_ended(&self) -> bool {
        !self.end.bytes.is_empty() || self.end.is_damaged
    }

    fn add_to_page(&mut self, cpu: u32, piece: &Piece<'_>) -> Result<(), Error> {
        let (number, at) = (piece.at / PAGE as u64, (piece.at % PAGE as u64) as usize);
        if self.cpus.get(&cpu).is_none_or(|pages| pages.number != Some(number)) {
            self.end_page(cpu)?;
            let pages = self.cpus.entry(cpu).or_default();
            pages.is_after_gap |= number != pages.number.map_or(0, |last| last + 1);
            pages.number = Some(number);
            pages.page.clear();
        }
        let pages = self.cpus.entry(cpu).or_default();
        // A page without one of its parts is not whole at its end.
        if at == pages.page.len() && at + piece.bytes.len() <= PAGE {
            pages.page.extend_from_slice(piece.bytes);
        }
        Ok(())
    }

    /// Writes the page whose pieces came, if it is whole.
    fn end_page(&mut self, cpu: u32) -> Result<(), Error> {
        let Some(pages) = self.cpus.get_mut(&cpu).filter(|pages| pages.number.is_some()) else {
            return Ok(());
        };
        let is_whole = pages.page.len() > ring_page::HEADER && ring_page::is_whole(&pages.page);
        if !is_whole {
            pages.is_after_gap = true;
            self.damaged += 1;
            return Ok(());
        }
        pages.page.resize(PAGE, 0);
        if pages.is_after_gap
            && let Some(commit) = ring_page::length(&pages.page)
        {
            // More are missing than the kernel has counted: nobody knows how many.
            let commit = (commit | ring_page::MISSED) & !ring_page::MISSED_STORED;
            pages.page[8..16].copy_from_slice(&commit.to_ne_bytes());
        }
        let Description::Whole { state, .. } = &self.description else { return Ok(()) };
        let folder = &state.folder;
        let failed = |source| state::failed("write", folder, &cpu_file(cpu), source);
        if self.file.as_ref().is_none_or(|(of, _)| *of != cpu) {
            let name = cpu_file(cpu);
            let file = match pages.written {
                0 => folder.new_file(&name).map_err(failed)?,
                _ => folder.file(&name, rustix::fs::OFlags::RDWR).map_err(failed)?.0,
            };
            self.file = Some((cpu, file));
        }
        if let Some((_, file)) = &self.file {
            write_at(file, &pages.page, pages.written).map_err(failed)?;
        }
        pages.written += PAGE as u64;
        pages.is_after_gap = false;
        Ok(())
    }

    /// Makes the file. Returns `None` if the guest has described nothing.
    ///
    /// # Errors
    /// If it is damaged, or cannot be written.
    pub fn finish(mut self) -> Result<Option<Summary>, Error> {
        for cpu in Vec::from_iter(self.cpus.keys().copied()) {
            self.end_page(cpu)?;
        }
        drop(self.file.take());
        self.is_described()?;
        let Description::Whole { head, json, state } = self.description else { return Ok(None) };
        state.begin(&head, &json)?;
        let end = self.end.parsed::<EndJson>();
        let recovered = end.is_none();
        if let Some(end) = end {
            state.end(&end)?;
        }
        let mut taken = Taken::default();
        if self.damaged > 0 {
            let damaged = self.damaged;
            taken
                .damage
                .push(format!("{damaged} pages or parts that the guest sent are not whole"));
        }
        let Assembly { clock, client, frequency, .. } = self;
        let of = Of::Guest { clock, client, frequency };
        complete(state, Names::default(), taken, recovered, of)
    }

    /// Removes what was written.
    ///
    /// # Errors
    /// If it cannot be removed.
    pub fn discard(self) -> Result<(), Error> {
        match self.description {
            Description::Whole { state, .. } => state.remove(),
            _ => Ok(()),
        }
    }
}

impl Text {
    fn add(&mut self, piece: &Piece<'_>, most: usize) {
        if piece.at == 0 {
            *self = Text::default();
        }
        if piece.at != self.bytes.len() as u64 || self.bytes.len() + piece.bytes.len() > most {
            self.is_damaged = true;
            return;
        }
        self.bytes.extend_from_slice(piece.bytes);
    }

    fn parsed<T: serde::de::DeserializeOwned>(&self) -> Option<T> {
        serde_json::from_slice(&self.bytes).ok().filter(|_| !self.is_damaged)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::Source;
    use crate::state::VERSION;
    use hypertrace_format::folder::Share;
    use std::fs;
    use std::path::Path;

    const EVENTS: usize = 200;

    /// Returns a page with so many events of 8 bytes, without the rest.
    fn page(events: usize) -> Vec<u8> {
        let mut page = vec![0; ring_page::HEADER];
        page[0] = 1;
        page[8..16].copy_from_slice(&(8 * events as u64).to_ne_bytes());
        (0..events).for_each(|_| page.extend([1, 0, 0, 0, 7, 7, 7, 7]));
        page
    }

    fn json() -> RecordingJson {
        RecordingJson {
            clock: crate::clock::Clock::Tsc,
            reading: None,
            version: VERSION,
            source: Source::Tracefs,
            owner: "hypertrace.1.2.3".into(),
            boot_id: "the guest's; threads=1".into(),
            trace_id: 1,
            stolen_ms: None,
            page_size: PAGE,
            cpus: vec![0, 1],
            names: String::new(),
            threads: None,
            system: Some("Linux guest\u{1b}[2J".into()),
            has_cpus: false,
        }
    }

    fn session() -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        let session = hypertrace_trace::SessionConfig::new(dir.path());
        hypertrace_trace::Session::create(session).unwrap().finish().unwrap();
        dir
    }

    /// Returns the pieces of a file.
    fn pieces<'a>(file: &'a str, at: u64, bytes: &'a [u8]) -> impl Iterator<Item = Piece<'a>> {
        let parts = (at..).step_by(crate::PIECE).zip(bytes.chunks(crate::PIECE));
        parts.map(move |(at, part)| Piece::new(7, file, at, part))
    }

    /// Begins a recording with its descriptions.
    fn described(dir: &Path, json: &RecordingJson) -> Assembly {
        let dir = Folder::open(dir, Share::Owner).unwrap();
        let mut assembly = Assembly::new(&dir, "guest.dat", (4, 1_000_000_000), 9);
        let head = trace_dat::Description { page_size: 4096, ..Default::default() }.to_bytes();
        let json = serde_json::to_vec(json).unwrap();
        for piece in pieces(HEAD, 0, &head).chain(pieces(JSON, 0, &json)) {
            assembly.add(&piece).unwrap();
        }
        assembly
    }

    #[test]
    fn pieces_of_several_cpus_become_the_file() {
        let dir = session();
        let mut assembly = described(dir.path(), &json());
        for n in 0..3 {
            for cpu in ["cpu0", "cpu1"] {
                pieces(cpu, n * PAGE as u64, &page(EVENTS)).for_each(|p| assembly.add(&p).unwrap());
            }
        }

        let summary = assembly.finish().unwrap().unwrap();

        assert_eq!((summary.asked.events, &*summary.damage), (6 * EVENTS as u64, &[][..]));
        let file = fs::read(dir.path().join("guest.dat")).unwrap();
        let text = String::from_utf8_lossy(&file);
        assert!(
            text.contains("; guest_clock=4; guest_client=9"),
            "its clock and its client are known"
        );
        assert!(!text.contains("threads=1") && !text.contains('\u{1b}'), "nothing is forged");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 4);
    }

    #[test]
    fn a_page_without_one_of_its_pieces_is_left_out_and_the_next_one_says_so() {
        let dir = session();
        let mut assembly = described(dir.path(), &json());
        let whole = page(EVENTS);
        for (n, left_out) in
            [(0, None), (1, Some(1)), (2, None), (4, None), (5, Some(0)), (6, None)]
        {
            for (piece, part) in (0..).zip(pieces("cpu0", n * PAGE as u64, &whole)) {
                if left_out != Some(piece) {
                    assembly.add(&part).unwrap();
                }
            }
        }

        let summary = assembly.finish().unwrap().unwrap();

        assert_eq!(
            (summary.asked.events, summary.damage.len()),
            (4 * EVENTS as u64, 1),
            "{summary:?}"
        );
        assert!(summary.damage[0].starts_with("2 pages"), "{summary:?}");
        let file = fs::read(summary.path).unwrap();
        let pages = file.chunks(PAGE).filter(|page| page[16..24] == whole[16..24]);
        let gaps: Vec<bool> = pages.map(|page| page[11] & 0x80 != 0).collect();
        assert_eq!(gaps, [false, true, true, true]);
    }

    #[test]
    fn the_kernels_count_of_missing_events_stays_in_the_file() {
        let dir = session();
        let mut assembly = described(dir.path(), &json());
        let mut lossy = page(EVENTS);
        let commit = (8 * EVENTS as u64) | ring_page::MISSED | ring_page::MISSED_STORED;
        lossy[8..16].copy_from_slice(&commit.to_ne_bytes());
        lossy.extend(1234u64.to_ne_bytes());
        pieces("cpu0", 0, &lossy).for_each(|piece| assembly.add(&piece).unwrap());

        let summary = assembly.finish().unwrap().unwrap();

        assert_eq!((summary.asked.events, &*summary.damage), (EVENTS as u64, &[][..]));
        let file = fs::read(summary.path).unwrap();
        assert!(file.windows(lossy.len()).any(|part| part == lossy));
    }

    #[test]
    fn a_guest_that_sends_anything_harms_only_its_own_recording() {
        let large = RecordingJson { page_size: 65536, ..json() };
        let many = RecordingJson { cpus: vec![0; 9000], ..json() };
        for json in [large, many] {
            let dir = session();
            let mut assembly = described(dir.path(), &json);
            for file in ["cpu0", "cpu8192", "cpu-1", "../kernel.dat", "", "cpu00"] {
                for at in [0, 3, u64::MAX, u64::MAX - 4095] {
                    for bytes in [&[][..], &[0; 16], &[255; 1024]] {
                        assembly.add(&Piece::new(7, file, at, bytes)).unwrap();
                    }
                }
            }

            assert_eq!(assembly.finish().unwrap(), None);
            assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 3, "nothing is left");
        }
    }

    #[test]
    fn descriptions_with_options_of_the_guests_own_are_no_recording() {
        let own = [&[0; 2][..], &[0; 6], &8u64.to_ne_bytes(), &[0; 8]].concat();
        let whole = trace_dat::Description { page_size: 4096, ..Default::default() }.to_bytes();
        let mut compressed = whole.clone();
        // The flag of its first section.
        let first = whole.windows(2).position(|id| id == 16u16.to_ne_bytes()).unwrap();
        compressed[first + 2] = 1;
        let mut named = whole.clone();
        let name = whole.windows(4).position(|name| name == b"none").unwrap();
        named[name..name + 4].copy_from_slice(b"zstd");
        for head in [[whole, own].concat(), compressed, named] {
            let dir = session();
            let mut assembly = described(dir.path(), &json());
            pieces(HEAD, 0, &head).for_each(|piece| assembly.add(&piece).unwrap());
            pieces("cpu0", 0, &page(EVENTS)).for_each(|piece| assembly.add(&piece).unwrap());

            assert_eq!(assembly.finish().unwrap(), None);
        }
    }

    #[test]
    fn pages_without_descriptions_are_not_written() {
        let dir = session();
        let folder = Folder::open(dir.path(), Share::Owner).unwrap();
        let mut assembly = Assembly::new(&folder, "guest.dat", (4, 1_000_000_000), 9);
        for n in 0..9 {
            pieces("cpu0", n * PAGE as u64, &page(1)).for_each(|p| assembly.add(&p).unwrap());
        }
        let json = serde_json::to_vec(&json()).unwrap();
        let head = trace_dat::Description { page_size: 4096, ..Default::default() }.to_bytes();
        for piece in pieces(HEAD, 0, &head).chain(pieces(JSON, 0, &json)) {
            assembly.add(&piece).unwrap();
        }
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 3, "nothing is written");

        assert_eq!(assembly.finish().unwrap(), None);
    }

    #[test]
    fn descriptions_are_bounded() {
        let dir = session();
        let mut assembly = described(dir.path(), &json());
        let all = vec![b' '; MOST_HEAD + crate::PIECE];
        pieces(HEAD, 0, &all).for_each(|piece| assembly.add(&piece).unwrap());
        let Description::Coming { head, .. } = &assembly.description else { panic!() };
        assert!(head.bytes.len() <= MOST_HEAD);

        assert_eq!(assembly.finish().unwrap(), None);
    }
}
