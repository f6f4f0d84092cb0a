//! Relates the recordings of a host and its guests in the same way as trace-cmd: adds options to the finished
//! files.

use crate::error::Error;
use crate::trace_dat::{PLACE_OF_OPTIONS, SECTION, is_plain, option, section, section_header};
use hypertrace_format::folder::{Folder, check_size, read_at, write_at};
use hypertrace_format::trace_dat::id;
use rustix::fs::OFlags;
use std::ffi::OsStr;
use std::io;
use std::os::fd::OwnedFd;

/// TRACECMD_TSYNC_FLAG_INTERPOLATE: readers interpolate the correction between two times.
const ON_A_LINE: u32 = 1;

/// Maximum size of the options section in bytes. The section grows with the number of CPUs.
const MAX_OPTIONS: usize = 16 << 20;

/// The recording of a host.
#[derive(Clone, Copy, Debug)]
pub struct HostRecording<'a> {
    /// Name of the file.
    pub file: &'a OsStr,
    /// TRACEID of the file.
    pub id: u64,
    /// TSC2NSEC of the file: a factor and a shift.
    pub scale: (u32, u32),
}

/// The recording of a guest of this host.
#[derive(Clone, Debug)]
pub struct GuestRecording<'a> {
    /// Name of the file.
    pub file: &'a OsStr,
    /// Name of the guest.
    pub name: String,
    /// For each CPU of the guest, the id of the host's thread that runs this CPU, or 0 if the thread is
    /// unknown.
    pub threads: Vec<u32>,
    /// Corrections from the guest's ticks to the host's ticks, in the order of their times. Each entry is a
    /// time of the guest, and the ticks to add at this time.
    pub corrections: Vec<(u64, i64)>,
}

