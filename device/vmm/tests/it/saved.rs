// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! A saved device, written to a stream and read.

use crate::common::{Traps, geometry, start};
use hypertrace_vmm::{BarForm, Bars, PciFunction, Saved};
use std::io::{ErrorKind, Read};
use std::sync::Arc;

fn saved() -> Saved {
    let dir = tempfile::tempdir().unwrap();
    let hypertrace = start(dir.path());
    let bars = Bars::Within(1 << 32..1 << 33);
    let function =
        PciFunction::new(hypertrace.device(), Arc::new(Traps), bars, BarForm::Plain32).unwrap();
    let saved = Saved { pci: Some(function.save()), ..hypertrace.save().unwrap() };
    hypertrace.finish().unwrap();
    saved
}

#[test]
fn a_stream_gives_back_what_was_saved() {
    let saved = saved();
    let mut stream = Vec::new();
    saved.write(&mut stream).unwrap();

    assert!(!saved.memory.is_empty());
    assert_eq!(Saved::read(&mut &stream[..], &geometry()).unwrap(), saved);
}

#[test]
fn a_stream_that_is_cut_anywhere_is_an_error() {
    let mut stream = Vec::new();
    saved().write(&mut stream).unwrap();

    for end in 0..stream.len() {
        let error = Saved::read(&mut &stream[..end], &geometry()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::UnexpectedEof, "{end}");
    }
}

#[test]
fn a_stream_that_does_not_end_is_read_as_far_as_a_device_goes() {
    let mut stream = Vec::new();
    saved().write(&mut stream).unwrap();
    let state = u64::from_le_bytes(stream[..8].try_into().unwrap());
    stream.truncate(8 + state as usize);
    stream.extend(u64::MAX.to_le_bytes());
    let mut endless = std::io::Cursor::new(stream).chain(std::io::repeat(7)).take(1 << 28);

    let error = Saved::read(&mut endless, &geometry()).unwrap_err();

    assert_eq!(error.kind(), ErrorKind::UnexpectedEof);
    assert!(endless.limit() > 0, "all was read");
}

#[test]
fn a_length_beyond_the_stream_is_an_error() {
    let mut stream = Vec::new();
    saved().write(&mut stream).unwrap();
    // The first number is the length of the state. After the state is the length of the first pages.
    let state = u64::from_le_bytes(stream[..8].try_into().unwrap());
    for at in [0, 8 + state as usize] {
        let mut stream = stream.clone();
        stream[at..at + 8].fill(0xff);

        let error = Saved::read(&mut &stream[..], &geometry()).unwrap_err();

        assert_eq!(error.kind(), ErrorKind::UnexpectedEof);
    }
}
