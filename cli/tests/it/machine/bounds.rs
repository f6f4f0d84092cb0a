//! Bounds of a guest's times if the host's kernel is not recorded. Then only reference points relate the
//! guest's clock to the host's clock.

use super::clock::{LOAD_PTP, distances, ptp};
use super::{FILE, HYPERTRACE, kvm_guest, program, run};
use crate::linux_guest::check_numbers;
use crate::linux_guest_kernel::recorder;
use hypertrace_tests::linux::Linux;
use hypertrace_tests::machine::Machine;
use std::collections::BTreeMap;

/// Maximum bound in nanoseconds of the more exact half of a program's events, and of all events.
const HALF: u64 = 2_000_000;
const ALL: u64 = 10_000_000;

#[test]
#[ignore = "cargo xtask full --only machine"]
fn times_have_small_bounds_without_root_on_the_host() {
    let (Some(machine), Some(linux)) = (Machine::find(), Linux::find()) else { return };
    let folder = tempfile::tempdir().unwrap();
    let files = [ptp(&linux), vec![program()], recorder()].concat();
    let (readings, events, points) = (300, 40_000, 100);
    // The first program makes a point every ten milliseconds. The second program makes points one after the
    // other, as fast as the host answers four threads.
    let script = format!(
        "{LOAD_PTP}; hypertrace forward ptp {readings} 10; echo \"ended: $?\"
        hypertrace forward program {events} {points}; echo \"ended: $?\""
    );
    let device = [&FILE[..], &["-smp", "1"]].concat();
    let qemu = kvm_guest(&linux, folder.path(), &device, &files, &script);

    let (console, shared) = run(
        machine,
        &format!("plain; serve --file /dev/shm/guest; linux {qemu}; end $server serve"),
    );

    assert_eq!(console.matches("ended: 0").count(), 2, "{console}");
    let session = shared.join("S");
    check_numbers(&session, events, points);
    let mut bounds: BTreeMap<String, Vec<u64>> = BTreeMap::new();
    HYPERTRACE.report_each(&session, |line| {
        // The events of all threads of the guest's kernel are counted together.
        let source = line.source.split_once('/').filter(|of| of.0 == "guest-kernel");
        let source = source.map_or(&*line.source, |of| of.0).to_owned();
        bounds.entry(source).or_default().push(line.bound_ns.unwrap());
    });
    let mut found = BTreeMap::new();
    for (source, bounds) in &mut bounds {
        bounds.sort_unstable();
        let (half, all) = (bounds[bounds.len() / 2], bounds[bounds.len() - 1]);
        println!("{source}: {} events, bounds {half} and {all} ns", bounds.len());
        assert!(all <= ALL, "{source}: {all}");
        // `forward`'s own command makes one point.
        assert!(source.contains(" hypertrace") || half <= HALF, "{source}: {half}");
        let kind = source.split_once(' ').map_or(&**source, |(_, name)| name);
        found.insert(kind.to_owned(), (half, all));
    }
    // The kernel's recorder makes few points. The program `ptp` makes many points. `ptp`'s points limit the
    // kernel's events, too: the median bound of the recorder's events is only 0.8 to 1.3 times the largest
    // bound of `ptp`. If only the recorder's own points counted, the median bound would be 2 to 5 times the
    // largest bound of `ptp`.
    assert!(2 * found["guest-kernel"].0 <= 3 * found["ptp"].1, "{found:?}");
    // The true distances are within the bounds.
    let (distances, bound) = distances(&session);
    let (least, middle) = (distances[0], distances[distances.len() / 2]);
    println!("bound {bound} ns, distances from {least} ns, half of them to {middle} ns");
    let bound = bound as i64;
    // A program reads the other clock before the event gets its time, so an event's time is later than this
    // reading. The difference is the time that the machine took between the two.
    assert!(least > -bound - 3_000 && middle < bound + 10_000, "{bound}: {distances:?}");
    assert_eq!(distances.len(), readings);
    Linux::used();
}
