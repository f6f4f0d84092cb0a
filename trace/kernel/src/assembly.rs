//! Assembly of the recording of a guest's kernel from the pieces that the guest has sent.
//!
//! The guest wrote all these bytes. So the code bounds all sizes, and counts each piece that does not fit as
//! damage.

use crate::complete::{Known, Summary, Taken, ending, readings_map};
use crate::forward::{PIECE, Piece};
use crate::state::{END, EndJson, HEAD, JSON, RecordingJson};
use crate::stats::MAX_CPUS;
use crate::trace_dat::{self, Contents, PageRange};
use hypertrace_format::ring_page;
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::time::Duration;

/// Maximum sizes of the descriptions and of a JSON file, in bytes. Both sizes are limited, because the reader
/// keeps in memory what the guest sends.
const MAX_HEAD: usize = 8 << 20;
const MAX_JSON: usize = 1 << 20;

/// Size of a page in bytes. The assembly does not support recordings of AArch64 kernels with larger pages.
const PAGE: usize = 4096;

/// Maximum number of pages in a session that consist of a single piece. The reader keeps the location of each
/// piece in memory. A location needs little memory compared to a large page, but a guest can fill its files
/// with pages of a few bytes.
pub(crate) const MAX_SMALL: u32 = 8 << 20;

/// Location of a piece's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PieceLocation {
    /// Index of the file among the files of the recording.
    pub file: u32,
    /// Offset in the file in bytes.
    pub at: u64,
}

/// A recording of a guest's kernel. Further pieces may still arrive.
#[derive(Debug)]
pub(crate) struct Assembly {
    clock: u32,
    client: u32,
    frequency: u64,
    description: Description,
    end: Text,
    cpus: BTreeMap<u32, CpuPages>,
    /// Number of pages without all their pieces, plus number of pieces that belong to no page.
    damaged: u64,
}

/// The descriptions of a recording, which come before its pages.
#[derive(Debug)]
enum Description {
    Coming { head: Text, json: Text },
    Whole { head: Vec<u8>, sections: Vec<(u16, u64)>, json: Box<RecordingJson> },
    Damaged,
}

/// A small file.
#[derive(Debug, Default)]
struct Text {
    bytes: Vec<u8>,
    is_damaged: bool,
}

/// The pages of a CPU.
#[derive(Debug, Default)]
struct CpuPages {
    /// Index of the page whose pieces are arriving, if there is one.
    number: Option<u64>,
    page: Vec<u8>,
    /// Locations of the pieces of the pages. The page that is arriving comes last.
    runs: Vec<Run>,
    /// Number of whole pages, and number of the events on these pages.
    pages: u32,
    events: u64,
    /// True if pages are missing before the page that is arriving.
    is_after_gap: bool,
    /// Number of small pages that were left out, because the session already has the maximum number of small
    /// pages.
    beyond: u64,
    /// Offset of the first wrong record. The recording lacks the page with this record and all later pages.
    wrong: Option<u64>,
}

/// Pieces of a page that lie in a file at equal distances. Each piece but the last has [`PIECE`] bytes.
#[derive(Clone, Copy, Debug)]
struct Run {
    /// Offset of the first piece.
    at: u64,
    file: u32,
    step: u32,
    /// Index of the page.
    page: u32,
    /// Size of all pieces together in bytes.
    len: u16,
    /// True if pages are missing before this page.
    is_after_gap: bool,
}

impl Assembly {
    /// Begins a recording. `clock` is the session's clock of the guest, `frequency` is the clock's ticks per
    /// second, and `client` is the client that sends the pieces.
    pub fn new((clock, frequency): (u32, u64), client: u32) -> Assembly {
        Assembly {
            clock,
            client,
            frequency: frequency.max(1),
            description: Description::Coming { head: Text::default(), json: Text::default() },
            end: Text::default(),
            cpus: BTreeMap::new(),
            damaged: 0,
        }
    }

