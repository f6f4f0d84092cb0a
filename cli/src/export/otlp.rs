//! Regions as spans of OpenTelemetry, in a file or to a collector.

use super::{Args, whole};
use crate::Usage;
use crate::output::{Faults, counted, grouped, progress, say};
use crate::report::{names, wrong};
use anyhow::{Context, Result, anyhow};
use hypertrace_export::otlp::http::{Endpoint, Limits};
use hypertrace_export::otlp::{self, Counts};
use hypertrace_timeline::Recording;
use hypertrace_timeline::regions::{self, Choice, Options, fields};
use std::path::Path;

/// Writes the regions that are wanted.
pub fn run(args: &Args) -> Result<()> {
    if args.otlp_endpoint.is_none() && args.output.is_none() {
        return Err(Usage("give --otlp-endpoint URL, or -o FILE".into()).into());
    }
    let recording = args.inputs.open_timed(&[])?;
    let mut faults = Faults::default();
    faults.say(recording.warnings());
    if !recording.functions.is_empty() {
        let why = "--to otlp has no function traces: give sessions";
        return Err(Usage(format!("{}: {why}", names(&recording))).into());
    }
    let choice = choice(args, &recording)?;
    let (counts, to) = match (&args.otlp_endpoint, &args.output) {
        (Some(endpoint), _) => {
            let mut sent = Sent::default();
            let bar = progress(0, "{human_pos} spans accepted in {elapsed}")?;
            let counts = otlp::write(&recording, choice, &mut |text, spans| {
                sent.post(endpoint, text, spans)?;
                bar.inc(spans);
                anyhow::Ok(())
            });
            bar.finish_and_clear();
            let counts = counts?;
            if sent.rejected > 0 {
                let why = sent.why.map_or(String::new(), |why| format!(": {why}"));
                let (rejected, spans) = (grouped(sent.rejected), grouped(counts.spans));
                return Err(anyhow!("{endpoint} rejected {rejected} of {spans} spans{why}"));
            }
            (counts, endpoint.to_string())
        }
        (None, Some(path)) => {
            let counts = whole(path, |out| {
                otlp::write(&recording, choice, &mut |text, _| {
                    writeln!(out, "{text}").context("cannot write")
                })
            })?;
            (counts, path.display().to_string())
        }
        // The check at the beginning of this function has already refused this case.
        (None, None) => return Ok(()),
    };
    faults.say(counts.warnings.iter().cloned());
    if args.output.as_deref() != Some(Path::new("-")) {
        say(closing(&to, &counts));
    }
    faults.end()
}

/// Returns which regions are wanted.
fn choice(args: &Args, recording: &Recording) -> Result<Choice> {
    let sessions = &recording.sessions;
    let start = sessions.first().map_or(0, |(session, _)| session.json().started_unix_ns);
    let choice = args.wanted.regions(start, args.until)?;
    if regions::names(sessions).is_empty() {
        let why = "no regions: no events NAME_begin and NAME_end with a field id";
        return Err(Usage(format!("{}: {why}", names(recording))).into());
    }
    if let Some(filter) = &choice.filter {
        let known = fields(sessions, &Options::default());
        filter.check(&known.iter().map(String::as_str).collect()).map_err(wrong)?;
    }
    Ok(choice)
}

/// Number of spans sent to a collector, and number of spans that the collector rejected.
#[derive(Default)]
struct Sent {
    spans: u64,
    rejected: u64,
    why: Option<String>,
}

impl Sent {
    fn post(&mut self, endpoint: &Endpoint, text: &str, spans: u64) -> Result<()> {
        let accepted = endpoint.post(text, &Limits::default()).with_context(|| {
            let (before, this) = (grouped(self.spans - self.rejected), grouped(spans));
            format!(
                "{before} spans accepted; the next {this} spans and all later ones are not sent"
            )
        })?;
        self.spans += spans;
        self.rejected += accepted.rejected.min(spans);
        self.why = self.why.take().or(accepted.why);
        Ok(())
    }
}

/// Formats the closing line of an export.
fn closing(to: &str, counts: &Counts) -> String {
    let Counts { spans, not_counted, left_out, bad_contexts, least_wait_ns, .. } = counts;
    let mut line = format!("{to}: {}", counted(*spans, "span"));
    let mut also = |count: u64, what: &str| {
        if count > 0 {
            line.push_str(&format!("; {} {what}", grouped(count)));
        }
    };
    also(*not_counted, "regions that could not be measured: see hypertrace regions");
    also(*left_out, "regions left out by --where, --from and --until");
    also(*bad_contexts, "regions with a malformed field traceparent");
    also(*least_wait_ns, "ns: shorter waits are not written as events, because there are too many");
    line
}
