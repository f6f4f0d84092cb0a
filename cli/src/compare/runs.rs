//! Records runs of two commands in turn.

use super::{Args, Keep, Side, is_interrupted, keep, read};
use crate::Usage;
use crate::interrupt::Interrupts;
use crate::output::{Faults, progress, say};
use anyhow::{Context, Error, Result, anyhow, bail};
use hypertrace_compare::Run;
use hypertrace_format::error::DirectoryError;
use hypertrace_format::folder::{Folder, Share};
use indicatif::HumanBytes;
use rustix::fs::fstatvfs;
use rustix::process::{Pid, Signal, kill_process_group, test_kill_process_group};
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// Maximum size of the shown end of a failed command's output in bytes.
const MAX_OUTPUT: u64 = 2048;
/// Name of the run that is thrown away.
const WARM_UP: &str = "warm-up";
/// Number of free bytes below which a disk is called full.
const FULL: u64 = 1 << 20;
/// Pause between two checks whether a command has ended.
const PERIOD: Duration = Duration::from_millis(5);

/// Maximum time that a recorder and its program may take to end after a signal.
const PATIENCE: Duration = Duration::from_secs(5);

/// Records the runs of both sides.
pub fn record(args: &Args, commands: [&OsStr; 2]) -> Result<[Side; 2]> {
    let out = Folder::new_or_empty(&args.output, Share::Owner).map_err(|why| match why {
        DirectoryError::NotEmpty(out) => {
            let out = out.display();
            Usage(format!(
                "{out} is not empty: give another directory with -o, or remove it; runs that are in it are \
                 compared again by `hypertrace compare {out}/a-* --with {out}/b-*`"
            ))
            .into()
        }
        why => Error::from(why),
    })?;
    let interrupts = Interrupts::catch_end();
    let recorded = record_all(args, commands, &out);
    if let (true, Err(why)) = (is_interrupted(), &recorded) {
        say(format_args!("{why:#}"));
    }
    interrupts.end();
    recorded
}

/// Records all runs in a directory. The directory's path may lead elsewhere at any moment, so all writes,
/// reads and removals go through the directory's descriptor.
fn record_all(args: &Args, commands: [&OsStr; 2], out: &Folder) -> Result<[Side; 2]> {
    // `left`: number of bytes that stay on the disk after one run of each command. `session`: size in bytes
    // of the larger of the two sessions. A session is on the disk until its sums are kept.
    let (mut left, mut session) = (0, 0);
    for command in commands {
        one(args, command, out, WARM_UP)?;
        let path = out.by_descriptor().join(WARM_UP);
        session = session.max(size(&path)?);
        // A run without regions is an error. This first run shows the error before the other runs are
        // recorded.
        let run = read_in(out, WARM_UP).and_then(|run| {
            if args.keep == Keep::Samples {
                keep(&out.folder(WARM_UP)?, &run)?;
            }
            left += size(&path)?;
            Ok(())
        });
        out.remove_tree(WARM_UP)?;
        run.with_context(|| command.to_string_lossy().into_owned())?;
    }
    let (all, free) = (left * u64::from(args.runs), free(out));
    say(format_args!(
        "{} runs of each command: about {} in {}",
        args.runs,
        HumanBytes(all),
        out.path().display()
    ));
    let (needed, hint) = match args.keep {
        Keep::Sessions => (all, ": --keep samples needs less"),
        Keep::Samples => (all + session, ""),
    };
    if needed > free {
        bail!(
            "{} has room for {} only, the runs need {}{hint}",
            out.path().display(),
            HumanBytes(free),
            HumanBytes(needed)
        );
    }
    let bar = progress(u64::from(args.runs) * 2, "{bar:40} {pos}/{len} runs, {eta} left")?;
    let mut sides = [Side::new(), Side::new()];
    for number in 0..args.runs {
        // ABBA: neither side is always the first of a pair.
        let order = if number % 2 == 0 { [0, 1] } else { [1, 0] };
        for side in order {
            let name = format!("{}-{:02}", ["a", "b"][side], number + 1);
            let run = one(args, commands[side], out, &name).and_then(|()| {
                let run = read_in(out, &name)?;
                if args.keep == Keep::Samples {
                    keep(&out.folder(&name)?, &run)?;
                }
                Ok(run)
            });
            match run {
                Ok(run) => sides[side].push((out.path().join(name), run)),
                Err(why) => {
                    bar.abandon();
                    let _ = out.remove_tree(&name);
                    bail!("{why:#}\n{}", usable(out.path(), &sides));
                }
            }
            bar.inc(1);
        }
    }
    bar.finish_and_clear();
    Ok(sides)
}

