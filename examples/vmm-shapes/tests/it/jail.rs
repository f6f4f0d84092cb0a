// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! A device that moves to a jailed process after its start. The tests of `hypertrace receive` have the same
//! test with a journal.

#![allow(unsafe_code)] // fork(2)

use hypertrace_test_support::child;
use hypertrace_vmm::{
    Destination, DeviceConfig, Drain, Hypertrace, Output, Region, SessionConfig, attach,
};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use vmm_shapes::JailedDevice;

const POINTS: u64 = 1000;

/// Returns the numbers of reference points and of lost events, as `session.json` counts them.
fn recorded(session: &Path) -> (u64, u64) {
    let text = std::fs::read(session.join("session.json")).unwrap();
    let json: serde_json::Value = serde_json::from_slice(&text).unwrap();
    let streams = json["streams"].as_array().unwrap();
    let sum = |names: &[&str]| {
        let numbers = streams.iter().flat_map(|of| names.iter().map(|name| of[name].as_u64()));
        numbers.map(Option::unwrap).sum()
    };
    let lost = ["lost_full", "lost_busy", "lost_unattached", "lost_overwritten"];
    (sum(&["reference_points"]), sum(&lost))
}

#[test]
fn a_device_that_moves_to_a_jail_with_a_directory_records_there() {
    child::in_own_process(|| {
        let dir = tempfile::tempdir().unwrap();
        let out = dir.path().join("s");

        let device = JailedDevice::start(Destination::Path(out.clone()), 2).unwrap();
        for n in 0..POINTS {
            device.access(Region::Control, 8 * (n % 2), &mut n.to_le_bytes(), true).unwrap();
        }
        assert_eq!(device.finish(), 0);

        assert_eq!(recorded(&out), (POINTS, 0));
    });
}

#[test]
fn a_process_that_forked_the_recorder_attaches_no_thread_and_its_drop_changes_nothing() {
    child::in_own_process(|| {
        let dir = tempfile::tempdir().unwrap();
        let config = DeviceConfig::new(1).with(|config| config.drain = Drain::Later);
        let mut hypertrace = Hypertrace::start(SessionConfig::new(dir.path()), config).unwrap();
        hypertrace.session().install();
        // SAFETY: the child calls this library and ends.
        match unsafe { libc::fork() } {
            0 => {
                assert!(!attach("before"), "nobody drains the rings of this process");
                hypertrace.start_threads(|| Ok(())).unwrap();
                hypertrace.session().install();
                assert!(attach("vcpu0"));
                hypertrace.chip().write(Region::Control, 0, &7u64.to_le_bytes());
                assert_eq!(hypertrace.finish().unwrap().reference_points, 1);
                std::process::exit(0);
            }
            child => {
                drop(hypertrace.leave());
                let mut status = 0;
                // SAFETY: the status is on this stack.
                unsafe { libc::waitpid(child, &raw mut status, 0) };
                assert_eq!(status, 0);
            }
        }
        assert_eq!(recorded(dir.path()), (1, 0));
    });
}

#[test]
fn a_flight_recorder_that_was_left_to_a_child_keeps_its_directory() {
    child::in_own_process(|| {
        let dir = tempfile::tempdir().unwrap();
        let config = DeviceConfig::new(1).with(|config| config.drain = Drain::Later);
        let output = Output::Snapshots;
        let session = SessionConfig::new(dir.path()).with(|config| config.output = output);
        let mut hypertrace = Hypertrace::start(session, config).unwrap();
        let (mut parent, mut child) = UnixStream::pair().unwrap();
        let files = || std::fs::read_dir(dir.path()).unwrap().count();
        let before = files();
        // SAFETY: the child calls this library and ends.
        match unsafe { libc::fork() } {
            0 => {
                hypertrace.start_threads(|| Ok(())).unwrap();
                // The parent sends this byte after it has left the device.
                child.read_exact(&mut [0]).unwrap();
                hypertrace.session().snapshot().unwrap();
                hypertrace.finish().unwrap();
                std::process::exit(0);
            }
            pid => {
                drop(hypertrace.leave());
                assert_eq!(files(), before);
                parent.write_all(&[0]).unwrap();
                let mut status = 0;
                // SAFETY: the status is on this stack.
                unsafe { libc::waitpid(pid, &raw mut status, 0) };
                assert_eq!(status, 0);
            }
        }
        assert!(dir.path().join("snapshot-0001").exists());
    });
}