/// Adds options to finished files, so that trace-cmd(1) shows the events of all these files in one order. All
/// files must come from this crate. The host's file gets one option GUEST for each guest. Each guest's file
/// gets a TRACEID, the relation to the host's clock (TIME_SHIFT), and TSC2NSEC.
///
/// # Errors
/// If one of the files was not made by this crate, or cannot be written. All files remain readable, even the
/// files that were already written.
pub fn relate(
    folder: &Folder,
    host: HostRecording<'_>,
    guests: &[GuestRecording<'_>],
) -> Result<(), Error> {
    let mut of_host = Vec::new();
    // The guests' traces get new ids, because a guest could have chosen the id of another trace.
    for (id, guest) in (host.id.wrapping_add(1)..).zip(guests) {
        let cpus = guest.threads.len() as u32;
        let mut data = guest.name.replace('\0', "").into_bytes();
        data.push(0);
        data.extend(id.to_ne_bytes());
        data.extend(cpus.to_ne_bytes());
        for (cpu, thread) in (0..cpus).zip(&guest.threads) {
            data.extend([cpu, *thread].map(u32::to_ne_bytes).concat());
        }
        option(&mut of_host, id::GUEST, &data);

        let mut options = Vec::new();
        option(&mut options, id::TRACEID, &id.to_ne_bytes());
        option(&mut options, id::TIME_SHIFT, &time_shift(host.id, guest));
        let (factor, shift) = host.scale;
        let data = [&factor.to_ne_bytes()[..], &shift.to_ne_bytes(), &0u64.to_ne_bytes()].concat();
        option(&mut options, id::TSC2NSEC, &data);
        add(folder, guest.file, options)?;
    }
    add(folder, host.file, of_host)
}

/// Returns the contents of TIME_SHIFT. All CPUs have the same corrections.
fn time_shift(host: u64, guest: &GuestRecording<'_>) -> Vec<u8> {
    let mut data = host.to_ne_bytes().to_vec();
    data.extend([ON_A_LINE, guest.threads.len() as u32].map(u32::to_ne_bytes).concat());
    let corrections = &guest.corrections;
    let mut cpu = (corrections.len() as u32).to_ne_bytes().to_vec();
    cpu.extend(corrections.iter().flat_map(|(time, _)| time.to_ne_bytes()));
    cpu.extend(corrections.iter().flat_map(|(_, offset)| offset.to_ne_bytes()));
    // The factors are 1, because trace-cmd's multiplication has only 64 bits. The corrections already contain
    // the difference of the rates.
    cpu.extend(corrections.iter().flat_map(|_| 1u64.to_ne_bytes()));
    guest.threads.iter().for_each(|_| data.extend(&cpu));
    data
}

/// Adds options to a file, in a new section after the file's end. The file refers to the new section only
/// when the section is whole.
fn add(folder: &Folder, name: &OsStr, mut options: Vec<u8>) -> Result<(), Error> {
    let failed =
        |action| move |source| Error::File { action, path: folder.path().join(name), source };
    let (file, stat) = folder.file(name, OFlags::RDWR).map_err(failed("open"))?;
    let last = place_of_next(&file).map_err(failed("read"))?.ok_or_else(|| {
        let why = "it has no options of a trace.dat of version 7 that is not compressed";
        failed("add to")(io::Error::new(io::ErrorKind::InvalidData, why))
    })?;
    option(&mut options, id::OPTIONS, &0u64.to_ne_bytes());
    let mut bytes = Vec::new();
    section(&mut bytes, id::OPTIONS, &options);
    let end = u64::try_from(stat.st_size).unwrap_or(0);
    check_size(end + bytes.len() as u64).map_err(failed("write"))?;
    write_at(&file, &bytes, end).map_err(failed("write"))?;
    write_at(&file, &end.to_ne_bytes(), last).map_err(failed("write"))
}

/// Returns the offset of the field that will hold the offset of a second options section. Returns `None` if
/// the file has a second options section already, or if this crate has not made the file.
fn place_of_next(file: &OwnedFd) -> io::Result<Option<u64>> {
    let mut begin = [0; PLACE_OF_OPTIONS + 8];
    read_at(file, &mut begin, 0)?;
    let (head, place) = begin.split_at(PLACE_OF_OPTIONS);
    let at = place.try_into().map_or(0, u64::from_ne_bytes);
    let mut header = [0; SECTION];
    read_at(file, &mut header, at)?;
    let size = header[8..].try_into().map_or(0, u64::from_ne_bytes);
    let is_ours = is_plain(head) && header == section_header(id::OPTIONS, size);
    let mut options = vec![0; usize::try_from(size).unwrap_or(usize::MAX).min(MAX_OPTIONS)];
    if !is_ours || read_at(file, &mut options, at + SECTION as u64)? as u64 != size {
        return Ok(None);
    }
    // Each option takes at least 6 bytes.
    let mut rest = &options[..];
    while let Some((&[a, b, c, d, e, f], data)) = rest.split_first_chunk() {
        let size = u32::from_ne_bytes([c, d, e, f]) as usize;
        if u16::from_ne_bytes([a, b]) == id::OPTIONS {
            let place = at + (SECTION + options.len() - data.len()) as u64;
            return Ok(data.starts_with(&[0; 8]).then_some(place));
        }
        let Some(after) = data.get(size..) else { break };
        rest = after;
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace_dat::Description;
    use hypertrace_format::folder::Share;
    use std::fs;
    use std::path::{Path, PathBuf};

    /// Makes a file without events. Another part of the file follows the options.
    fn file(dir: &Path, name: &str) -> (PathBuf, Vec<u8>) {
        let mut file = Description { page_size: 4096, ..Default::default() }.to_bytes();
        let at = file.len() as u64;
        file[PLACE_OF_OPTIONS..PLACE_OF_OPTIONS + 8].copy_from_slice(&at.to_ne_bytes());
        let mut options = Vec::new();
        option(&mut options, id::CPUCOUNT, &2u32.to_ne_bytes());
        option(&mut options, id::OPTIONS, &0u64.to_ne_bytes());
        section(&mut file, id::OPTIONS, &options);
        file.extend([7; 5]);
        let path = dir.join(name);
        fs::write(&path, &file).unwrap();
        (path, file)
    }

    /// Returns the bytes that were added to the end of a file. Checks that the rest of the file is unchanged,
    /// except for the offset of more options.
    fn added(path: &Path, before: &[u8]) -> Vec<u8> {
        let mut after = fs::read(path).unwrap();
        let added = after.split_off(before.len());
        let place = before.len() - 5 - 8;
        assert_eq!(after[place..place + 8], (before.len() as u64).to_ne_bytes());
        after[place..place + 8].fill(0);
        assert_eq!(after, before);
        added
    }

    #[test]
    fn files_get_options_in_the_form_of_trace_cmd() {
        let dir = tempfile::tempdir().unwrap();
        let (host, of_host) = file(dir.path(), "host");
        let (guest, of_guest) = file(dir.path(), "guest");
        let corrections = vec![(100, 5), (300, -7)];
        let file = "guest".as_ref();
        let recording =
            GuestRecording { file, name: "g\0".into(), threads: vec![0, 77], corrections };
        let folder = Folder::open(dir.path(), Share::Owner).unwrap();

        let of = HostRecording { file: "host".as_ref(), id: 0x1000, scale: (3, 2) };
        relate(&folder, of, &[recording]).unwrap();

        // Each entry has a number and the number's size in bytes: 1 for a byte, and 4 for a u32.
        let words = |words: &[(u8, u64)]| -> Vec<u8> {
            let bytes = |(size, word): &(u8, u64)| word.to_le_bytes()[..*size as usize].to_vec();
            words.iter().flat_map(bytes).collect()
        };
        let section = |options: Vec<u8>| {
            let size = options.len() as u64 + 14;
            let last = words(&[(2, 0), (4, 8), (8, 0)]);
            [words(&[(8, 0), (8, size)]), options, last].concat()
        };
        let cpus = [(4, 0), (4, 0), (4, 1), (4, 77)];
        let named = [(2, 13), (4, 30), (1, b'g'.into()), (1, 0), (8, 0x1001), (4, 2)];
        assert_eq!(added(&host, &of_host), section(words(&[&named[..], &cpus].concat())));
        let minus = (-7i64) as u64;
        let cpu = [(4, 2), (8, 100), (8, 300), (8, 5), (8, minus), (8, 1), (8, 1)];
        let shift = [(2, 12), (4, 120), (8, 0x1000), (4, 1), (4, 2)];
        let scale = [(2, 14), (4, 16), (4, 3), (4, 2), (8, 0)];
        let expected = [&[(2, 11), (4, 8), (8, 0x1001)], &shift[..], &cpu, &cpu, &scale].concat();
        assert_eq!(added(&guest, &of_guest), section(words(&expected)));
    }

    #[test]
    fn another_file_does_not_change() {
        let dir = tempfile::tempdir().unwrap();
        let (path, whole) = file(dir.path(), "host");
        let folder = Folder::open(dir.path(), Share::Owner).unwrap();
        let (at, end) = (whole.len() - 5, whole.len());
        let mut damaged = vec![Vec::new(), whole[..9].to_vec(), whole[..at - 1].to_vec()];
        // A change of the byte at each place makes one fault: version 6, a compressed file, options at
        // another place, another section, a wrong size, a wrong size of an option, and more options.
        for place in [10, 18, PLACE_OF_OPTIONS, end - 5 - 40, end - 5 - 31, end - 5 - 22, at - 1] {
            let mut other = whole.clone();
            other[place] ^= 1;
            damaged.push(other);
        }
        for other in damaged {
            fs::write(&path, &other).unwrap();

            let host = HostRecording { file: "host".as_ref(), id: 1, scale: (1, 0) };
            relate(&folder, host, &[]).unwrap_err();

            assert_eq!(fs::read(&path).unwrap(), other);
        }
    }
}
