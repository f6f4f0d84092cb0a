//! Rows of the device over vfio-user without a VM. Instead of QEMU, a client of the benchmark writes to the
//! socket. The client writes the same messages as QEMU.

use super::device::Slot;
use super::row::{Context, Row, row};
use super::scratch::Scratch;
use super::timing::{on_one_cpu, tenth};
use anyhow::{Context as _, Result, ensure};
use hypertrace::abi::layout::register;
use hypertrace_device::adapter::vfio_user::serve;
use hypertrace_device::{Geometry, PciFunction, Region};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread;

pub const ROWS: &[Row] = &[
    row(
        "vfio_user_null",
        null,
        "a store as a message of vfio-user to a thread that does one `recv` and one \
         `send`",
    )
    .note(
        "40 bytes, and a reply of 32, over a socket pair. All threads of this row and the \
         next are on one CPU. The row is the time of an exchange that is slower than a \
         tenth of 5,000.",
    ),
    row(
        "vfio_user_point",
        point,
        "a reference point with two `u64` as a message to the server of vfio-user",
    )
    .over(("vfio_user_null", null), "<= 1.1 x vfio_user_null")
    .note(
        "Also one receive and one send. With a session on tmpfs; each point must be \
         recorded.",
    ),
];

/// Number of stores of a run.
const STORES: u64 = 5_000;

/// Sizes in bytes of the message for a store of 8 bytes, and of its reply.
const STORE: usize = 40;
const REPLY: usize = 32;
const VERSION: u64 = 1;
const REGION_WRITE: u64 = 10;

/// Makes a message of a command: the header and the body.
fn message(command: u64, body: &[u64]) -> Vec<u8> {
    let size = 16 + 8 * body.len() as u64;
    let words = [&[1 | command << 16 | size << 32, 0], body].concat();
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// Measures a store of 8 bytes: the message for the store, and the reply. `before` runs before each store,
/// and is part of the measured time.
fn stores(mut client: &UnixStream, offset: u64, before: impl Fn(u64)) -> Result<f64> {
    let region = Region::Control.bar() as u64;
    let mut message = message(REGION_WRITE, &[offset, region | 8 << 32, 0]);
    let mut failed = None;
    let ns = tenth(
        [STORES, 1],
        || Ok(()),
        |n| {
            let seq = n + 1;
            before(seq);
            message[STORE - 8..].copy_from_slice(&seq.to_le_bytes());
            let answered =
                client.write_all(&message).and_then(|()| client.read_exact(&mut [0; REPLY]));
            if let Err(why) = answered {
                failed = Some(why);
            }
        },
    )?;
    failed.map_or(Ok(ns), |why| Err(why).context("the server has ended the connection"))
}

/// Measures the exchange with a thread that does nothing but one `recv` and one `send` for each message.
pub fn null(_: &mut Context) -> Result<f64> {
    on_one_cpu(|| {
        let (client, mut server) = UnixStream::pair()?;
        let answer = move || -> std::io::Result<()> {
            let mut message = [0; STORE];
            while server.read(&mut message)? == STORE {
                server.write_all(&message[..REPLY])?;
            }
            Ok(())
        };
        thread::scope(|scope| {
            scope.spawn(answer);
            // The closure owns the client, so that the client is dropped at the end of the closure, and the
            // thread ends.
            let client = client;
            stores(&client, 0, |_| ())
        })
    })
}

/// Measures reference points that a client sends to the device's vfio-user server.
pub fn point(_: &mut Context) -> Result<f64> {
    on_one_cpu(|| {
        let scratch = Scratch::new()?;
        let geometry = Geometry { clients: 1, ..Geometry::default() };
        let device = scratch.server(geometry)?;
        let function = PciFunction::new(Arc::clone(device.chip()));
        let (client, server) = UnixStream::pair()?;
        let measured = thread::scope(|scope| {
            scope.spawn(|| serve(&function, &server));
            let mut client = client;
            // Version 0.1, and no capabilities.
            client.write_all(&message(VERSION, &[1 << 16]))?;
            let mut header = [0; 16];
            client.read_exact(&mut header)?;
            let size = header[4..8].try_into().map(u32::from_le_bytes)?;
            let rest = (size as usize).checked_sub(header.len()).context("no reply to VERSION")?;
            client.read_exact(&mut vec![0; rest])?;
            let slot = Slot::new(device.chip().memory());
            let emit = geometry.control_pages_offset() + register::EMIT;
            stores(&client, emit, |seq| slot.fill(seq))
        });
        let summary = device.finish()?;
        let recorded = summary.reference_points;
        ensure!(measured.is_err() || recorded == STORES, "{recorded} of {STORES} were recorded");
        measured
    })
}
