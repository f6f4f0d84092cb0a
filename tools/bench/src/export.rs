//! Rows about exports. A row measures the CPU time of the command for a session. The row compares this time
//! with the time of `report`, or with the time to write the same bytes.

use super::parts::beside;
use super::row::{Context, Floor, Row, row};
use super::scratch::Scratch;
use super::timing::cpu_time;
use anyhow::{Context as _, Result, ensure};
use hypertrace_test_support::made::{GUEST_BASE, Made, Packet, clocks, json};
use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};
use std::fs::{self, File};
use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio};

const REPORT: Floor = ("report to text", report);

pub const ROWS: &[Row] = &[
    row("export_json", to_json, "CPU time of `export --to json`, per event")
        .over(REPORT, "<= 1.3 x report to text")
        .note(
            "Both commands from start to end, to tmpfs. A session of a guest with `--export-events` events: eight of two \
             numbers in each region.",
        ),
    row("export_json_bytes", to_json, "`export_json`, against a write of the same bytes")
        .compared_with(("write of the bytes", json_bytes)),
    row("export_perfetto", to_perfetto, "CPU time of `export --to perfetto`, per event")
        .over(REPORT, "<= 1 x report to text")
        .note("The session of `export_json`. It is read twice: for events, and for regions."),
    row("export_perfetto_bytes", to_perfetto, "`export_perfetto`, against a write of the same bytes")
        .over(("write of the bytes", perfetto_bytes), "<= 2 x the write from memory")
        .note("Reading the session and finding its regions alone takes many times the write."),
    row("perfetto_event", event_bytes, "bytes of a guest's event of two numbers in Perfetto (not ns)")
        .target("<= 34 bytes")
        .note("With the events of the session of `export_json` alone, on one thread."),
];

/// Number of events of the session, from the command line.
#[derive(Clone, Copy)]
pub struct Events(pub u64);

/// Number of events of two numbers in a region.
const IN_REGION: u64 = 8;
/// Nanoseconds between two events, and between two reference points.
const STEP: u64 = 100;
const POINTS: u64 = 100_000;
/// Number of regions, or of reference points, of a packet.
const OF_PACKET: u64 = 100;
/// Number of bytes that are written at once.
const AT_ONCE: usize = 1 << 16;

/// A session, and the folder of its exports.
struct Session {
    made: Made,
    scratch: Scratch,
    events: u64,
}

