//! The only declared event of this crate: a guest's reference point.

#[cfg(feature = "events")]
pub use declared::guest_hypertrace;
pub(crate) use declared::{is_wanted, reference_point};

/// Returns the words of a point that `guest_hypertrace` shows.
pub(crate) fn shown(is_2016: bool, words: &[u64]) -> [u64; 8] {
    // In a point of the format of 2016, the first two words are client and count.
    let words = if is_2016 { words.get(2..).unwrap_or(&[]) } else { words };
    std::array::from_fn(|n| words.get(n).copied().unwrap_or(0))
}

#[cfg(feature = "events")]
mod declared {
    use super::shown;
    use crate::events::registry::Backends;
    use hypertrace_abi::record::id;
    use hypertrace_abi::sink::ReferencePoint;

    crate::include_events!();

    /// Returns true if `guest_hypertrace` is switched on.
    #[inline(always)]
    pub(crate) fn is_wanted() -> bool {
        guest_hypertrace::EVENT.is_wanted()
    }

    /// Passes a point to the backends that do not know the schemas of guests. The rings already have the
    /// point itself.
    #[inline(always)]
    pub(crate) fn reference_point(point: &ReferencePoint<'_>) {
        let others = guest_hypertrace::EVENT.on() & !Backends::RING.bits();
        if others != 0 {
            tell(others, point);
        }
    }

    #[cold]
    fn tell(on: u32, point: &ReferencePoint<'_>) {
        let [a, b, c, d, e, f, g, h] = shown(point.id == id::HYPERTRACE, point.words);
        guest_hypertrace::fire(on, point.cpu, point.client, a, b, c, d, e, f, g, h);
    }
}

/// Replacement of the event for builds without declared events.
#[cfg(not(feature = "events"))]
mod declared {
    use hypertrace_abi::sink::ReferencePoint;

    /// Returns false.
    pub(crate) const fn is_wanted() -> bool {
        false
    }

    /// Does nothing, because a build without declared events has no other backends.
    pub(crate) const fn reference_point(_point: &ReferencePoint<'_>) {}
}
