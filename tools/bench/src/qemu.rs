//! Rows under QEMU's user mode. This program is the guest. QEMU runs with the plugin, with the smallest
//! possible plugin, or without a plugin.

use super::child::Child;
use super::emulated::RING_BYTES;
use super::parts::beside;
use super::row::{Context, Floor, Row, row};
use super::scratch::Scratch;
use super::sigsegv;
use anyhow::{Context as _, Result, ensure};
use hypertrace_device::Geometry;
use hypertrace_qemu_emulator::Emulator;
use hypertrace_user::{Config, Program, Session};
use std::ffi::OsStr;

const FLOOR_ROW: Floor = ("qemu_plugin_floor", floor);
const MARKED_STORE: Floor = ("qemu_marked_store", marked_store);

pub const ROWS: &[Row] = &[
    row("qemu_plugin_floor", floor, "a plugin's callback on a marked store: counter, 32 bytes")
        .note("The guest's loop is that of the next row."),
    row(
        "qemu_marked_store",
        marked_store,
        "the store of `qemu_plugin_floor` as a reference point with two `u64`",
    )
    .over(FLOOR_ROW, "<= 1.5 x qemu_plugin_floor")
    .note(
        "Read, recorded in a relay, answered, while a session drains. Bursts that the \
             ring holds.",
    ),
    row("qemu_marked_store_2016", marked_store, "`qemu_marked_store`, against the method of 2016")
        .speedup_of(("sigsegv_2016", sigsegv::event), ">= 500 x faster than sigsegv_2016"),
    row(
        "qemu_reference_point",
        point,
        "a whole `reference_point!`, with the emulated library's part",
    )
    .compared_with(MARKED_STORE),
    row("qemu_bystander", bystander, "a sort, which has no marked store, per sorted number")
        .over(("no plugin", without_plugin), "<= 1.03 x without the plugin"),
];

const QEMU: &str = "qemu-x86_64";
/// File name of the smallest possible plugin.
const FLOOR: &str = "libhypertrace_qemu_floor.so";
/// Number of runs that touch every page of the rings.
const WARM_UP: usize = 4;

/// The three guests, and the session of the first guest.
struct Bench {
    plugin: Child,
    floor: Child,
    bare: Child,
    _session: Session,
    _scratch: Scratch,
}

impl Bench {
    fn new() -> Result<Bench> {
        ensure!(cfg!(target_arch = "x86_64"), "the guest is this program, for {QEMU}");
        let emulator = Emulator::of_programs(Program::find(OsStr::new(QEMU))?)?;
        let program = Program::find(std::env::current_exe()?.as_os_str())?;
        let scratch = Scratch::new()?;
        let geometry = Geometry { clients: 4, ring_bytes: RING_BYTES, ..Geometry::default() };
        let dir = scratch.path().join("session");
        let session = Session::create(Config::new(dir).with(|config| {
            config.geometry = geometry;
            config.relays = 1;
        }))?;
        let floor = emulator.with_plugin(beside(FLOOR, "hypertrace-qemu-floor")?);
        let start = |mut command: std::process::Command| {
            session.pass_to(&mut command);
            Child::start(command.arg("--serve"))
        };
        let mut bench = Bench {
            plugin: start(emulator.command(&program))?,
            floor: start(floor.command(&program))?,
            bare: start(emulator.bare(&program))?,
            _session: session,
            _scratch: scratch,
        };
        for _ in 0..WARM_UP {
            bench.points("store")?;
            bench.floor.ns("emulated floor")?;
        }
        Ok(bench)
    }

    /// Measures this part of the benchmark in the guest with the plugin. Returns nanoseconds per point.
    fn points(&mut self, part: &str) -> Result<f64> {
        self.plugin.ns(&format!("emulated {part}"))
    }
}

fn bench(context: &mut Context) -> Result<&mut Bench> {
    context.resource(|| Bench::new().context("no QEMU user mode"))
}

/// Measures a store with a callback that records as little as possible.
pub fn floor(context: &mut Context) -> Result<f64> {
    bench(context)?.floor.ns("emulated floor")
}

/// Measures a reference point that the guest makes with a marked store, without the library.
pub fn marked_store(context: &mut Context) -> Result<f64> {
    bench(context)?.points("store")
}

/// Measures a whole reference point, as the library makes it.
pub fn point(context: &mut Context) -> Result<f64> {
    bench(context)?.points("library")
}

/// Measures code that does not trace, with the plugin.
pub fn bystander(context: &mut Context) -> Result<f64> {
    bench(context)?.plugin.ns("emulated bystander")
}

/// Measures code that does not trace, without a plugin.
pub fn without_plugin(context: &mut Context) -> Result<f64> {
    bench(context)?.bare.ns("emulated bystander")
}
