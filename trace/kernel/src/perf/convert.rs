//! Converts perf's records to pages of the kernel's trace.

use super::records::{Record, first};
use super::records_file;
use crate::clock::{Clock, Map};
use crate::error::Error;
use crate::state::{RecordingJson, State, cpu_file, failed};
use crate::threads::Names;
use crate::trace_dat::{Description, Formats};
use hypertrace_format::folder::{read_at, write_at};
use hypertrace_format::ring_page::HEADER;
use rustix::fs::OFlags;
use std::io;
use std::os::fd::OwnedFd;

/// Type numbers of the events. A recording that perf made has no type numbers from the kernel, so these
/// numbers can be chosen freely.
const SWITCH_OUT: u16 = 1;
const SWITCH_IN: u16 = 2;

/// Two flags of a page. The first flag says that events are missing before the page. The second flag says
/// that the count of the missing events stands after the page's events.
const MISSED: u64 = 1 << 31 | 1 << 30;

/// Maximum size of one read from a file of records, in bytes.
const CHUNK: usize = 1 << 20;

/// Returns the descriptions of the two events.
pub(super) fn description(page_size: u32) -> Description {
    let format = |name: &str, id: u16, field: &str, text: &str| {
        let mut format = format!("name: {name}\nID: {id}\nformat:\n");
        let fields = [
            ("unsigned short common_type", 0, 2, 0),
            ("unsigned char common_flags", 2, 1, 0),
            ("unsigned char common_preempt_count", 3, 1, 0),
            ("int common_pid", 4, 4, 1),
            ("int pid", 8, 4, 1),
            ("int tid", 12, 4, 1),
            (field, 16, 4, 0),
        ];
        for (field, offset, size, signed) in fields.iter().filter(|field| !field.0.is_empty()) {
            format.push_str(&format!(
                "\tfield:{field};\toffset:{offset};\tsize:{size};\tsigned:{signed};\n"
            ));
            if *field == "int common_pid" {
                format.push('\n');
            }
        }
        format.push_str(&format!("\nprint fmt: {text}\n"));
        format.into_bytes()
    };
    let out = "\"pid=%d tid=%d preempted=%u\", REC->pid, REC->tid, REC->preempted";
    let into = "\"pid=%d tid=%d\", REC->pid, REC->tid";
    let events = [
        ("switch_out", format("switch_out", SWITCH_OUT, "unsigned int preempted", out)),
        ("switch_in", format("switch_in", SWITCH_IN, "", into)),
    ];
    let events = events.map(|(name, format)| (name.to_owned(), format)).into();
    let data = page_size as usize - HEADER;
    Description {
        header_page: format!(
            "\tfield: u64 timestamp;\toffset:0;\tsize:8;\tsigned:0;\n\
             \tfield: local_t commit;\toffset:8;\tsize:8;\tsigned:1;\n\
             \tfield: int overwrite;\toffset:8;\tsize:1;\tsigned:1;\n\
             \tfield: char data;\toffset:16;\tsize:{data};\tsigned:1;\n"
        )
        .into_bytes(),
        header_event: b"# compressed entry header\n\
            \ttype_len    :    5 bits\n\
            \ttime_delta  :   27 bits\n\
            \tarray       :   32 bits\n\n\
            \tpadding     : type == 29\n\
            \ttime_extend : type == 30\n\
            \ttime_stamp : type == 31\n\
            \tdata max type_len  == 28\n"
            .to_vec(),
        events: Formats::from([("perf".to_owned(), events)]),
        page_size,
        ..Description::default()
    }
}

/// Facts from the records of the CPUs for which the pages have no place.
#[derive(Debug, Default)]
pub(crate) struct Converted {
    /// Names of threads.
    pub names: String,
    pub damage: Vec<String>,
}

/// Converts each CPU's file of records into its file of pages. `map` converts times of perf's clock to ticks
/// of the counter.
pub(crate) fn convert(state: &State, json: &RecordingJson, map: &Map) -> Result<Converted, Error> {
    let folder = &state.folder;
    let stamp = |time| match json.clock {
        Clock::Tsc => map.ticks_of(time),
        Clock::MonotonicRaw => time,
    };
    let mut converted = Converted::default();
    let mut names = Names::default();
    for &cpu in &json.cpus {
        let name = records_file(cpu);
        let file = match folder.file(&name, OFlags::RDONLY) {
            Ok((file, _)) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(failed("open", folder, &name, error)),
        };
        let made = folder.new_file(cpu_file(cpu));
        let made = made.map_err(|e| failed("make", folder, &cpu_file(cpu), e))?;
        let mut pages = PageWriter::new(made, json.page_size);
        let mut at = 0u64;
        let mut chunk = vec![0; CHUNK];
        // Each iteration takes the next record, or ends the loop.
        'file: loop {
            let read = read_at(&file, &mut chunk, at);
            let read = read.map_err(|e| failed("read", folder, &name, e))?;
            let mut used = 0;
            loop {
                match first(&chunk[used..read]) {
                    Ok(Some((record, size))) => {
                        used += size;
                        let written = match record {
                            Some(Record::Switch { pid, tid, time, out, preempted }) => {
                                pages.event(stamp(time), &body(pid, tid, out, preempted))
                            }
                            Some(Record::Lost(n)) => pages.lost(n),
                            Some(Record::Name { tid, name }) => {
                                names.add(tid, &name);
                                Ok(())
                            }
                            None => Ok(()),
                        };
                        written.map_err(|e| failed("write", folder, &cpu_file(cpu), e))?;
                    }
                    Ok(None) => break,
                    Err(()) => {
                        let (path, byte) = (folder.path().join(&name), at + used as u64);
                        let why = "begins no record; the file was used up to it";
                        converted.damage.push(format!("{}: byte {byte} {why}", path.display()));
                        break 'file;
                    }
                }
            }
            // The rest of the file is an incomplete record: the writer was killed in the middle of the write.
            if used == 0 {
                break;
            }
            at += used as u64;
        }
        pages.flush().map_err(|e| failed("write", folder, &cpu_file(cpu), e))?;
    }
    converted.names = names.to_lines();
    Ok(converted)
}

