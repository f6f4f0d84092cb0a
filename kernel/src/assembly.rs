//! The recording of a guest's kernel, put together from the pieces that its guest has sent.
//!
//! Everything here was written by the guest: sizes are bounded, and what does not fit is damage.

use crate::complete::{Of, Summary, Taken, complete};
use crate::error::Error;
use crate::forward::Piece;
use crate::page;
use crate::state::{
    self, END, EndJson, HEAD, JSON, MOST_HEAD, MOST_JSON, RecordingJson, State, cpu_file, open_dir,
};
use crate::stats::MOST_CPUS;
use crate::threads::Names;
use hypertrace_trace::Share;
use hypertrace_trace::ctf::folder::write_at;
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::path::Path;

/// Bit of a page's count of bytes: the kernel says so that events are missing before the page.
const MISSED: u64 = 1 << 31;

/// A guest's recording that is put together in a session's directory.
#[derive(Debug)]
pub struct Assembly {
    state: State,
    head: Text,
    json: Text,
    end: Text,
    cpus: BTreeMap<u32, Pages>,
    /// File of the CPU whose page was the last.
    file: Option<(u32, OwnedFd)>,
    /// Pages of which a part is missing, and pieces that are none.
    damaged: u64,
}

/// A file that is small.
#[derive(Debug, Default)]
struct Text {
    bytes: Vec<u8>,
    is_damaged: bool,
}

/// The pages of a CPU.
#[derive(Debug, Default)]
struct Pages {
    /// Number of the page whose pieces come.
    number: u64,
    page: Vec<u8>,
    /// Whole pages in the file.
    written: u64,
    /// Whether pages are missing before this one.
    is_after_gap: bool,
}

impl Assembly {
    /// Begins a recording, the session's one of this number. `None`: its file was made before.
    ///
    /// # Errors
    /// [`Error::Busy`] if another process does the same. If the directory is another user's, or cannot be
    /// written.
    pub fn create(dir: &Path, number: usize) -> Result<Option<Assembly>, Error> {
        let dir = crate::recover::shared_as_is(open_dir(dir, Share::Owner)?);
        let state = State::create_guest(dir, number)?;
        Ok(state.map(|state| Assembly {
            state,
            head: Text::default(),
            json: Text::default(),
            end: Text::default(),
            cpus: BTreeMap::new(),
            file: None,
            damaged: 0,
        }))
    }

    /// Adds a piece. Those of a file come in order.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn add(&mut self, piece: &Piece<'_>) -> Result<(), Error> {
        match piece.file {
            HEAD => self.head.add(piece, MOST_HEAD),
            JSON => self.json.add(piece, MOST_JSON),
            END => self.end.add(piece, MOST_JSON),
            other => {
                let cpu = other.strip_prefix("cpu").and_then(|number| number.parse::<u32>().ok());
                match cpu.filter(|cpu| (*cpu as usize) < MOST_CPUS) {
                    Some(cpu) => return self.add_page(cpu, piece),
                    None => self.damaged += 1,
                }
            }
        }
        Ok(())
    }

    fn add_page(&mut self, cpu: u32, piece: &Piece<'_>) -> Result<(), Error> {
        // The guest's pages may have another size, which its description says.
        let Some(size) = self.json.parsed::<RecordingJson>().map(|json| json.page_size as u64)
        else {
            self.damaged += 1;
            return Ok(());
        };
        if !(4096..=65536).contains(&size) || !size.is_power_of_two() {
            self.damaged += 1;
            return Ok(());
        }
        let (number, at) = (piece.at / size, (piece.at % size) as usize);
        if self.cpus.get(&cpu).is_none_or(|pages| pages.number != number) {
            self.end_page(cpu, size)?;
            let pages = self.cpus.entry(cpu).or_default();
            let expected = if pages.page.is_empty() { pages.number } else { pages.number + 1 };
            pages.is_after_gap |= number != expected;
            pages.number = number;
            pages.page.clear();
        }
        let pages = self.cpus.entry(cpu).or_default();
        if at == pages.page.len() && at + piece.bytes.len() <= size as usize {
            pages.page.extend_from_slice(piece.bytes);
        } else {
            // The page is not whole at its end.
            pages.is_after_gap = true;
        }
        Ok(())
    }

    /// Writes the page whose pieces came, if it is whole.
    fn end_page(&mut self, cpu: u32, size: u64) -> Result<(), Error> {
        let Some(pages) = self.cpus.get_mut(&cpu).filter(|pages| !pages.page.is_empty()) else {
            return Ok(());
        };
        if page::used(&pages.page) != pages.page.len() {
            pages.is_after_gap = true;
            self.damaged += 1;
            return Ok(());
        }
        pages.page.resize(size as usize, 0);
        if pages.is_after_gap
            && let Some(count) = pages.page.get_mut(8..16)
        {
            let mut word = [0; 8];
            word.copy_from_slice(count);
            count.copy_from_slice(&(u64::from_le_bytes(word) | MISSED).to_le_bytes());
        }
        let folder = &self.state.folder;
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
        pages.written += size;
        pages.is_after_gap = false;
        Ok(())
    }

    /// Makes the file. `clock` is the session's clock of the guest, `frequency` its ticks per second.
    /// `None`: the guest has described nothing.
    ///
    /// # Errors
    /// If it is damaged, or cannot be written. Another process may try again.
    pub fn finish(mut self, clock: u32, frequency: u64) -> Result<Option<Summary>, Error> {
        let Some(json) = self.json.parsed::<RecordingJson>().filter(|_| !self.head.is_damaged)
        else {
            self.state.remove()?;
            return Ok(None);
        };
        let size = json.page_size as u64;
        for cpu in Vec::from_iter(self.cpus.keys().copied()) {
            self.end_page(cpu, size)?;
        }
        drop(self.file.take());
        self.state.begin(&self.head.bytes, &json)?;
        let end = self.end.parsed::<EndJson>();
        let recovered = end.is_none();
        if let Some(end) = end {
            self.state.end(&end)?;
        }
        let mut taken = Taken::default();
        if self.damaged > 0 {
            taken.damage.push(format!("{} pages or parts of the guest are damaged", self.damaged));
        }
        let of = Of::Guest { clock, frequency };
        complete(self.state, Names::default(), taken, recovered, of)
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
