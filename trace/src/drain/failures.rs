//! Writes that failed: counted, and reported once until all of them work again.

use crate::ctf::WriteFailed;
use std::collections::BTreeSet;

/// Called once when writing begins to fail, and again after all of it has worked in
/// between. Called in the middle of a drain, so it must not call the session.
pub type OnWriteFailed = Box<dyn Fn(&WriteFailed) + Send>;

/// For [`Failures::failed`]: `session.json` and the metadata, once a second.
pub(crate) const BOOKS: usize = usize::MAX;
/// The same: the simple backend's file.
pub(crate) const SIMPLE: usize = usize::MAX - 1;
/// The same: what waits for a journal's reader.
pub(crate) const JOURNAL: usize = usize::MAX - 2;

/// Writes that failed.
#[derive(Default)]
pub(crate) struct Failures {
    pub count: u64,
    pub on_failed: Option<OnWriteFailed>,
    /// Writers whose last write failed: sources by the index of their
    /// [`Stats`](super::stats::Stats), [`BOOKS`], [`SIMPLE`] and [`JOURNAL`].
    failing: BTreeSet<usize>,
}

impl Failures {
    /// Notes the result of a write, and returns its value.
    pub fn note<T>(&mut self, whose: usize, written: Result<T, WriteFailed>) -> Option<T> {
        match &written {
            Ok(_) => self.worked(whose),
            Err(failed) => self.failed(whose, failed),
        }
        written.ok()
    }

    /// Counts a failed write, and reports it if nothing else is failing already.
    pub fn failed(&mut self, whose: usize, failed: &WriteFailed) {
        self.count += 1;
        if self.failing.is_empty()
            && let Some(report) = &self.on_failed
        {
            report(failed);
        }
        self.failing.insert(whose);
    }

    /// Returns whether some write is to be tried again.
    pub fn is_failing(&self) -> bool {
        !self.failing.is_empty()
    }

    /// Notes that a write of `whose` worked: its next failure is reported again.
    #[inline]
    pub fn worked(&mut self, whose: usize) {
        if !self.failing.is_empty() {
            self.failing.remove(&whose);
        }
    }
}