    /// Adds a piece whose bytes lie at `location`. The pieces of a file come in order, and the descriptions
    /// come before the pages. `small` is the number of [small pages](MAX_SMALL) for which the session still
    /// has room.
    pub fn add(&mut self, piece: &Piece<'_>, location: PieceLocation, small: &mut u32) {
        match (piece.file, &mut self.description) {
            (HEAD, Description::Coming { head, .. }) => head.add(piece, MAX_HEAD),
            (JSON, Description::Coming { json, .. }) => json.add(piece, MAX_JSON),
            (END, _) => self.end.add(piece, MAX_JSON),
            (other, _) => {
                let cpu = other.strip_prefix("cpu").and_then(|number| number.parse::<u32>().ok());
                match cpu.filter(|cpu| (*cpu as usize) < MAX_CPUS) {
                    Some(cpu) if self.is_described() => {
                        let pages = self.cpus.entry(cpu).or_default();
                        self.damaged += u64::from(!pages.add(piece, location, small));
                    }
                    _ => self.damaged += 1,
                }
            }
        }
    }

    /// Returns true if the descriptions that have arrived are whole. From this call on, the descriptions are
    /// fixed.
    pub fn is_described(&mut self) -> bool {
        if let Description::Coming { head, json } = &mut self.description {
            let is_good = |json: &RecordingJson| json.is_good() && json.page_size == PAGE;
            let json = json.parsed::<RecordingJson>().filter(is_good);
            let sections = trace_dat::sections(&head.bytes, PAGE).ok().filter(|_| !head.is_damaged);
            self.description = match json.zip(sections) {
                Some((json, sections)) => {
                    let head = std::mem::take(&mut head.bytes);
                    Description::Whole { head, sections, json: Box::new(json) }
                }
                None => Description::Damaged,
            };
        }
        matches!(self.description, Description::Whole { .. })
    }

    /// Returns true if the guest has said that the recording has ended.
    pub fn is_ended(&self) -> bool {
        !self.end.bytes.is_empty() || self.end.is_damaged
    }

    /// Returns the recording as a file with this name, or `None` if the guest has not sent its descriptions.
    pub fn finish(mut self, name: &str, small: &mut u32) -> Option<GuestFile> {
        self.is_described();
        let Description::Whole { head, sections, json } = self.description else { return None };
        for pages in self.cpus.values_mut() {
            self.damaged += u64::from(!pages.end_page(small));
        }
        let mut damage = Vec::new();
        if self.damaged > 0 {
            let damaged = self.damaged;
            damage.push(format!(
                "{damaged} pages or parts that the guest sent are not whole, or not in pieces of {PIECE} bytes"
            ));
        }
        let beyond: u64 = self.cpus.values().map(|pages| pages.beyond).sum();
        if beyond > 0 {
            damage.push(format!(
                "{beyond} pages of at most {PIECE} bytes are left out: a session has places for {MAX_SMALL}, shared by its \
                 clients; record the guest's kernel for a shorter time"
            ));
        }
        let end = self.end.parsed::<EndJson>();
        let recovered = end.is_none();
        let end = end.unwrap_or_default();
        let (guest, frequency) = (Some((self.clock, self.client)), self.frequency);
        let map = readings_map(&json, &end, frequency);
        let stolen = end.stolen_ms.zip(json.stolen_ms);
        let stolen = stolen.map(|(end, begin)| Duration::from_millis(end.saturating_sub(begin)));
        let (taken, names) = (&Taken::default(), String::new());
        let known = Known { guest, frequency, map, stolen, taken, recovered, names };
        let source = json.source;
        let ending = ending(*json, end, known);
        let (mut runs, mut events, mut pages, mut start) = (Vec::new(), BTreeMap::new(), 0u32, 0);
        let parts = trace_dat::parts(&head, &sections, &ending, |_, first| {
            start = first;
            let place = |cpu: &u32| {
                let offset = start + u64::from(pages) * PAGE as u64;
                let own = self.cpus.remove(cpu).unwrap_or_default();
                runs.extend(own.runs.iter().map(|run| Run { page: pages + run.page, ..*run }));
                pages += own.pages;
                events.insert(*cpu, own.events);
                if let Some(byte) = own.wrong {
                    damage.push(format!(
                        "{name}: byte {byte} of CPU {cpu} begins no event; the pages before that byte were \
                         used"
                    ));
                }
                PageRange { cpu: *cpu, offset, bytes: u64::from(own.pages) * PAGE as u64 }
            };
            let places = Vec::from_iter(ending.cpus.iter().map(place));
            Ok::<_, Infallible>((places, start + u64::from(pages) * PAGE as u64))
        });
        let Ok(mut parts) = parts;
        if !self.cpus.is_empty() {
            let unnamed = self.cpus.len();
            damage
                .push(format!("pages of {unnamed} CPUs that the guest did not name are left out"));
        }
        let (end, tail) = parts.pop()?;
        let mut head = Vec::new();
        for (at, part) in parts {
            head.resize(at as usize, 0);
            head.extend(part);
        }
        head.resize(start as usize, 0);
        runs.shrink_to_fit();
        let contents = Contents { events: vec![events], damage };
        let summary = ending.summary(name.into(), source, contents);
        let bytes = end + tail.len() as u64;
        Some(GuestFile { summary, head, start, runs, end, tail, bytes })
    }
}

