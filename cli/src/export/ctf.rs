//! `hypertrace export --to ctf`: a directory that appears when it is whole.

use super::{Args, PREFIX, events, file};
use crate::Usage;
use crate::output::{grouped, say};
use crate::page::{WholeFile, check_folder, folder};
use anyhow::{Context, Result};
use hypertrace_export::ctf::{self, Counts, FILES, Written};
use std::fs::{self, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// Writes a trace in Common Trace Format.
pub(super) fn run(args: &Args, out: &Path) -> Result<()> {
    let shown = out.display();
    if out == Path::new("-") {
        return Err(Usage("--to ctf writes a directory: give its name".into()).into());
    }
    let is_empty = |found: fs::Metadata| {
        found.is_dir() && fs::read_dir(out).is_ok_and(|mut files| files.next().is_none())
    };
    if out.symlink_metadata().is_ok_and(|found| !is_empty(found)) {
        let why = format!("{shown} is not an empty directory: give a new or empty one");
        return Err(Usage(why).into());
    }
    check_folder(out).map_err(|why| Usage(format!("{shown}: {why}")))?;
    let mut counts = Counts::default();
    events(args, out, "event", |events| {
        let written = file(out, |out| Ok(ctf::write(events, out)?), |file, of| keep(out, file, of));
        let written = written.with_context(|| format!("{shown} is not written"))?;
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
    Ok(())
}

/// Gives the directory its name when the stream and its description are in it.
fn keep(out: &Path, stream: WholeFile, written: &Written) -> Result<()> {
    let private = Permissions::from_mode(0o700);
    let mut aside = tempfile::Builder::new();
    let aside = aside.prefix(PREFIX).permissions(private).tempdir_in(folder(out));
    // Without the name of the temporary directory.
    let aside = aside.map_err(|error| io::Error::from(error.kind()))?;
    let [metadata, events] = FILES.map(|name| aside.path().join(name));
    stream.keep(&events, false)?;
    let mut text = WholeFile::create(&metadata, PREFIX)?;
    text.write_all(written.metadata.as_bytes())?;
    text.keep(&metadata, false)?;
    fs::rename(aside.path(), out)?;
    let _ = aside.keep();
    Ok(())
}
