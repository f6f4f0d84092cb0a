// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Checks whether runs may be compared, and collects what a reader of the comparison has to know about the
//! runs.

use crate::run::Run;
use hypertrace_format::number::{counted, grouped};
use std::collections::BTreeSet;

/// Function that returns a fact of a run, if the fact is known.
type Fact = fn(&Run) -> Option<&str>;

/// Two measured rates count as rates of one counter if the relative difference of the rates is at most the
/// inverse of this number, as in
/// [`HostCounter::is_same`](hypertrace_timeline::clock::host::HostCounter::is_same).
const MAX_MEASURED_APART: u64 = 1_000;

/// What is wrong with a comparison of these runs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Checks {
    /// Why the runs may not be compared.
    pub refused: Option<String>,
    /// Facts that may have caused a difference between the sides, and data that the runs lack.
    pub notes: Vec<String>,
}

impl Checks {
    /// Checks the runs of two sides.
    pub fn of(a: &[&Run], b: &[&Run]) -> Checks {
        let mut checks = Checks::default();
        if let Some(side) =
            [("first", a), ("second", b)].into_iter().find(|(_, runs)| runs.is_empty())
        {
            checks.refused = Some(format!("the {} side has no run", side.0));
            return checks;
        }
        let all = || a.iter().chain(b).copied();
        let mut known = BTreeSet::new();
        if let Some(Run { session, .. }) = all().find(|run| !known.insert(&run.session)) {
            let has = |side: &[&Run]| side.iter().any(|run| run.session == *session);
            // A copy of a run is refused, because the copy adds no evidence.
            let where_to = if has(a) && has(b) { "is on both sides" } else { "is given twice" };
            checks.refused = Some(format!("the session {session} {where_to}"));
            return checks;
        }
        let with_kernel = all().filter(|run| run.has_kernel).count();
        if with_kernel != 0 && with_kernel != all().count() {
            checks.refused = Some(format!(
                "{with_kernel} of {} runs have the kernel's events: record all of them with --kernel, or none",
                all().count()
            ));
            return checks;
        }
        if with_kernel == 0 {
            checks.notes.push(
                "no run has the kernel's events: waits are not separated from the code's own time (record \
                 with --kernel)".into(),
            );
        }
        let facts: [(&str, Fact); 4] = [
            ("machines", |run| run.origin.as_ref().map(|origin| &*origin.host)),
            ("kernels", |run| run.origin.as_ref().map(|origin| &*origin.kernel)),
            ("architectures", |run| run.origin.as_ref().map(|origin| &*origin.machine)),
            ("boots", |run| run.boot_id.as_deref()),
        ];
        for (what, fact) in facts {
            checks.differing(what, all().filter_map(fact).map(str::to_owned).collect());
        }
        // Small differences do not count, because each session measures the rate of its counter anew, and a
        // short session measures less exactly.
        let (least, most) = all().fold((u64::MAX, 0), |(least, most), Run { frequency, .. }| {
            (least.min(*frequency), most.max(*frequency))
        });
        if most.abs_diff(least) > most / MAX_MEASURED_APART {
            let near = |run: &Run| (run.frequency / 1_000_000).to_string() + " MHz";
            checks.differing("frequencies of the counter", all().map(near).collect());
        }
        let lossy: Vec<&Run> = all().filter(|run| run.lost > 0).collect();
        if !lossy.is_empty() {
            let lost = lossy.iter().fold(0, |sum: u64, run| sum.saturating_add(run.lost));
            checks.notes.push(format!(
                "{} of {} runs lost events, {} together: regions with losses are not counted",
                lossy.len(),
                all().count(),
                grouped(lost)
            ));
        }
        let unended = all().filter(|run| !run.finished).count();
        if unended > 0 {
            let unended = counted(unended as u64, "run");
            checks
                .notes
                .push(format!("{unended} did not end properly: the last events may be missing"));
        }
        checks
    }

    /// Notes a fact that is not the same in all runs.
    fn differing(&mut self, what: &str, found: BTreeSet<String>) {
        if found.len() > 1 {
            // Only a few short texts are shown, because a session may come from somebody else and have texts
            // of any length.
            let shown: Vec<String> =
                found.iter().take(3).map(|text| format!("{text:.80}")).collect();
            let more = if found.len() > 3 { ", .." } else { "" };
            self.notes.push(format!(
                "the runs come from {} {what} ({}{more}), which may cause a difference",
                found.len(),
                shown.join(", ")
            ));
        }
    }
}
