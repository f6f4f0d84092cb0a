//! Records runs of two commands in turn.

use super::{Args, Keep, Side, is_interrupted, keep, read};
use crate::Usage;
use crate::interrupt::Interrupts;
use crate::output::{progress, say};
use anyhow::{Context, Result, bail};
use indicatif::HumanBytes;
use rustix::fs::statvfs;
use rustix::process::{Pid, Signal, kill_process_group, test_kill_process_group};
use std::ffi::OsStr;
use std::fs::{self, DirBuilder, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// Bytes of a failed command's output that are shown.
const MOST_OUTPUT: u64 = 2048;
/// Free bytes below which a disk is called full.
const FULL: u64 = 1 << 20;
/// Pause between two looks whether a command has ended.
const PERIOD: Duration = Duration::from_millis(5);

/// How long a recorder and its program may take to end after a signal.
const PATIENCE: Duration = Duration::from_secs(5);

/// Records the runs of both sides.
pub fn record(args: &Args, commands: [&OsStr; 2]) -> Result<[Side; 2]> {
    let out = &args.output;
    let failed = || format!("cannot make {}", out.display());
    DirBuilder::new().recursive(true).mode(0o700).create(out).with_context(failed)?;
    if fs::read_dir(out).with_context(failed)?.next().is_some() {
        let out = out.display();
        let why = format!(
            "{out} is not empty: give another directory with -o, or remove it; runs that are in it are \
             compared again by `hypertrace compare {out}/a-* --with {out}/b-*`"
        );
        return Err(Usage(why).into());
    }
    let interrupts = Interrupts::catch_end();
    let recorded = record_all(args, commands);
    if let (true, Err(why)) = (is_interrupted(), &recorded) {
        say(format_args!("{why:#}"));
    }
    interrupts.end();
    recorded
}

fn record_all(args: &Args, commands: [&OsStr; 2]) -> Result<[Side; 2]> {
    let out = &args.output;
    let warm_up = out.join("warm-up");
    let mut bytes = 0;
    for command in commands {
        one(args, command, &warm_up)?;
        bytes += size(&warm_up)?;
        // A run without regions is an error before all others are recorded.
        let run = read(&warm_up);
        fs::remove_dir_all(&warm_up)?;
        run.with_context(|| command.to_string_lossy().into_owned())?;
    }
    let all = match args.keep {
        Keep::Sessions => bytes * u64::from(args.runs),
        Keep::Samples => bytes / 2,
    };
    let free = free(out);
    say(format_args!(
        "{} runs of each command: about {} in {}",
        args.runs,
        HumanBytes(all),
        out.display()
    ));
    if all > free {
        bail!(
            "{} has room for {} only: --keep samples needs less",
            out.display(),
            HumanBytes(free)
        );
    }
    let bar = progress(u64::from(args.runs) * 2, "{bar:40} {pos}/{len} runs, {eta} left")?;
    let mut sides = [Side::new(), Side::new()];
    for number in 0..args.runs {
        // ABBA: neither side is always the first of a pair.
        let order = if number % 2 == 0 { [0, 1] } else { [1, 0] };
        for side in order {
            let dir = out.join(format!("{}-{:02}", ["a", "b"][side], number + 1));
            let run = one(args, commands[side], &dir).and_then(|()| {
                let run = read(&dir)?;
                if args.keep == Keep::Samples {
                    keep(&dir, &run)?;
                }
                Ok(run)
            });
            match run {
                Ok(run) => sides[side].push((dir, run)),
                Err(why) => {
                    bar.abandon();
                    let _ = fs::remove_dir_all(&dir);
                    bail!("{why:#}\n{}", usable(out, &sides));
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

/// Records a run.
fn one(args: &Args, command: &OsStr, dir: &Path) -> Result<()> {
    let shown = command.to_string_lossy();
    // Without a name: only runs stay in the directory, for `a-*` and `b-*`, whatever others have put there.
    let file = tempfile::tempfile_in(&args.output)
        .with_context(|| format!("cannot make a file in {}", args.output.display()))?;
    let mut record = Command::new(std::env::current_exe().context("cannot find this program")?);
    record.args(["record", "--quiet", "-o"]).arg(dir);
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
    let (said, is_full) = (end_of(file).unwrap_or_default(), free(&args.output) < FULL);
    if is_interrupted() {
        let _ = fs::remove_dir_all(dir);
        bail!("interrupted");
    }
    // The recorder runs the program anyway, whose time without the parts is not what was asked for.
    if args.kernel && status.success() && !dir.join(hypertrace_kernel::FILE).exists() {
        let _ = fs::remove_dir_all(dir);
        bail!("{shown}: {}", String::from_utf8_lossy(&said).trim_end());
    }
    if test_kill_process_group(group).is_ok() {
        say(format_args!("{shown}: leaves processes that run on: they may slow the next runs"));
    }
    if !status.success() {
        let _ = fs::remove_dir_all(dir);
        let is_full = if is_full { "\nno space is left for the run" } else { "" };
        bail!("{shown}: {status}\n{}{is_full}", String::from_utf8_lossy(&said).trim_end());
    }
    Ok(())
}

/// Returns the end of a file.
fn end_of(mut file: File) -> io::Result<Vec<u8>> {
    file.seek(SeekFrom::Start(file.metadata()?.len().saturating_sub(MOST_OUTPUT)))?;
    let mut bytes = Vec::new();
    file.take(MOST_OUTPUT).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Returns how many bytes may be written where this directory is.
fn free(dir: &Path) -> u64 {
    statvfs(dir).map(|stat| stat.f_bavail.saturating_mul(stat.f_frsize)).unwrap_or(u64::MAX)
}

/// Waits for a recorder, which ends if a signal asks this process to: after some time, it is killed.
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

/// Returns the bytes of the files in a directory.
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
