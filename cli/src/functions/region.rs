//! The time of regions in a function trace.

use crate::Usage;
use crate::output::say;
use crate::regions::check_names;
use crate::report::open;
use anyhow::Result;
use hypertrace_functions::read::Spans;
use hypertrace_timeline::regions::{Options, Regions, Select};
use hypertrace_timeline::{FunctionTrace, Recording};
use std::path::Path;

/// Returns the parts of a function trace's time in which a region of this name of the session was open.
pub fn spans(dir: &Path, session: Option<&Path>, name: &str) -> Result<Spans> {
    let Some(session) = session else {
        let why = "--region: give the session with the regions, too: --session DIR";
        return Err(Usage(why.into()).into());
    };
    let mut trace = FunctionTrace::open(dir)?;
    // The kernel's recording is left out: it covers only some threads, but the regions of all threads are
    // wanted.
    let recording = Recording { traces: Vec::new(), ..open(session)? };
    let sessions = Vec::from_iter(recording.sessions.iter().map(|(session, _)| session));
    trace.place(&sessions, None)?;
    let wanted = [name.to_owned()];
    check_names(&recording.sessions, &wanted)?;
    let options = Options { select: Select::Names(wanted.into()), ..Options::default() };
    let regions = Regions::of(&recording, &options)?;
    regions.cut().into_iter().for_each(say);
    let part = |(begin, end)| (trace.time_at(begin), trace.time_at(end));
    let spans = Spans::new(regions.samples().map(|one| part((one.begin_ns, one.end_ns()))));
    if spans.is_empty() {
        let why = format!("no region {name} has a beginning and an end: see `hypertrace regions`");
        return Err(Usage(why).into());
    }
    Ok(spans)
}
