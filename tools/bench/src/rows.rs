//! All rows of the benchmark. The module that defines a row registers the row.

use super::row::Row;
use super::{
    c, compare, device, drain, export, functions, hostile, kvm, linux, peers, qemu, record,
    regions, ring, sigsegv, spans, trace, trace_dat, tracefs, trigger, user, vfio_user,
};

/// Sections of the list. Each section has a text about all rows of the section, and the rows.
pub const SECTIONS: &[(&str, &[&[Row]])] = &[
    ("The ring of a thread", &[ring::ROWS, drain::ROWS]),
    ("Spans of the crate tracing", &[spans::ROWS]),
    ("Hostile clients", &[hostile::ROWS]),
    ("C: a program that the benchmark compiles by `cc`", &[c::ROWS]),
    ("The device", &[device::ROWS, vfio_user::ROWS]),
    ("Declared events, each with two `u64`", &[trace::ROWS]),
    ("Triggers", &[trigger::ROWS]),
    ("User mode: programs without a VM", &[user::ROWS]),
    ("qemu-user: the guest is the benchmark itself, under `qemu-x86_64`", &[qemu::ROWS]),
    (
        "Other tracers: each event has the same two numbers",
        &[peers::ROWS, tracefs::ROWS, sigsegv::ROWS],
    ),
    (
        "Recordings of the kernel, and their readers",
        &[record::ROWS, trace_dat::ROWS, regions::ROWS],
    ),
    (
        "A Linux guest without KVM: a stock QEMU (10.1 or later, TCG) boots the kernel of `--linux-guest` \
         on one CPU, which the server shares. The guest's only process is the benchmark. Times come from \
         the guest's counter. Under TCG, a target says nothing about KVM",
        &[linux::ROWS],
    ),
    (
        "Function traces: CPU time of a whole QEMU process with the plugin over that of the same process \
         without the plugin. The guest has one virtual CPU, and the trace is on tmpfs. These rows take \
         minutes, and run only if the command line names them",
        &[functions::ROWS],
    ),
    (
        "A guest with KVM: the time of an exit depends on the hypervisor, and on whether the hypervisor \
         is itself a guest",
        &[kvm::ROWS],
    ),
    ("Exports", &[export::ROWS]),
    (
        "Comparisons: how often the statistics are wrong. The compared runs are drawn from 200 recorded \
         runs of each of two builds (`timeline/compare/tests/runs.csv`)",
        &[compare::ROWS],
    ),
];

/// Returns all rows, in the order of their sections.
pub fn all() -> impl Iterator<Item = &'static Row> {
    SECTIONS.iter().flat_map(|(_, rows)| rows.iter().copied().flatten())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::row::is_met;

    #[test]
    fn every_target_has_a_limit() {
        for target in all().filter_map(|row| row.target) {
            assert!(is_met(target, 1.0).is_some(), "{target}");
        }
    }

    #[test]
    fn a_floor_that_is_a_row_has_its_name() {
        for (name, _) in all().filter_map(|row| row.floor) {
            let is_row = all().any(|row| row.name == name);
            assert!(is_row || !name.contains('_'), "{name}");
        }
    }
}
