//! The TSCs of guests. The VMM describes how the hypervisor computes each TSC.

use hypertrace_format::limits::MAX_GUEST_TSCS;
use hypertrace_format::session_json::{GuestTsc, GuestTscJson};

/// Sets or removes a TSC in an epoch. If `client` is `None`, the TSC is for all clients that have no TSC of
/// their own. Returns false if the TSC is impossible, or if the session has [`MAX_GUEST_TSCS`] TSCs already.
pub(crate) fn set(
    all: &mut Vec<GuestTscJson>,
    (epoch, client): (u32, Option<u32>),
    tsc: Option<GuestTsc>,
) -> bool {
    // The search begins at the end, where the newest TSCs are.
    let at = all.iter().rposition(|said| (said.epoch, said.client) == (epoch, client));
    match (tsc, at) {
        (None, Some(at)) => _ = all.remove(at),
        (None, None) => {}
        (Some(tsc), _) if !tsc.is_possible() => return false,
        (Some(tsc), Some(at)) => all[at].tsc = tsc,
        (Some(_), None) if all.len() >= MAX_GUEST_TSCS => return false,
        (Some(tsc), None) => all.push(GuestTscJson { epoch, client, tsc }),
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tsc_replaces_that_of_its_client_and_epoch() {
        let mut all = Vec::new();
        let said = |epoch, client, offset| {
            let tsc = GuestTsc::unscaled(offset);
            GuestTscJson { epoch, client, tsc }
        };
        for (epoch, client, offset) in [(0, None, 1), (0, Some(3), 2), (1, None, 3), (0, None, 4)] {
            assert!(set(&mut all, (epoch, client), Some(GuestTsc::unscaled(offset))));
        }
        assert!(set(&mut all, (1, Some(3)), None));

        assert_eq!(all, [said(0, None, 4), said(0, Some(3), 2), said(1, None, 3)]);
        assert!(set(&mut all, (0, Some(3)), None));
        assert_eq!(all, [said(0, None, 4), said(1, None, 3)]);
    }

    #[test]
    fn impossible_tscs_and_too_many_are_refused() {
        let mut all = Vec::new();
        let impossible = [
            GuestTsc { multiplier: 0, ..GuestTsc::unscaled(0) },
            GuestTsc { shift: 49, ..GuestTsc::unscaled(0) },
        ];
        for tsc in impossible {
            assert!(!set(&mut all, (0, None), Some(tsc)));
        }

        let taken = (0..=MAX_GUEST_TSCS as u32)
            .filter(|epoch| set(&mut all, (*epoch, None), Some(GuestTsc::unscaled(0))));

        assert_eq!(taken.count(), MAX_GUEST_TSCS);
        assert!(
            set(&mut all, (0, None), Some(GuestTsc::unscaled(7))),
            "one that is there is replaced"
        );
    }
}