impl CpuPages {
    /// Adds a piece. Returns false if the page before the piece's page is not whole.
    fn add(&mut self, piece: &Piece<'_>, location: PieceLocation, small: &mut u32) -> bool {
        let (number, at) = (piece.at / PAGE as u64, (piece.at % PAGE as u64) as usize);
        let mut is_whole = true;
        if self.number != Some(number) {
            is_whole = self.end_page(small);
            self.is_after_gap |= number != self.number.map_or(0, |last| last + 1);
            self.number = Some(number);
        }
        // If a piece of a page is missing or is shorter than `PIECE`, the later pieces of the page are
        // ignored, so the page never becomes whole. Shorter pieces would need more locations.
        let len = piece.bytes.len();
        if at != self.page.len() || at % PIECE != 0 || len > PIECE || len == 0 {
            return is_whole;
        }
        self.page.extend_from_slice(piece.bytes);
        let page = self.pages;
        if let Some(run) = self.runs.last_mut().filter(|run| run.page == page)
            && let Some(step) = run.step_to(location)
        {
            run.step = step;
            run.len += len as u16;
        } else {
            let PieceLocation { file, at } = location;
            self.runs.push(Run { at, file, step: 0, page, len: len as u16, is_after_gap: false });
        }
        is_whole
    }

    /// Ends the page whose pieces have arrived. Returns false if the page is not whole.
    fn end_page(&mut self, small: &mut u32) -> bool {
        if self.number.is_none() {
            return true;
        }
        let CpuPages { page, runs, pages, .. } = self;
        let first = runs.partition_point(|run| run.page < *pages);
        let is_whole = page.len() > ring_page::HEADER && ring_page::is_whole(page);
        let has_room = page.len() > PIECE || *small > 0;
        if is_whole && self.wrong.is_none() && !has_room {
            self.beyond += 1;
        } else if is_whole && self.wrong.is_none() {
            *small -= u32::from(page.len() <= PIECE);
            page.resize(PAGE, 0);
            runs[first].is_after_gap = self.is_after_gap;
            match ring_page::count(page) {
                Ok(events) => {
                    self.events += events;
                    *pages += 1;
                }
                Err(offset) => {
                    self.wrong = Some(u64::from(*pages) * PAGE as u64 + offset as u64);
                }
            }
        }
        self.is_after_gap = !is_whole || !has_room;
        runs.truncate(runs.partition_point(|run| run.page < *pages));
        page.clear();
        is_whole
    }
}

impl Run {
    /// If a next piece at `location` belongs to this run, returns the distance between the pieces of the run.
    fn step_to(&self, location: PieceLocation) -> Option<u32> {
        let pieces = u64::from(self.len) / PIECE as u64;
        let distance = location.at.checked_sub(self.at)?;
        let step = u32::try_from(distance.checked_div(pieces)?).ok()?;
        let fits = self.file == location.file
            && u64::from(step) * pieces == distance
            && (pieces == 1 || step == self.step);
        fits.then_some(step)
    }
}

/// The file of a guest's recording. The file is a trace.dat, but its pages are still in the stream files, in
/// which their pieces arrived.
#[derive(Debug)]
pub struct GuestFile {
    /// Contents of the file. The path in the contents is the file's name.
    pub summary: Summary,
    /// The bytes before the pages.
    head: Vec<u8>,
    /// Offset of the first page.
    start: u64,
    runs: Vec<Run>,
    /// Offset of the end of the pages.
    end: u64,
    /// The bytes after the pages.
    tail: Vec<u8>,
    bytes: u64,
}

