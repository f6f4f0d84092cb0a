//! The engine's own declared events.

use super::registry::Backends;
use hypertrace_abi::record::id;
use hypertrace_abi::sink::ReferencePoint;

crate::include_events!();

/// The words that [`guest_hypertrace()`] shows of a point's.
pub(crate) fn shown(is_2016: bool, words: &[u64]) -> [u64; 8] {
    // Those of 2016 begin with client and count.
    let words = if is_2016 { words.get(2..).unwrap_or(&[]) } else { words };
    std::array::from_fn(|n| words.get(n).copied().unwrap_or(0))
}

/// Tells a point to the backends that know no guest's schemas; the rings
/// have it as what it is.
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
