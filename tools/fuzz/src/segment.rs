//! Target `segment`. Target `segment`. Some programs trace in user mode, and one of them is hostile. Their
//! host dies. The segment is recovered.

use crate::input::Input;
use crate::rig::check_order;
use crate::session::{Recorded, begin, read};
use crate::setup::{EVENT, Setup};
use crate::vmm::Options;
use hypertrace_abi::atomic::Ordering::Relaxed;
use hypertrace_abi::clock::ticks;
use hypertrace_abi::config::{ConfigPage, HostInfo, RingMode};
use hypertrace_abi::layout::Region;
use hypertrace_abi::layout::local::{BEGAN, PAGE_L};
use hypertrace_device::Memory;
use hypertrace_trace::Output;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use tempfile::TempDir;
use zerocopy::IntoBytes;

/// Panics if a program can prevent the recovery of other programs' records.
pub fn run(bytes: &[u8]) {
    let dir = TempDir::new().expect("a directory");
    let mut input = Input::new(bytes);
    let is_lost = input.one_in(4);
    let setup = Setup { ring_mode: RingMode::Discard, ..Setup::decode(&mut input) };
    let options = Options {
        output: Output::Trace,
        same_counter: true,
        programs: true,
        ..Options::decode(&mut input)
    };
    let recorded = leave(dir.path(), &setup, &options, &mut input);
    let out = dir.path().join(if is_lost { "new" } else { "s" });
    let segment = dir.path().join("segment");
    hypertrace_user::recover(&segment, options.config(&out)).expect("it can be recovered");

    let read = read(&out);
    let delivered = recorded.delivered(&read, EVENT, false);
    let emitted = &recorded.account.recorded;
    check_order(emitted, &delivered);
    // The events that are left in the rings are all delivered, because the host's triggers and switches ended
    // with the host.
    let left = &emitted[recorded.account.before..];
    assert!(
        delivered.ends_with(left) || options.relays > 0,
        "not all of {left:?} in {delivered:?}"
    );
    if !is_lost {
        let missing = emitted.len() - delivered.len();
        // Events may be missing without a count in two cases. If the host has switched events, the kill loses
        // the counts of filtered events. If there is a relay, it can write anything about other clients.
        assert!(missing == 0 || recorded.switched || options.relays > 0, "{missing} are missing");
        let is_clean = read.faults.is_empty() || recorded.switched || options.relays > 0;
        assert!(is_clean, "{:?}", read.faults);
        assert_eq!(read.all_lost, recorded.account.full);
    }
}

/// Leaves the files of a killed process in this directory: the session in `s`, and the segment in `segment`.
pub fn leave(dir: &Path, setup: &Setup, options: &Options, input: &mut Input<'_>) -> Recorded {
    let (session, guest, recorded) = begin(dir, setup, options, |rig, host| rig.leave(input, host));
    let facts = HostInfo::default().with(|info| {
        info.session = session.uuid();
        info.guest_frequency = session.guest_frequency();
        info.host_frequency = session.host_frequency();
        info.vcpu_clients = options.relays;
    });
    // The session is dropped without `finish`, as after a kill.
    drop(session);
    write(&dir.join("segment"), &guest, &ConfigPage::new(&setup.geometry, &facts));
    recorded
}

fn write(path: &Path, guest: &Memory, page: &ConfigPage) {
    let rings = guest.region(Region::Rings).expect("it is memory").words();
    let rings: Vec<u64> = rings.iter().map(|word| word.load(Relaxed)).collect();
    let at = guest.geometry().window_offset(Region::Rings);
    let write = || {
        let file = File::create(path)?;
        file.write_all_at(page.words().as_bytes(), 0)?;
        file.write_all_at(ticks().as_bytes(), PAGE_L + BEGAN)?;
        file.write_all_at(rings.as_bytes(), at)
    };
    write().expect("room for a segment");
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]
        #[test]
        fn a_hostile_program_spoils_no_recovery(bytes in prop::collection::vec(any::<u8>(), 0..3000)) {
            run(&bytes);
        }
    }
}
