//! Runs of a guest program with the hypertrace device, for programs that embed this VMM.

use std::time::Duration;

use hypertrace_guest::{Args, layout};
use hypertrace_vmm::Hypertrace;

use crate::device::{Answer, attach_window};
use crate::error::Error;
use crate::machine::{Machine, Outcome};
use crate::observe::record_in;

/// Time limit of a guest. A guest that takes longer is regarded as hanging.
const LIMIT: Duration = Duration::from_secs(120);

impl Machine {
    /// Runs a guest program with this device in its MMIO window.
    ///
    /// # Errors
    /// As [`Machine::run`].
    pub fn run_with(
        self,
        hypertrace: &Hypertrace,
        args: &Args,
        answer: Answer,
    ) -> Result<Outcome, Error> {
        self.run_with_for(hypertrace, args, answer, LIMIT)
    }

    fn run_with_for(
        mut self,
        hypertrace: &Hypertrace,
        args: &Args,
        answer: Answer,
        limit: Duration,
    ) -> Result<Outcome, Error> {
        let base = layout::DEVICE;
        attach_window(&mut self, hypertrace.device(), base, answer)?;
        self.run(&Args { device: base, ..args.clone() }, limit)
    }

    /// Runs a guest program and records the enabled events of the VMM. The time limit is multiplied by
    /// `times`.
    ///
    /// # Errors
    /// As [`Machine::run`].
    pub fn run_traced(
        mut self,
        hypertrace: &Hypertrace,
        args: &Args,
        times: u32,
    ) -> Result<Outcome, Error> {
        self.give_tscs(hypertrace.session());
        self.observe(record_in(hypertrace.session().clone()));
        self.run_with_for(hypertrace, args, Answer::Device, LIMIT * times)
    }
}
