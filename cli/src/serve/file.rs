//! Recording into a file that the VM has as memory.

use super::{Args, absolute, run_vmm, say_end, say_start, trace};
use crate::interrupt::Interrupts;
use crate::recording::{self, Failure};
use crate::{Usage, units};
use anyhow::{Context, Result, bail};
use hypertrace_export::escape;
use hypertrace_trace::Summary;
use hypertrace_user::{Config, Program, Segment, Session, end_if_cut};
use std::path::Path;

/// Records until the VMM ends or, without a VMM, until the command is interrupted. Returns the summary,
/// whether the session was written to its end, and the exit code of the VMM.
pub fn record(
    args: &Args,
    file: &Path,
    vmm: Option<&Program>,
    failure: &Failure,
) -> Result<(Summary, Result<()>, u8)> {
    let config = config(args, file, failure)?;
    let ring = config.geometry.ring_bytes;
    let path = absolute("--file", file)?;
    let session = Session::create(config)?;
    let said = format!(
        "hypertrace: {} was cut off while it was in use: {} holds what was drained before",
        file.display(),
        args.output.display()
    );
    let watched = end_if_cut(session.segment(), &escape::Message(&said).to_string());
    watched.context("cannot watch the file for being cut off")?;
    let monitor = recording::serve(session.trace());
    // QEMU reads a doubled comma as one comma within a value.
    let path = path.replace(',', ",,");
    let size = units::shown(args.size);
    let memory = format!("memory-backend-file,id=ht,share=on,mem-path={path},size={size}");
    let options = [["-object", &memory], ["-device", "ivshmem-plain,memdev=ht"]];
    let options = options.map(|pair| pair.map(str::to_owned));
    say_start(args, &options);
    let ran = match vmm {
        Some(vmm) => run_vmm(args, vmm, &options),
        None => {
            Interrupts::wait();
            Ok(0)
        }
    };
    drop(monitor);
    let code = match ran {
        Ok(code) => code,
        Err(why) => {
            // The VMM was not started, so nothing was recorded, and the next try may have the same directory.
            session.abandon();
            return Err(why.into());
        }
    };
    let (summary, written) = session.end();
    say_end(args, ring, &summary, false);
    Ok((summary, written.map_err(Into::into), code))
}

fn config(args: &Args, file: &Path, failure: &Failure) -> Result<Config> {
    let (bytes, clients) = (args.size, args.clients);
    let Some(geometry) = Segment::fitting(bytes, clients) else {
        bail!(Usage(format!(
            "--size {}: rings of {clients} threads do not fit; give a larger size, or fewer --clients",
            units::shown(bytes)
        )));
    };
    let (segment, vm_memory) = (Some(file.to_owned()), Some(bytes));
    let config = Config::new(&args.output);
    Ok(config.with(|config| {
        config.trace = trace(args, failure);
        config.geometry = geometry;
        config.segment = segment;
        config.vm_memory = vm_memory;
    }))
}