impl Session {
    fn new(events: u64) -> Result<Session> {
        let schemas = [
            ("a_begin(id:u64)", false),
            ("a_end(id:u64)", false),
            ("queue(depth:u64,size:u64)", false),
            ("point(n:u64)", true),
        ];
        let classes = schemas.iter().zip(16..).map(|((schema, is_point), id)| {
            format!(r#"{{"id":{id},"schema":"{schema}","reference_point":{is_point}}}"#)
        });
        let classes = format!("[{}]", Vec::from_iter(classes).join(","));
        let made = Made::with_json(&json(&clocks(), &classes, "[]"));
        let regions = events.div_ceil(IN_REGION + 2);

        let mut guest = File::create(made.file("guest-000-0000"))?;
        guest.write_all(&Packet::guest(0).bytes())?;
        let mut packet = Packet::guest(0).lease(10_000, 7, "work");
        let mut time = 20_000;
        let mut next = || {
            time += STEP;
            time
        };
        for region in 0..regions {
            packet = packet.event(next(), 16, &[region]);
            for n in 0..IN_REGION {
                packet = packet.event(next(), 18, &[n, region * 8191 % 20_000]);
            }
            packet = packet.event(next(), 17, &[region]);
            if region % OF_PACKET == OF_PACKET - 1 || region + 1 == regions {
                guest.write_all(&packet.bytes())?;
                packet = Packet::guest(0).after(&packet).with64(80, 7);
            }
        }

        let mut host = File::create(made.file("host-000-0000"))?;
        host.write_all(&Packet::host(0).bytes())?;
        let mut packet = Packet::host(0).lease(1_000, 9, "vcpu");
        let points = 2 + time / POINTS;
        for n in 0..points {
            let time = 15_000 + n * POINTS;
            packet = packet.flagged(time, 19, 1, &[0, 0, n, GUEST_BASE + time - STEP, n], 0);
            if n % OF_PACKET == OF_PACKET - 1 || n + 1 == points {
                host.write_all(&packet.bytes())?;
                packet = Packet::host(0).after(&packet).with64(80, 9);
            }
        }
        Ok(Session { made, scratch: Scratch::new()?, events: regions * (IN_REGION + 2) })
    }

    fn of(context: &mut Context) -> Result<&Session> {
        let Events(events) = *context.resource(|| Ok(Events(0)))?;
        context.resource(|| Session::new(events)).map(|session| &*session)
    }

    /// Returns the path of the export in a format.
    fn file(&self, format: &str) -> PathBuf {
        self.scratch.path().join(format)
    }

    /// Runs the command with the session. The output goes to a file. Returns the command's CPU time in
    /// nanoseconds per event.
    fn ns(&self, args: &[&str], name: &str) -> Result<f64> {
        let file = self.file(name);
        // The file is removed first, so that the system allocates the file's pages anew in each run.
        if file.exists() {
            fs::remove_file(&file)?;
        }
        let out = File::create(file)?;
        let mut command = Command::new(beside("hypertrace", "hypertrace-cli")?);
        command.args(args).arg(self.made.path());
        let mut child = command.stdin(Stdio::null()).stdout(out).stderr(Stdio::null()).spawn()?;
        let ended = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        waitid(WaitId::Pid(Pid::from_child(&child)), ended)?;
        // The first number in this file is the CPU time of the main thread. The command has no other thread.
        let stat = fs::read_to_string(format!("/proc/{}/schedstat", child.id()))?;
        ensure!(child.wait()?.success(), "{args:?} failed");
        let ns = stat.split(' ').next().context("a line of another form in /proc")?;
        Ok(ns.parse::<f64>()? / self.events as f64)
    }

    fn export(&self, format: &str, options: &[&str]) -> Result<f64> {
        let args = [&["export", "--to", format, "-o", "-"], options].concat();
        self.ns(&args, format)
    }

    /// Writes the bytes of an export from memory. Returns nanoseconds per event.
    fn write(&self, format: &str) -> Result<f64> {
        if !self.file(format).exists() {
            self.export(format, &[])?;
        }
        let bytes = fs::read(self.file(format))?;
        let copy = self.scratch.path().join("copy");
        let mut file = File::create(&copy)?;
        let begun = cpu_time();
        bytes.chunks(AT_ONCE).try_for_each(|part| file.write_all(part))?;
        let ns = (cpu_time() - begun).as_nanos() as f64;
        fs::remove_file(copy)?;
        Ok(ns / self.events as f64)
    }
}

/// Measures `hypertrace report`, which writes the session as text. Returns the time per event.
pub fn report(context: &mut Context) -> Result<f64> {
    Session::of(context)?.ns(&["report"], "text")
}

/// Measures `export --to json`, per event.
pub fn to_json(context: &mut Context) -> Result<f64> {
    Session::of(context)?.export("json", &[])
}

/// Measures a write of the same bytes, per event.
pub fn json_bytes(context: &mut Context) -> Result<f64> {
    Session::of(context)?.write("json")
}

/// Measures `export --to perfetto`, per event.
pub fn to_perfetto(context: &mut Context) -> Result<f64> {
    Session::of(context)?.export("perfetto", &[])
}

/// Measures a write of the same bytes, per event.
pub fn perfetto_bytes(context: &mut Context) -> Result<f64> {
    Session::of(context)?.write("perfetto")
}

/// Returns the size of an event in bytes. The size comes from the difference between an export with all
/// events `queue` and an export without these events.
pub fn event_bytes(context: &mut Context) -> Result<f64> {
    let session = Session::of(context)?;
    let bytes = |event: &str| {
        session.export("perfetto", &["--event", event])?;
        Ok::<_, anyhow::Error>(fs::metadata(session.file("perfetto"))?.len() as f64)
    };
    let (all, none) = (bytes("queue")?, bytes("none")?);
    fs::remove_file(session.file("perfetto"))?;
    Ok((all - none) / (session.events * IN_REGION / (IN_REGION + 2)) as f64)
}
