//! All rows of the benchmark. Each row is registered where it is defined.

use super::row::Row;
use super::{
    c, compare, device, drain, export, functions, hostile, kvm, linux, peers, qemu, record,
    regions, ring, sigsegv, spans, trace, trace_dat, tracefs, trigger, user, vfio_user,
};

/// Sections of `docs/benchmarks.md`, with the rows of each.
pub const SECTIONS: &[(&str, &[&[Row]])] = &[
    ("ring", &[ring::ROWS, drain::ROWS]),
    ("spans", &[spans::ROWS]),
    ("hostile clients", &[hostile::ROWS]),
    ("C", &[c::ROWS]),
    ("device", &[device::ROWS, vfio_user::ROWS]),
    ("declared events", &[trace::ROWS]),
    ("triggers", &[trigger::ROWS]),
    ("user mode", &[user::ROWS]),
    ("qemu-user", &[qemu::ROWS]),
    (
        "other tracers",
        &[peers::ROWS, tracefs::ROWS, record::ROWS, trace_dat::ROWS, regions::ROWS, sigsegv::ROWS],
    ),
    ("Linux guest", &[linux::ROWS]),
    ("function traces", &[functions::ROWS]),
    ("guest", &[kvm::ROWS]),
    ("exports", &[export::ROWS]),
    ("comparisons", &[compare::ROWS]),
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