impl GuestFile {
    /// Returns the size of the file in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Frees the memory of all parts of the file but the pages. After this call, only the pages can be read.
    pub fn keep_pages(&mut self) {
        (self.head, self.tail) = (Vec::new(), Vec::new());
    }

    /// Fills `bytes` with the file's bytes from the offset `at` on. Returns the number of filled bytes, which
    /// is smaller than `bytes` only at the file's end. `read` reads a piece of a page from its location.
    ///
    /// # Errors
    /// The errors of `read`.
    pub fn read_at<E>(
        &self,
        bytes: &mut [u8],
        at: u64,
        mut read: impl FnMut(&mut [u8], PieceLocation) -> Result<(), E>,
    ) -> Result<usize, E> {
        let mut done = 0;
        while done < bytes.len() {
            let (at, rest) = (at + done as u64, &mut bytes[done..]);
            let mut page;
            let from = if at < self.start {
                self.head.get(at as usize..).unwrap_or_default()
            } else if at < self.end {
                let (number, from) =
                    ((at - self.start) / PAGE as u64, (at - self.start) as usize % PAGE);
                if from == 0 && rest.len() >= PAGE {
                    self.read_page(number as u32, &mut rest[..PAGE], &mut read)?;
                    done += PAGE;
                    continue;
                }
                page = [0; PAGE];
                self.read_page(number as u32, &mut page, &mut read)?;
                &page[from..]
            } else {
                self.tail.get((at - self.end) as usize..).unwrap_or_default()
            };
            if from.is_empty() {
                break;
            }
            let len = from.len().min(rest.len());
            rest[..len].copy_from_slice(&from[..len]);
            done += len;
        }
        Ok(done)
    }