/// Returns the fields of an event, as the event's format describes them.
fn body(pid: u32, tid: u32, out: bool, preempted: bool) -> Vec<u32> {
    let kind = if out { SWITCH_OUT } else { SWITCH_IN };
    // The lower half of the first word is the event's type.
    let mut words = vec![u32::from(kind).to_le(), tid, pid, tid];
    if out {
        words.push(u32::from(preempted));
    }
    words
}

/// A writer of pages.
struct PageWriter {
    file: OwnedFd,
    page: Vec<u8>,
    /// Offset of the end of the events in the page.
    at: usize,
    written: u64,
    /// Time of the last event in ticks.
    last: u64,
    /// Number of lost events before this page.
    lost: u64,
}

impl PageWriter {
    fn new(file: OwnedFd, page_size: usize) -> PageWriter {
        let page = vec![0; page_size];
        PageWriter { file, page, at: HEADER, written: 0, last: 0, lost: 0 }
    }

    /// Adds an event. perf writes events in their order, so an event with a lower time than the previous
    /// event gets the time of the previous event.
    fn event(&mut self, ticks: u64, words: &[u32]) -> io::Result<()> {
        let ticks = ticks.max(self.last);
        // An event takes its own words, one word for its header, and two words if much time has passed since
        // the previous event. If perf has lost events, the count of the lost events takes two more words.
        if self.at + 4 * (words.len() + 5) > self.page.len() {
            self.flush()?;
        }
        if self.at == HEADER {
            self.page[..8].copy_from_slice(&ticks.to_ne_bytes());
            self.last = ticks;
        }
        let mut delta = ticks - self.last;
        if delta >= 1 << 27 {
            self.word(30 | (delta as u32 & 0x7ff_ffff) << 5);
            self.word((delta >> 27) as u32);
            delta = 0;
        }
        self.word(words.len() as u32 | (delta as u32) << 5);
        words.iter().for_each(|word| self.word(*word));
        self.last = ticks;
        Ok(())
    }

    fn word(&mut self, word: u32) {
        self.page[self.at..self.at + 4].copy_from_slice(&word.to_ne_bytes());
        self.at += 4;
    }

    /// Notes that `events` events are missing before the next event.
    fn lost(&mut self, events: u64) -> io::Result<()> {
        self.flush()?;
        self.lost = self.lost.saturating_add(events);
        Ok(())
    }

    /// Writes the page, if it has events.
    fn flush(&mut self) -> io::Result<()> {
        if self.at == HEADER {
            return Ok(());
        }
        let mut commit = (self.at - HEADER) as u64;
        if self.lost > 0 {
            commit |= MISSED;
            let lost = self.lost.to_ne_bytes();
            self.page[self.at..self.at + 8].copy_from_slice(&lost);
        }
        self.page[8..16].copy_from_slice(&commit.to_ne_bytes());
        write_at(&self.file, &self.page, self.written)?;
        self.written += self.page.len() as u64;
        self.page.fill(0);
        (self.at, self.lost) = (HEADER, 0);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hypertrace_format::ring_page::count;

    #[test]
    fn pages_hold_all_events_and_say_where_some_are_missing() {
        let file = tempfile::tempfile().unwrap();
        let mut pages = PageWriter::new(file.try_clone().unwrap().into(), 4096);
        for n in 0..1000u64 {
            // Every tenth event follows the previous event after a long time.
            pages.event(n * 100 + n / 10 * (1 << 30), &body(1, 2, n % 2 == 0, false)).unwrap();
            if n == 499 {
                pages.lost(7).unwrap();
            }
        }

        pages.flush().unwrap();

        let mut bytes = vec![0; 1 << 20];
        let length = read_at(&file, &mut bytes, 0).unwrap();
        let pages: Vec<&[u8]> = bytes[..length].chunks(4096).collect();
        assert_eq!(pages.iter().map(|page| count(page).unwrap()).sum::<u64>(), 1000);
        let commit = |page: &&[u8]| u64::from_ne_bytes(page[8..16].try_into().unwrap());
        let flagged: Vec<_> = pages.iter().filter(|page| commit(page) & MISSED != 0).collect();
        assert_eq!(flagged.len(), 1);
        let end = HEADER + (commit(flagged[0]) & 0xfffff) as usize;
        assert_eq!(flagged[0][end], 7);
    }
}
