// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The threads that a device starts.

use crate::common::start;
use hypertrace_vmm::Error;
use std::io::ErrorKind;

#[test]
fn threads_start_once() {
    let dir = tempfile::tempdir().unwrap();
    let mut hypertrace = start(&dir.path().join("s"));

    hypertrace.start_threads(|| Ok(())).unwrap();
    let again = hypertrace.start_threads(|| Ok(()));

    assert!(matches!(again, Err(Error::Drain(why)) if why.kind() == ErrorKind::AlreadyExists));
    hypertrace.finish().unwrap();
}