    /// Fills `page` with a page.
    fn read_page<E>(
        &self,
        number: u32,
        page: &mut [u8],
        read: &mut impl FnMut(&mut [u8], PieceLocation) -> Result<(), E>,
    ) -> Result<(), E> {
        let (mut filled, mut is_after_gap) = (0, false);
        let first = self.runs.partition_point(|run| run.page < number);
        for run in self.runs[first..].iter().take_while(|run| run.page == number) {
            let end = filled + usize::from(run.len);
            for (piece, n) in page[filled..end].chunks_mut(PIECE).zip(0..) {
                read(
                    piece,
                    PieceLocation { file: run.file, at: run.at + n * u64::from(run.step) },
                )?;
            }
            filled = end;
            is_after_gap |= run.is_after_gap;
        }
        page[filled..].fill(0);
        if is_after_gap && let Some(commit) = ring_page::length(page) {
            // More events are missing than the kernel has counted, and nobody knows the number of missing
            // events.
            let commit = (commit | ring_page::MISSED) & !ring_page::MISSED_STORED;
            page[8..ring_page::HEADER].copy_from_slice(&commit.to_ne_bytes());
        }
        Ok(())
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
pub(crate) mod tests {
    use super::*;
    use crate::source::Source;
    use crate::state::VERSION;

    const EVENTS: usize = 200;

    /// Returns the used part of a page with `events` events of 8 bytes.
    fn page(events: usize) -> Vec<u8> {
        let mut page = vec![0; ring_page::HEADER];
        page[0] = 1;
        page[8..16].copy_from_slice(&(8 * events as u64).to_ne_bytes());
        (0..events).for_each(|_| page.extend([1, 0, 0, 0, 7, 7, 7, 7]));
        page
    }

    pub(crate) fn json() -> RecordingJson {
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

    pub(crate) fn head() -> Vec<u8> {
        trace_dat::Description { page_size: 4096, ..Default::default() }.to_bytes()
    }

    /// Returns the pieces of a file.
    fn pieces<'a>(file: &'a str, at: u64, bytes: &'a [u8]) -> impl Iterator<Item = Piece<'a>> {
        let parts = (at..).step_by(PIECE).zip(bytes.chunks(PIECE));
        parts.map(move |(at, part)| Piece::new(7, file, at, part))
    }

    /// The two files of a stream. In these files, bytes that belong to no piece precede each piece.
    struct Sent {
        assembly: Assembly,
        small: u32,
        files: [Vec<u8>; 2],
    }

    impl Sent {
        fn new() -> Sent {
            let assembly = Assembly::new((4, 1_000_000_000), 9);
            Sent { assembly, small: MAX_SMALL, files: Default::default() }
        }

        /// Begins a recording with its descriptions.
        fn described(json: &RecordingJson) -> Sent {
            let mut sent = Sent::new();
            sent.describe(json);
            sent
        }

        fn describe(&mut self, json: &RecordingJson) {
            let json = serde_json::to_vec(json).unwrap();
            pieces(HEAD, 0, &head()).chain(pieces(JSON, 0, &json)).for_each(|p| self.send(&p, 0));
        }

        fn send(&mut self, piece: &Piece<'_>, file: u32) {
            let to = &mut self.files[file as usize];
            to.extend([0xee; 72]);
            let location = PieceLocation { file, at: to.len() as u64 };
            self.assembly.add(piece, location, &mut self.small);
            to.extend(piece.bytes);
        }

        fn send_all(&mut self, file: &str, at: u64, bytes: &[u8]) {
            pieces(file, at, bytes).for_each(|piece| self.send(&piece, 0));
        }

        /// Ends the recording, and returns the file with its bytes.
        fn finish(mut self) -> Option<(GuestFile, Vec<u8>)> {
            let file = self.assembly.finish("guest.dat", &mut self.small)?;
            let files = self.files;
            let read = |into: &mut [u8], location: PieceLocation| {
                let from = location.at as usize;
                into.copy_from_slice(&files[location.file as usize][from..from + into.len()]);
                Ok::<_, Infallible>(())
            };
            let mut bytes = vec![0xee; file.bytes() as usize + 1];
            assert_eq!(file.read_at(&mut bytes, 0, read), Ok(file.bytes() as usize));
            bytes.pop();
            // Reads the same bytes in parts whose size is not the size of a page.
            let mut parts = vec![0; bytes.len()];
            for (part, at) in parts.chunks_mut(1_000).zip((0..).step_by(1_000)) {
                assert_eq!(file.read_at(part, at, read), Ok(part.len()));
            }
            assert!(parts == bytes);
            Some((file, bytes))
        }
    }

    #[test]
    fn pages_of_a_cpu_that_the_descriptions_do_not_name_are_said_to_be_left_out() {
        let mut sent = Sent::described(&RecordingJson { cpus: vec![0], ..json() });
        ["cpu0", "cpu1"].iter().for_each(|cpu| sent.send_all(cpu, 0, &page(EVENTS)));

        let summary = sent.finish().unwrap().0.summary;

        assert_eq!(summary.asked.events, EVENTS as u64);
        assert_eq!(summary.damage, ["pages of 1 CPUs that the guest did not name are left out"]);
    }

    #[test]
    fn the_time_that_the_guests_kernel_counts_as_taken_is_in_the_file() {
        let file = |begin, end| {
            let mut sent = Sent::described(&RecordingJson { stolen_ms: begin, ..json() });
            let end = EndJson { stolen_ms: end, ..EndJson::default() };
            sent.send_all(END, 0, &serde_json::to_vec(&end).unwrap());
            String::from_utf8_lossy(&sent.finish().unwrap().1).into_owned()
        };
        assert!(file(Some(70), Some(100)).contains("; stolen_ms=30"));
        // A guest may send any numbers, such as a time that decreases.
        assert!(file(Some(100), Some(70)).contains("; stolen_ms=0"));
        assert!(!file(None, Some(70)).contains("stolen_ms"));
        assert!(!file(Some(100), None).contains("stolen_ms"));
    }

    #[test]
    fn pieces_of_several_cpus_are_the_file() {
        let mut sent = Sent::described(&json());
        for n in 0..3 {
            for cpu in ["cpu0", "cpu1"] {
                sent.send_all(cpu, n * PAGE as u64, &page(EVENTS));
            }
        }

        let (file, bytes) = sent.finish().unwrap();

        let summary = &file.summary;
        assert_eq!((summary.asked.events, &*summary.damage), (6 * EVENTS as u64, &[][..]));
        let text = String::from_utf8_lossy(&bytes);
        assert!(
            text.contains("; guest_clock=4; guest_client=9"),
            "its clock and its client are known"
        );
        assert!(!text.contains("threads=1") && !text.contains('\u{1b}'), "nothing is forged");
        let whole = page(EVENTS);
        assert_eq!(bytes.chunks(PAGE).filter(|part| part.starts_with(&whole)).count(), 6);
    }

    #[test]
    fn a_page_is_found_wherever_its_pieces_lie() {
        let mut sent = Sent::described(&json());
        let pages = [page(400), page(401), page(402)];
        // The pieces of the first page are in one file, the pieces of the second page in two files, and the
        // pieces of the third page at unequal distances.
        sent.send_all("cpu0", 0, &pages[0]);
        for (piece, file) in pieces("cpu0", PAGE as u64, &pages[1]).zip([0, 1].into_iter().cycle())
        {
            sent.send(&piece, file);
        }
        for (n, piece) in pieces("cpu0", 2 * PAGE as u64, &pages[2]).enumerate() {
            sent.files[0].resize(sent.files[0].len() + 2 * n * n, 0);
            sent.send(&piece, 0);
        }

        let (file, bytes) = sent.finish().unwrap();

        let found = pages.map(|page| bytes.chunks(PAGE).position(|part| part.starts_with(&page)));
        let at = found[0].unwrap();
        assert_eq!(found, [Some(at), Some(at + 1), Some(at + 2)]);
        let runs = |page| file.runs.iter().filter(|run| run.page == page).count();
        assert_eq!([0, 1, 2].map(runs), [1, 4, 2], "{:?}", file.runs);
    }

    #[test]
    fn a_page_without_one_of_its_pieces_is_left_out_and_the_next_one_says_so() {
        let mut sent = Sent::described(&json());
        let whole = page(EVENTS);
        for (n, left_out) in
            [(0, None), (1, Some(1)), (2, None), (4, None), (5, Some(0)), (6, None)]
        {
            for (piece, part) in (0..).zip(pieces("cpu0", n * PAGE as u64, &whole)) {
                if left_out != Some(piece) {
                    sent.send(&part, 0);
                }
            }
        }

        let (file, bytes) = sent.finish().unwrap();

        let summary = file.summary;
        assert_eq!(
            (summary.asked.events, summary.damage.len()),
            (4 * EVENTS as u64, 1),
            "{summary:?}"
        );
        assert!(summary.damage[0].starts_with("2 pages"), "{summary:?}");
        let pages = bytes.chunks(PAGE).filter(|page| page[16..24] == whole[16..24]);
        let gaps: Vec<bool> = pages.map(|page| page[11] & 0x80 != 0).collect();
        assert_eq!(gaps, [false, true, true, true]);
    }

    #[test]
    fn the_kernels_count_of_missing_events_stays_in_the_file() {
        let mut sent = Sent::described(&json());
        let mut lossy = page(EVENTS);
        let commit = (8 * EVENTS as u64) | ring_page::MISSED | ring_page::MISSED_STORED;
        lossy[8..16].copy_from_slice(&commit.to_ne_bytes());
        lossy.extend(1234u64.to_ne_bytes());
        sent.send_all("cpu0", 0, &lossy);

        let (GuestFile { summary, .. }, bytes) = sent.finish().unwrap();

        assert_eq!((summary.asked.events, &*summary.damage), (EVENTS as u64, &[][..]));
        assert!(bytes.windows(lossy.len()).any(|part| part == lossy));
    }

    #[test]
    fn a_guest_that_sends_anything_harms_only_its_own_recording() {
        let large = RecordingJson { page_size: 65536, ..json() };
        let many = RecordingJson { cpus: vec![0; 9000], ..json() };
        for json in [large, many] {
            let mut sent = Sent::described(&json);
            for file in ["cpu0", "cpu8192", "cpu-1", "../kernel.dat", "", "cpu00"] {
                for at in [0, 3, u64::MAX, u64::MAX - 4095] {
                    for bytes in [&[][..], &[0; 16], &[255; 1024]] {
                        sent.send(&Piece::new(7, file, at, bytes), 0);
                    }
                }
            }

            assert!(sent.finish().is_none());
        }
    }

    #[test]
    fn pages_that_are_not_whole_and_those_after_damage_take_no_memory() {
        let mut sent = Sent::described(&json());
        let (whole, mut wrong) = (page(EVENTS), page(1));
        // A record longer than its page.
        wrong[ring_page::HEADER] = 28;
        for n in 0..1_000 {
            let at = n * PAGE as u64;
            (0..9).for_each(|_| sent.send(&Piece::new(7, "cpu0", at, &[]), 0));
            sent.send_all("cpu0", at, &page(EVENTS)[..1_024]);
            sent.send_all("cpu1", at, if n == 0 { &wrong } else { &whole });
        }
        let held = |cpu: &u32| sent.assembly.cpus[cpu].runs.len();
        assert_eq!((held(&0), held(&1)), (1, 1), "those of the last page");

        let (file, _) = sent.finish().unwrap();

        assert_eq!((file.summary.asked.events, file.runs.len()), (0, 0));
        assert!(file.summary.damage[1].starts_with("guest.dat: byte 16 of CPU 1 begins no event"));
    }

    #[test]
    fn a_page_in_shorter_pieces_takes_no_memory() {
        let mut sent = Sent::described(&json());
        for n in 0..100 {
            let page = page(EVENTS);
            for (at, part) in (n * PAGE as u64..).zip(page.chunks(1)) {
                sent.send(&Piece::new(7, "cpu0", at, part), 0);
            }
            assert!(sent.assembly.cpus[&0].runs.len() <= 1);
            sent.send_all("cpu1", n * PAGE as u64, &page);
        }

        let (file, _) = sent.finish().unwrap();

        assert_eq!((file.summary.asked.events, file.runs.len()), (100 * EVENTS as u64, 100));
        assert!(file.summary.damage[0].starts_with("100 pages or parts"), "{:?}", file.summary);
    }

    #[test]
    fn small_pages_beyond_their_number_are_left_out_and_the_next_one_says_so() {
        let mut sent = Sent { small: 10, ..Sent::described(&json()) };
        let large = page(EVENTS);
        for n in 0..100 {
            sent.send_all("cpu0", n * PAGE as u64, &page(1));
            sent.send_all("cpu1", n * PAGE as u64, &large);
        }
        sent.send_all("cpu0", 100 * PAGE as u64, &large);

        let (file, bytes) = sent.finish().unwrap();

        let Summary { asked, damage, .. } = &file.summary;
        assert_eq!((asked.events, file.runs.len()), (10 + 101 * EVENTS as u64, 111));
        assert_eq!(damage.len(), 1);
        assert!(damage[0].starts_with("90 pages of at most 1024 bytes"), "{damage:?}");
        let pages = bytes.chunks(PAGE).filter(|page| page[16..24] == large[16..24]);
        let gaps = Vec::from_iter(pages.map(|page| page[11] & 0x80 != 0));
        assert_eq!(gaps.iter().position(|is_gap| *is_gap), Some(10), "{gaps:?}");
        assert_eq!(gaps.iter().filter(|is_gap| **is_gap).count(), 1);
    }

    #[test]
    fn descriptions_with_options_of_the_guests_own_are_no_recording() {
        let own = [&[0; 2][..], &[0; 6], &8u64.to_ne_bytes(), &[0; 8]].concat();
        let whole = head();
        let mut compressed = whole.clone();
        // The flag in the header of the first section says that the section is compressed.
        let first = whole.windows(2).position(|id| id == 16u16.to_ne_bytes()).unwrap();
        compressed[first + 2] = 1;
        let mut named = whole.clone();
        let name = whole.windows(4).position(|name| name == b"none").unwrap();
        named[name..name + 4].copy_from_slice(b"zstd");
        for head in [[whole, own].concat(), compressed, named] {
            let mut sent = Sent::described(&json());
            sent.send_all(HEAD, 0, &head);
            sent.send_all("cpu0", 0, &page(EVENTS));

            assert!(sent.finish().is_none());
        }
    }

    #[test]
    fn pages_without_descriptions_are_none() {
        let mut sent = Sent::new();
        for n in 0..9 {
            sent.send_all("cpu0", n * PAGE as u64, &page(1));
        }
        sent.describe(&json());

        assert!(sent.assembly.cpus.is_empty());
        assert!(sent.finish().is_none());
    }

    #[test]
    fn descriptions_are_bounded() {
        let mut sent = Sent::described(&json());
        let all = vec![b' '; MAX_HEAD + PIECE];
        sent.send_all(HEAD, 0, &all);
        let Description::Coming { head, .. } = &sent.assembly.description else { panic!() };
        assert_eq!(head.bytes.len(), 8 << 20);

        assert!(sent.finish().is_none());
    }
}
