// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Traces of kernels whose numbers do not fit each other: what is counted, how far a bound goes, and
//! what is refused because it would need more memory than the file has bytes.

mod made;
#[path = "made/trace_dat.rs"]
mod trace_dat;

use hypertrace_timeline::{ClockMaps, Entry, Error, KernelTrace, Session, Timeline};
use made::{BOOT, Made, OTHER_BOOT};
use std::fs;
use trace_dat::*;

/// Reads a file alone: its entries and warnings.
fn read(file: &[u8]) -> Result<(Vec<Entry>, Vec<String>), Error> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("t.dat");
    fs::write(&path, file).unwrap();
    let traces = [KernelTrace::open(&path)?];
    let mut timeline = Timeline::with_kernel(&[], &traces)?;
    let mut entries = Vec::new();
    while let Some(entry) = timeline.next_entry() {
        entries.push(entry?);
    }
    Ok((entries, timeline.warnings()))
}

/// Makes the file of a CPU with these pages, recorded in a boot.
fn recorded_in(boot: &str, pages: &[Page]) -> Vec<u8> {
    let (id, version) = recorded(boot, 0);
    TraceDat::new("x86-tsc").cpu(pages).option(id, version).version_7()
}

#[test]
fn losses_of_pages_without_events_add_up() {
    let pages = [
        Page::at(1_000).mmio(1, 77, 1),
        Page::at(2_000).missed(true),
        Page::at(3_000).missed(false),
        Page::at(4_000).missed(true).mmio(1, 77, 2),
    ];

    let (entries, _) = read(&TraceDat::new("x86-tsc").cpu(&pages).version_7()).unwrap();

    let lost = entries.iter().filter_map(|entry| match entry {
        Entry::Lost(lost) => Some(lost.events),
        Entry::Event(_) => None,
    });
    // Each of two pages says 9; another one says that there are some.
    assert_eq!(lost.collect::<Vec<_>>(), [18, 0]);
}

#[test]
fn an_array_outside_of_its_record_is_counted() {
    let mut odd = (4000_u32 | 6 << 16).to_le_bytes().to_vec();
    odd.resize(28, 0);
    let page = Page::at(1_000).event(1, ODD_ID, 5, &odd);

    let (_, warnings) = read(&TraceDat::new("x86-tsc").cpu(&[page]).version_7()).unwrap();

    let [warning] = &warnings[..] else { panic!("{warnings:?}") };
    assert!(warning.contains("1 events that do not hold what their format says"), "{warning}");
}

#[test]
fn an_event_that_is_shown_later_than_its_time_has_a_wider_bound() {
    let made = Made::of_boot(Some(BOOT));
    let pages = [Page::at(1_009_000).mmio(0, 77, 1), Page::at(1_003_000).mmio(0, 77, 2)];
    fs::write(made.path().join("kernel.dat"), recorded_in(BOOT, &pages)).unwrap();
    let session = Session::open(made.path()).unwrap();
    let traces = [KernelTrace::of_session(0, &session).unwrap().unwrap()];
    let sessions = [(session, ClockMaps::default())];

    let timeline = Timeline::with_kernel(&sessions, &traces).unwrap();

    let bounds: Vec<Option<u64>> = timeline.map(|event| event.unwrap().bound_ns).collect();
    assert_eq!(bounds, [Some(0), Some(6_000)]);
}

#[test]
fn the_kernel_of_another_boot_than_the_first_sessions_has_no_bound() {
    let bounds = [BOOT, OTHER_BOOT].map(|boot| {
        let (first, second) = (Made::of_boot(Some(BOOT)), Made::of_boot(Some(boot)));
        let file = recorded_in(boot, &[Page::at(1_001_000).mmio(0, 77, 1)]);
        fs::write(second.path().join("kernel.dat"), file).unwrap();
        let sessions = Session::open_all(&[first.path(), second.path()]).unwrap();
        let sessions: Vec<_> = sessions.into_iter().map(|s| (s, ClockMaps::default())).collect();
        let traces = [KernelTrace::of_session(1, &sessions[1].0).unwrap().unwrap()];
        let mut timeline = Timeline::with_kernel(&sessions, &traces).unwrap();
        timeline.next().unwrap().unwrap().bound_ns
    });

    assert_eq!(bounds, [Some(0), None]);
}

/// Asserts that a file is refused because of this.
fn refused(file: &[u8], why: &str) {
    match read(file) {
        Err(Error::Damaged { expected, .. }) => assert!(expected.contains(why), "{expected}"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_section_is_read_once() {
    let (cmdlines, nowhere) = (21, 0_u64.to_le_bytes().to_vec());
    let file = TraceDat::new("x86-tsc").option(cmdlines, nowhere).version_7();

    refused(&file, "one section of each kind");
}

#[test]
fn cpus_do_not_share_pages() {
    let page = |value| Page::at(1_000).mmio(0, 77, value);
    let mut file = TraceDat::new("x86-tsc").cpu(&[page(1)]).cpu(&[page(2)]).version_7();
    let second = (file.len() - 4096) as u64;
    let at = file.windows(8).position(|bytes| bytes == second.to_le_bytes()).unwrap();
    assert_eq!(read(&file).unwrap().0.len(), 2);

    file[at..at + 8].copy_from_slice(&(second - 4096).to_le_bytes());

    refused(&file, "pages of a CPU after those of the one before");
}

#[test]
fn instances_of_version_6_have_a_bounded_number_of_cpus() {
    let (buffer, nowhere) = (3, 0_u64.to_le_bytes().to_vec());
    let mut file = TraceDat::new("x86-tsc").option(buffer, nowhere);
    file.cpus = vec![Vec::new(); 5_000];

    refused(&file.version_6(), "at most 8192 CPUs in all buffers");
}
