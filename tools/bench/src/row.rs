//! A row of the benchmark, and the resources that rows keep between their runs.

use anyhow::{Context as _, Result};
use std::any::{Any, TypeId};
use std::collections::HashMap;
use std::collections::hash_map::Entry;

/// Text that a run adds to its row, such as versions of programs.
struct Remark(String);

/// Resources that rows use again in their next runs. There is at most one resource of each type.
#[derive(Default)]
pub struct Context(HashMap<TypeId, Box<dyn Any>>);

impl Context {
    /// Returns the resource of a type. In the first call, `new` makes the resource.
    pub fn resource<T: Any>(&mut self, new: impl FnOnce() -> Result<T>) -> Result<&mut T> {
        let resource = match self.0.entry(TypeId::of::<T>()) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => entry.insert(Box::new(new()?)),
        };
        resource.downcast_mut().context("a resource of another type")
    }

    /// Drops the resource of a type, if there is one.
    pub fn release<T: Any>(&mut self) {
        self.0.remove(&TypeId::of::<T>());
    }

    /// Keeps a text for the row's note.
    pub fn remark(&mut self, remark: String) {
        self.0.insert(TypeId::of::<Remark>(), Box::new(Remark(remark)));
    }

    /// Returns the last remark, and forgets it.
    pub fn take_remark(&mut self) -> Option<String> {
        let remark = self.0.remove(&TypeId::of::<Remark>())?.downcast::<Remark>().ok()?;
        Some(remark.0)
    }
}

/// Function that measures an operation. Returns nanoseconds.
pub type Run = fn(&mut Context) -> Result<f64>;

/// Measurement with which a row is compared: its name, and its function. The benchmark may show this
/// measurement as a row or not.
pub type Floor = (&'static str, Run);

/// Row of the benchmark.
pub struct Row {
    pub name: &'static str,
    /// Line that says what is measured.
    pub what: &'static str,
    pub run: Run,
    pub floor: Option<Floor>,
    /// Function that compares the row's time with the floor's time, and returns the row's ratio.
    pub compare: fn(f64, f64) -> f64,
    /// Limit that the ratio should keep. If the row has no floor, the text is a limit for the time. The text
    /// has `<=` or `>=`, a number, the unit if the unit is µs or ms, and the number's meaning.
    pub target: Option<&'static str>,
    /// Sentences that say how the row is measured, and what bounds its time.
    pub note: &'static str,
    /// Number of runs of a row that takes minutes. A slow row is measured only if the command line names it.
    pub slow: Option<u32>,
}

/// Returns a row that is not compared with a floor. Such a row is the floor of another row, or measures
/// another tracer.
pub const fn row(name: &'static str, run: Run, what: &'static str) -> Row {
    let compare = |ns, floor| ns / floor;
    Row { name, what, run, floor: None, compare, target: None, note: "", slow: None }
}

impl Row {
    /// Sets the floor and the target. The row's ratio is the row's time divided by the floor's time.
    pub const fn over(self, floor: Floor, target: &'static str) -> Row {
        self.compared_with(floor).target(target)
    }

    /// Sets the floor and the target. The row's ratio is the row's time minus the floor's time, in
    /// nanoseconds.
    pub const fn less(self, floor: Floor, target: &'static str) -> Row {
        Row { compare: |ns, floor| ns - floor, ..self.over(floor, target) }
    }

    /// Sets the floor and the target. The row's ratio is the floor's time divided by the row's time, which is
    /// the gain in throughput.
    pub const fn speedup_of(self, floor: Floor, target: &'static str) -> Row {
        Row { compare: |ns, floor| floor / ns, ..self.over(floor, target) }
    }

    /// Sets the floor without a target. The row's ratio is the row's time divided by the floor's time.
    pub const fn compared_with(self, floor: Floor) -> Row {
        Row { floor: Some(floor), ..self }
    }

    pub const fn target(self, text: &'static str) -> Row {
        Row { target: Some(text), ..self }
    }

    /// Marks the row as a row that takes minutes, and sets the row's number of runs.
    pub const fn slow(self, runs: u32) -> Row {
        Row { slow: Some(runs), ..self }
    }

    pub const fn note(self, note: &'static str) -> Row {
        Row { note, ..self }
    }
}

/// Returns whether a ratio keeps the limit of a target's text; `None` if the text has no limit.
pub fn is_met(target: &str, ratio: f64) -> Option<bool> {
    let mut words = target.split(' ');
    let (sign, number) = (words.next()?, words.next()?.parse::<f64>().ok()?);
    let limit = match words.next() {
        Some("ms") => number * 1e6,
        Some("µs") => number * 1e3,
        _ => number,
    };
    match sign {
        "<=" => Some(ratio <= limit),
        ">=" => Some(ratio >= limit),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_has_a_unit_or_is_in_nanoseconds() {
        assert_eq!(is_met("<= 1 ms", 1e6), Some(true));
        assert_eq!(is_met("<= 100 µs (0.01 % of a CPU)", 100_001.0), Some(false));
        assert_eq!(is_met(">= 1.9 x one thread's throughput", 1.9), Some(true));
        assert_eq!(is_met("about 3", 3.0), None);
    }
}
