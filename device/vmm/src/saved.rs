// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The device in a snapshot of its machine.

use crate::vm::Bars;
use hypertrace_abi::layout::PAGE;
use hypertrace_abi::schema::{MAX_SCHEMAS, MAX_TEXT};
use hypertrace_device::{ChipState, Geometry, Memory, Pages, PciState};
use serde::{Deserialize, Serialize};
use std::io::{self, Read, Write};

/// The device in a snapshot of its machine: registers, config space and memory.
///
/// A VMM that saves its state by serde puts this value into a field of the state. In JSON, the memory is a
/// list of words in decimal. A VMM that writes a stream calls [`Saved::write`]. A saved device is as
/// untrusted as a guest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Saved {
    /// State of the device.
    pub chip: ChipState,
    /// Config space, of a PCI function.
    pub pci: Option<SavedFunction>,
    /// The pages of the device's memory that a restored machine needs and that are not zero.
    pub memory: Vec<Pages>,
}

impl Saved {
    /// Writes the saved device to a stream. In the stream, memory takes the same number of bytes as in the
    /// guest.
    ///
    /// # Errors
    /// If a write fails.
    pub fn write(&self, to: &mut impl Write) -> io::Result<()> {
        let state = serde_json::to_vec(&(&self.chip, &self.pci))?;
        write_number(to, state.len() as u64)?;
        to.write_all(&state)?;
        for pages in &self.memory {
            write_number(to, pages.words.len() as u64)?;
            write_number(to, pages.offset)?;
            pages.words.iter().try_for_each(|word| write_number(to, *word))?;
        }
        write_number(to, 0)
    }

    /// Reads a device that [`Saved::write`] has written. The device must have this geometry. Reads no bytes
    /// after the device.
    ///
    /// # Errors
    /// If the stream ends early, is too long for such a device, or contains no device.
    pub fn read(from: &mut impl Read, geometry: &Geometry) -> io::Result<Saved> {
        let from = &mut from.take(most_bytes(geometry));
        let length = read_number(from)?;
        let (chip, pci) = serde_json::from_slice(&read_bytes(from, length)?)?;
        let mut memory = Vec::new();
        loop {
            let words = read_number(from)?;
            if words == 0 {
                return Ok(Saved { chip, pci, memory });
            }
            let offset = read_number(from)?;
            let bytes = read_bytes(from, words.saturating_mul(8))?;
            let words = bytes.as_chunks().0.iter().map(|word| u64::from_le_bytes(*word));
            memory.push(Pages { offset, words: words.collect() });
        }
    }
}

/// State of a [`PciFunction`](crate::PciFunction) in a snapshot of the machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct SavedFunction {
    /// Config space.
    pub config: PciState,
    /// Addresses of the BARs on the bus.
    pub bars: Bars,
}

/// Returns the maximum size of a stream. In the longest stream, all texts of all clients differ, and every
/// second page is zero.
fn most_bytes(geometry: &Geometry) -> u64 {
    // A client has texts with quotes, a comma and an index, and a page for its registers, its numbers and its
    // escaped name.
    let client = (MAX_SCHEMAS * (MAX_TEXT + 16) + PAGE as usize) as u64;
    let memory = Memory::file_size(geometry);
    u64::from(geometry.clients) * client + memory + memory / PAGE * 16 + 2 * PAGE
}

fn write_number(to: &mut impl Write, number: u64) -> io::Result<()> {
    to.write_all(&number.to_le_bytes())
}

fn read_number(from: &mut impl Read) -> io::Result<u64> {
    let mut bytes = [0; 8];
    from.read_exact(&mut bytes)?;
    Ok(u64::from_le_bytes(bytes))
}

/// Reads `length` bytes. Allocates no more memory than the stream has bytes, whatever `length` says.
fn read_bytes(from: &mut impl Read, length: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    match from.take(length).read_to_end(&mut bytes)? as u64 == length {
        true => Ok(bytes),
        false => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}
