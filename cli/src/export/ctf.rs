//! `hypertrace export --to ctf`: a directory that appears when it is whole.

use super::{Args, PREFIX, events, file};
use crate::Usage;
use crate::output::{grouped, say};
use crate::page::{WholeFile, check_folder};
use anyhow::{Context, Result};
use hypertrace_export::ctf::{self, Counts, FILES, Written};
use hypertrace_format::folder::{Folder, Share};
use std::ffi::OsStr;
use std::io::{self, Write};
use std::path::Path;

/// Writes a trace in Common Trace Format.
pub(super) fn run(args: &Args, out: &Path) -> Result<()> {
    let shown = out.display();
    if out == Path::new("-") {
        return Err(Usage("--to ctf writes a directory: give its name".into()).into());
    }
    // The whole directory replaces an existing empty directory, so nothing is written to the existing
    // directory.
    if let Some(there) = Folder::open_own(out, Share::Owner)? {
        there.take_empty()?;
    }
    check_folder(out).map_err(|why| Usage(format!("{shown}: {why}")))?;
    let failed = || format!("{shown} is not written");
    let (folder, name) = Folder::above(out, Share::Owner).with_context(failed)?;
    let mut counts = Counts::default();
    let faults = events(args, out, "event", |recording, choice| {
        let keep = |file, of: &_| Ok(keep((&folder, &name), file, of)?);
        let written = file(&folder, |out| Ok(ctf::write(recording, choice, out)?), keep);
        let written = written.with_context(failed)?;
        counts = written.counts;
        Ok((counts.events, written.warnings))
    })?;
    let of = |count: u64, text: &str| (count > 0).then(|| format!("{} {text}", grouped(count)));
    let parts = [
        of(counts.losses, "x hypertrace:lost, where events were lost"),
        of(counts.cut, "x text cut at a NUL or after 65,536 bytes"),
        of(counts.moved, "x time moved to where readers take it"),
    ];
    let parts: Vec<String> = parts.into_iter().flatten().collect();
    if !parts.is_empty() {
        say(format_args!("also {}", parts.join(", ")));
    }
    faults.end()
}

/// Gives the directory its name once the stream and its description are in the directory.
fn keep((folder, name): (&Folder, &OsStr), stream: WholeFile, written: &Written) -> io::Result<()> {
    let (aside, made) = Folder::with_free_name(PREFIX, |name| folder.create(name))?;
    let [metadata, events] = FILES;
    let fill = || {
        stream.keep(&made, events.as_ref(), false)?;
        let mut text = WholeFile::create(&made, PREFIX)?;
        text.write_all(written.metadata.as_bytes())?;
        text.keep(&made, metadata.as_ref(), false)?;
        folder.rename(&aside, name)
    };
    fill().inspect_err(|_| {
        // The files are removed through the descriptor, because another command may have given the name of
        // this directory to its own directory. For the same reason, the name is removed only if its directory
        // is empty.
        let _ = made.remove_all();
        let _ = folder.remove_empty(&aside);
    })
}
