//! The device as a server of vfio-user.

use super::{Args, absolute, run_vmm, say_end, say_start, trace};
use crate::Usage;
use crate::interrupt::Interrupts;
use crate::output::say;
use crate::recording::{self, Failure};
use anyhow::{Context, Result, anyhow, bail};
use hypertrace_device::adapter::vfio_user::{End, Notice, Server};
use hypertrace_device::{BarForm, Counter, Geometry, PciFunction};
use hypertrace_format::folder::Folder;
use hypertrace_trace::monitor::MonitorError;
use hypertrace_trace::monitor::socket::{Entry, listen};
use hypertrace_trace::{Session, Share, Summary};
use hypertrace_user::Program;
use hypertrace_vmm::{DeviceConfig, Hypertrace};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;

/// The line about the first reset of a machine whose programs trace.
const RESET_LEASED: &str = "the VM was reset while its programs traced. If the guest boots again, its \
                            programs trace anew. If loadvm brought the guest back, the guest has lost the \
                            device, and its events are lost from now on";

/// Maximum length of a socket's path in bytes (unix(7)). The zero at the path's end does not count.
const LONGEST: usize = 107;

/// Records until the VMM ends. Without a VMM, records until the command is interrupted. With `--once`, also
/// ends when the VM ends. Returns the summary, whether the session was written to its end, and the exit code
/// of the VMM.
pub fn record(
    args: &Args,
    path: &Path,
    vmm: Option<&Program>,
    failure: &Failure,
) -> Result<(Summary, Result<()>, u8)> {
    let geometry = geometry(args);
    let (listener, entry) = bind(path)?;
    let config = DeviceConfig::new(0).with(|config| {
        config.geometry = geometry;
        config.has_doorbells = false;
    });
    let device = Hypertrace::with_session(Session::create(trace(args, failure))?, config)?;
    let form = if args.bars == "32" { BarForm::Plain32 } else { BarForm::Prefetchable64 };
    let function = Arc::new(PciFunction::with_form(Arc::clone(device.chip()), form)?);
    let monitor = recording::serve(device.session());
    let socket = serde_json::to_string(&absolute("--socket", path)?)?;
    let socket = format!(
        "{{\"driver\":\"vfio-user-pci\",\"x-no-posted-writes\":true,\"socket\":{{\"type\":\"unix\",\"path\":{socket}}}}}"
    );
    let options = [["-device".to_owned(), socket]];
    say_start(args, &options);
    let has_ended = AtomicBool::new(false);
    let (served, ran) = thread::scope(|scope| {
        let vmm = vmm.map(|vmm| {
            scope.spawn(|| {
                let ran = run_vmm(args, vmm, &options);
                has_ended.store(true, Relaxed);
                ran
            })
        });
        let served = serve(&function, listener, path, args.once, &has_ended);
        if let Err(why) = &served {
            // The VMM may run for a long time after this error.
            say(format_args!("{why:#}: events of the guest are lost from now on"));
        }
        (served, vmm.map_or(Ok(0), |vmm| vmm.join().unwrap_or(Ok(1))))
    });
    drop(entry);
    drop(monitor);
    let was_reset = device.chip().count(Counter::ResetLeased) > 0;
    let code = match ran {
        Ok(code) => code,
        Err(why) => {
            // The VMM was not started, so nothing was recorded, and the next try may have the same directory.
            device.abandon();
            return Err(why.into());
        }
    };
    let (summary, written) = device.end();
    say_end(args, args.ring, &summary, was_reset);
    served?;
    Ok((summary, written.map_err(Into::into), code))
}

fn geometry(args: &Args) -> Geometry {
    let ring_bytes = args.ring;
    Geometry {
        clients: args.clients,
        legacy_args: args.args,
        ring_bytes,
        block_bytes: (ring_bytes / 16).min(Geometry::default().block_bytes),
        ..Geometry::default()
    }
}

/// Makes the socket at which VMs connect. Replaces a socket that nobody serves. The [`Entry`] removes the
/// socket's file.
fn bind(path: &Path) -> Result<(UnixListener, Entry)> {
    let shown = path.display();
    let bytes = path.as_os_str().len();
    if bytes > LONGEST {
        bail!(Usage(format!(
            "--socket {shown}: the path has {bytes} bytes, and a socket's path can have at most {LONGEST}"
        )));
    }
    let name = path.file_name().unwrap_or_default();
    let above = path.parent().filter(|above| !above.as_os_str().is_empty());
    let folder = Folder::open(above.unwrap_or(Path::new(".")), Share::Owner);
    let folder = folder.with_context(|| format!("cannot make {shown}"))?;
    listen(folder, name).map_err(|why| match why {
        MonitorError::NotASocket(_) => {
            anyhow!(Usage(format!("--socket {shown}: a file of this name exists and is no socket")))
        }
        MonitorError::InUse(_) => {
            anyhow!(Usage(format!("--socket {shown}: another process serves it")))
        }
        why => why.into(),
    })
}

/// Serves VMs until the VMM has ended, the command is interrupted or, with `once`, the first VM leaves.
fn serve(
    function: &Arc<PciFunction>,
    listener: UnixListener,
    socket: &Path,
    once: bool,
    has_ended: &AtomicBool,
) -> Result<()> {
    let socket = socket.to_owned();
    let report = move |notice| report(notice, &socket);
    let mut server = Server::new(Arc::clone(function), listener, report)?;
    let was_reset = || function.chip().count(Counter::ResetLeased) > 0;
    let mut told = None;
    let mut served = Ok(());
    let is_over = |server: &Server| once && server.is_left() || has_ended.load(Relaxed);
    while served.is_ok() && Interrupts::came().is_none() && !is_over(&server) {
        if told.is_none() && was_reset() {
            // A thread of its own prints the line, because stderr may be a pipe that nobody reads.
            told = Some(thread::spawn(|| say(RESET_LEASED)));
        }
        served = server.turn();
    }
    let served = served.and(server.end()).context("cannot serve a VM");
    match told {
        Some(told) => drop(told.join()),
        None if was_reset() => say(RESET_LEASED),
        None => {}
    }
    served
}

fn report(notice: Notice, socket: &Path) {
    match notice {
        Notice::Refused => say(format_args!(
            "closed another connection to {}: a server serves one VM at a time; give each VM a server and a \
             socket of its own",
            socket.display()
        )),
        Notice::Ended(Ok(End::Protocol(what))) => {
            say(format_args!("the VMM's connection was ended: {what}"));
        }
        Notice::Ended(Err(why)) => say(format_args!("the VMM's connection failed: {why}")),
        _ => {}
    }
}
