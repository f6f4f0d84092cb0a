//! Rows of the drain: from a full ring into a packet, and into a file.

use super::ring::lease;
use super::row::{Context, Floor, Row, row};
use super::scratch::Scratch;
use super::timing::{BURST_RING, ns, timed};
use anyhow::{Context as _, Result, ensure};
use hypertrace::abi::clock::ticks;
use hypertrace::{Channel, ProducerState};
use hypertrace_device::{Chip, ChipConfig, Geometry, Memory, Region};
use hypertrace_trace::{Output, Session, SessionConfig};
use std::fs::File;
use std::hint::black_box;
use std::os::unix::fs::FileExt;

/// Time in which the kernel writes the bytes of a record to a file.
pub const WRITE_FLOOR: Floor = ("write_floor", write_floor);

pub const ROWS: &[Row] = &[
    row(
        "write_floor",
        write_floor,
        "64 KiB `pwrite` to allocated pages of a tmpfs file, per 32 bytes",
    )
    .note(
        "The file is as large as a session's stream file and written in order, so the \
         pages are not in a near cache.",
    ),
    row(
        "write_new_pages",
        write_new_pages,
        "`write_floor` to pages that the file does not have yet",
    )
    .compared_with(WRITE_FLOOR)
    .note(
        "As every page of a session's file is: the kernel's part of the rows that write \
             new pages.",
    ),
    row(
        "ring_drain",
        |_| drain(Output::Nothing),
        "drain of a full ring of 32-byte records, per record",
    )
    .target("<= 7 ns a record")
    .note("Copied, checked completely, put into packets that are not written."),
    row(
        "ring_drain_file",
        |_| drain(Output::Trace),
        "`ring_drain`, written to the session's file on tmpfs",
    )
    .over(WRITE_FLOOR, "<= 1.8 x write_floor")
    .note(
        "Bounded by new pages of the file: the row is the sum of `write_new_pages` and \
         `ring_drain`. *Not tested*: a file that is allocated in advance.",
    ),
];

const RECORDS: u64 = 100_000;
/// Size in bytes of each write of `write_floor`.
const CHUNK: usize = 64 << 10;
/// Number of writes of a run. The total size of these writes equals the number of bytes that the drain loop
/// writes in a run.
const CHUNKS: u64 = 50;
/// Number of chunks of the file that `write_floor` writes. The file is as large as a session's stream file.
const FILE_CHUNKS: u64 = 1024;

/// File whose pages are allocated already. The row writes the pages in order, again and again, as the drain
/// loop writes the pages of a session's stream file. Therefore no page is in the CPU's first caches.
struct FloorFile {
    file: File,
    next: u64,
    _scratch: Scratch,
}

impl FloorFile {
    fn new() -> Result<FloorFile> {
        let scratch = Scratch::new()?;
        let path = scratch.path().join("floor");
        let file = File::create(&path).with_context(|| format!("create {}", path.display()))?;
        let chunk = vec![0x5au8; CHUNK];
        for i in 0..FILE_CHUNKS {
            file.write_all_at(&chunk, i * CHUNK as u64)?;
        }
        Ok(FloorFile { file, next: 0, _scratch: scratch })
    }
}

/// Measures bare writes, per 32 bytes.
pub fn write_floor(context: &mut Context) -> Result<f64> {
    let floor = context.resource(FloorFile::new)?;
    let first = floor.next;
    floor.next = (first + CHUNKS) % FILE_CHUNKS;
    writes(&floor.file, (first..first + CHUNKS).map(|chunk| chunk % FILE_CHUNKS))
}

/// Measures bare writes to new pages of a file, per 32 bytes.
pub fn write_new_pages(_: &mut Context) -> Result<f64> {
    let scratch = Scratch::new()?;
    writes(&File::create(scratch.path().join("new"))?, 0..CHUNKS)
}

/// Writes these chunks of the file. Returns the time per 32 bytes.
fn writes(file: &File, chunks: impl Iterator<Item = u64>) -> Result<f64> {
    let chunk = vec![0x5au8; CHUNK];
    let start = ticks();
    for at in chunks {
        file.write_all_at(&chunk, at * CHUNK as u64)?;
    }
    let total = ticks() - start;
    Ok(ns(total, CHUNKS * (CHUNK as u64 / 32)))
}

/// Measures the drain: from the ring into the packet buffer, and from the packet buffer to the output.
pub fn drain(output: Output) -> Result<f64> {
    let scratch = Scratch::new()?;
    let config =
        SessionConfig::new(scratch.path().join("session")).with(|config| config.output = output);
    let session = Session::create(config)?;
    let geometry = Geometry { clients: 1, ring_bytes: BURST_RING, ..Geometry::default() };
    let config = ChipConfig::default().with(|config| config.vcpu_clients = 1);
    let chip = Chip::new(Memory::anonymous(geometry)?, &config, session.clone(), ());
    let rings = chip.memory().region(Region::Rings).context("the device has no rings")?;
    let channel = Channel::local(&chip.config_page(), rings.words())?;
    let state = ProducerState::new();
    let client = lease(channel, 0, &state)?;
    let fill = || {
        for i in 0..RECORDS {
            hypertrace::event!(client: &client, "bench_pair", a = i, b = black_box(i));
        }
    };
    // The first round opens the stream and touches the ring.
    fill();
    chip.drain_all();
    fill();
    let total = timed(1, |_| chip.drain_all());
    let summary = session.finish()?;
    ensure!(summary.lost == 0, "{} records lost", summary.lost);
    ensure!(summary.ring_events == 2 * RECORDS, "{} records drained", summary.ring_events);
    Ok(ns(total, RECORDS))
}
