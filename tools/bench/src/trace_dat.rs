//! Rows about traces of kernels: `report`, compared with `trace-cmd report` of the same file.

use super::parts::beside;
use super::row::{Context, Row, row};
use super::scratch::Scratch;
use anyhow::{Context as _, Result, ensure};
use hypertrace_test_support::trace_dat::{Page, TraceDat, tsc2nsec};
use std::process::{Command, Stdio};
use std::time::Instant;

pub const ROWS: &[Row] = &[row(
    "report_trace_dat",
    report,
    "`hypertrace report` of a kernel's trace to text, per event",
)
.speedup_of(("trace-cmd report", trace_cmd), ">= 5 x faster than trace-cmd report")
.note(
    "A trace.dat with 240,000 events of two CPUs (`kvm_mmio`, `sched_switch`) to text \
     that nobody reads, with the start of the process. Compared with `trace-cmd report \
     -t` of the same file, in turns.",
)];

/// Number of pages of each of two CPUs.
const PAGES: u64 = 2_000;
/// Number of groups of events in a page. The events of a group are accesses to a device, and a switch of
/// threads.
const GROUPS: u64 = 20;
/// Number of events in a group.
const EVENTS: u64 = 3;

/// A file with 240,000 events of two CPUs.
struct File(Scratch);

impl File {
    const NAME: &str = "trace.dat";

    fn new() -> Result<File> {
        let page = |number: u64, tid: u32| {
            (0..GROUPS).fold(Page::at(number * 200_000), |page, n| {
                let page = page.mmio(900, tid, number * 1_000 + n).mmio(700, tid, n);
                page.switch(800, (tid, "vcpu0"), 1, (0, "swapper/0"))
            })
        };
        let pages = |tid| (1..=PAGES).map(|n| page(n, tid)).collect::<Vec<_>>();
        let trace = TraceDat::new("x86-tsc").option(tsc2nsec(403_298, 20));
        let trace = trace.cpu(&pages(77)).cpu(&pages(78));
        let scratch = Scratch::new()?;
        std::fs::write(scratch.path().join(File::NAME), trace.version_7())?;
        Ok(File(scratch))
    }

    /// Runs a command with the file, and discards the command's output. Returns nanoseconds per event.
    fn ns(&self, mut command: Command) -> Result<f64> {
        let name = command.get_program().to_string_lossy().into_owned();
        command.arg(File::NAME).current_dir(self.0.path());
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let begun = Instant::now();
        let status = command.status().with_context(|| format!("cannot start {name}"))?;
        let elapsed = begun.elapsed();
        ensure!(status.success(), "{name} failed: {status}");
        Ok(elapsed.as_nanos() as f64 / (2 * PAGES * GROUPS * EVENTS) as f64)
    }
}

/// Measures `report` of the file to text.
pub fn report(context: &mut Context) -> Result<f64> {
    let mut command = Command::new(beside("hypertrace", "hypertrace-cli")?);
    command.arg("report");
    context.resource(File::new)?.ns(command)
}

/// Measures `trace-cmd report` of the file.
pub fn trace_cmd(context: &mut Context) -> Result<f64> {
    let mut command = Command::new("trace-cmd");
    command.args(["report", "-t"]);
    context.resource(File::new)?.ns(command)
}