/// Says what can be done with the runs so far.
fn usable(out: &Path, sides: &[Side; 2]) -> String {
    let [a, b] = sides.each_ref().map(Vec::len);
    let out = out.display();
    match a.min(b) {
        0 => "nothing is compared".into(),
        _ => format!(
            "nothing is compared; {a} and {b} runs are whole: hypertrace compare {out}/a-* --with {out}/b-*"
        ),
    }
}

/// Reads a run in the directory. An error names the directory with the path that the user knows.
fn read_in(out: &Folder, name: &str) -> Result<Run> {
    let mut faults = Faults::default();
    let run = read(&out.by_descriptor().join(name), &mut faults);
    run.and_then(|run| faults.end().map(|()| run)).map_err(|why| match why.downcast::<Usage>() {
        Ok(Usage(why)) => Usage(named(out, &why)).into(),
        Err(why) => anyhow!(named(out, &format!("{why:#}"))),
    })
}

/// Replaces the directory's path in a text: the path through the descriptor becomes the path that the user
/// knows.
fn named(out: &Folder, text: &str) -> String {
    text.replace(&*out.by_descriptor().to_string_lossy(), &out.path().to_string_lossy())
}

/// Records a run in a directory of this name.
fn one(args: &Args, command: &OsStr, out: &Folder, name: &str) -> Result<()> {
    let (shown, here) = (command.to_string_lossy(), out.by_descriptor());
    // The file has no name, so that the patterns `a-*` and `b-*` match only runs.
    let file = tempfile::tempfile_in(&here)
        .with_context(|| format!("cannot make a file in {}", out.path().display()))?;
    let mut record = Command::new(std::env::current_exe().context("cannot find this program")?);
    record.args(["record", "--quiet", "-o"]).arg(here.join(name));
    record.args(args.kernel.then_some("--kernel"));
    record.args(["--", "sh", "-c"]).arg(command);
    record
        .stdin(Stdio::null())
        .stdout(file.try_clone()?)
        .stderr(file.try_clone()?)
        .process_group(0);
    let mut child = record.spawn().context("cannot start the recorder")?;
    let group = Pid::from_child(&child);
    let status = wait(&mut child, group)?;
    let (said, is_full) = (end_of(file).unwrap_or_default(), free(out) < FULL);
    if is_interrupted() {
        let _ = out.remove_tree(name);
        bail!("interrupted");
    }
    // If the recorder cannot record the kernel's events, the recorder still runs the program. In this case, a
    // comparison with --kernel fails, because the comparison needs the parts of the time.
    if args.kernel && status.success() && !here.join(name).join(hypertrace_kernel::FILE).exists() {
        let _ = out.remove_tree(name);
        bail!("{shown}: {}", String::from_utf8_lossy(&said).trim_end());
    }
    if test_kill_process_group(group).is_ok() {
        say(format_args!("{shown}: leaves processes that run on: they may slow the next runs"));
    }
    if !status.success() {
        let _ = out.remove_tree(name);
        let is_full = if is_full { "\nno space is left for the run" } else { "" };
        bail!(
            "{shown}: {status}\n{}{is_full}",
            named(out, String::from_utf8_lossy(&said).trim_end())
        );
    }
    Ok(())
}

/// Returns the end of a file.
fn end_of(mut file: File) -> io::Result<Vec<u8>> {
    file.seek(SeekFrom::Start(file.metadata()?.len().saturating_sub(MAX_OUTPUT)))?;
    let mut bytes = Vec::new();
    file.take(MAX_OUTPUT).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Returns how many bytes may still be written to the directory's file system.
fn free(dir: &Folder) -> u64 {
    fstatvfs(dir).map(|stat| stat.f_bavail.saturating_mul(stat.f_frsize)).unwrap_or(u64::MAX)
}

/// Waits for a recorder. On a signal, asks the recorder and its program to end, and kills them after
/// [`PATIENCE`].
fn wait(child: &mut Child, group: Pid) -> Result<ExitStatus> {
    let mut told: Option<Instant> = None;
    loop {
        if let Some(status) = child.try_wait().context("cannot wait for the recorder")? {
            return Ok(status);
        }
        match told {
            None if is_interrupted() => {
                told = Some(Instant::now());
                let _ = kill_process_group(group, Signal::TERM);
            }
            Some(since) if since.elapsed() > PATIENCE => {
                let _ = kill_process_group(group, Signal::KILL);
            }
            _ => {}
        }
        thread::sleep(PERIOD);
    }
}

/// Returns the total size of the files in a directory, in bytes.
fn size(dir: &Path) -> Result<u64> {
    let mut bytes = 0;
    let mut left: Vec<PathBuf> = vec![dir.to_owned()];
    while let Some(dir) = left.pop() {
        for entry in fs::read_dir(&dir)? {
            let entry = entry?;
            match entry.file_type()?.is_dir() {
                true => left.push(entry.path()),
                false => bytes += entry.metadata()?.len(),
            }
        }
    }
    Ok(bytes)
}
