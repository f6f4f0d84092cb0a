//! The device as a server of vfio-user.

use super::{Args, say_end, say_start, trace};
use crate::Usage;
use crate::interrupt::Interrupts;
use crate::output::say;
use crate::recording::{self, Failure};
use anyhow::{Context, Result, bail};
use hypertrace_device::adapter::vfio_user::{End, PATIENCE, serve};
use hypertrace_device::{BarForm, Counter, Geometry, PciFunction};
use hypertrace_format::folder::Folder;
use hypertrace_trace::monitor::MonitorError;
use hypertrace_trace::monitor::socket::{Entry, listen};
use hypertrace_trace::{Session, Share, Summary};
use hypertrace_vmm::{DeviceConfig, Hypertrace};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{RecvFlags, recv};
use std::io::ErrorKind;
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Shortest time between two connections: each begins a generation.
const PAUSE: Duration = Duration::from_millis(100);

/// The line about the first reset of a machine whose programs trace.
const RESET_LEASED: &str = "the VM was reset while its programs traced: a guest that boots again traces anew; one that loadvm \
                            brought back has lost the device, and its events are lost from now on";

/// Most bytes of a socket's path (unix(7)), without the zero at its end.
const LONGEST: usize = 107;

/// Records until the command is interrupted, or the VM ends with `--once`. Returns the summary, and whether
/// the session was written to its end.
pub fn record(args: &Args, path: &Path, failure: &Failure) -> Result<(Summary, Result<()>)> {
    let geometry = geometry(args)?;
    let socket = Socket::bind(path)?;
    let config = DeviceConfig { geometry, has_doorbells: false, ..DeviceConfig::new(0) };
    let device = Hypertrace::with_session(Session::create(trace(args, failure))?, config, None)?;
    let form = if args.bars == "32" { BarForm::Plain32 } else { BarForm::Prefetchable64 };
    let function = Arc::new(PciFunction::with_form(Arc::clone(device.chip()), form)?);
    let monitor = recording::serve(device.session());
    say_start(
        args,
        &format!(
            "-device '{{\"driver\":\"vfio-user-pci\",\"x-no-posted-writes\":true,\"socket\":{{\"type\":\
             \"unix\",\"path\":\"{}\"}}}}'",
            path.display()
        ),
    );
    let served = socket.serve(&function, args.once);
    drop(monitor);
    let was_reset = device.chip().count(Counter::ResetLeased) > 0;
    let (summary, written) = device.end();
    say_end(args, args.ring_size, &summary, was_reset);
    served?;
    Ok((summary, written.map_err(Into::into)))
}

fn geometry(args: &Args) -> Result<Geometry> {
    if !args.ring_size.is_power_of_two() {
        bail!(Usage(format!("--ring-size {}: a ring's KiB are a power of two", args.ring_size)));
    }
    let ring_bytes = args.ring_size << 10;
    Ok(Geometry {
        clients: args.clients,
        legacy_args: args.args,
        ring_bytes,
        block_bytes: (ring_bytes / 16).min(Geometry::default().block_bytes),
        ..Geometry::default()
    })
}

/// The socket at which VMs connect.
struct Socket<'p> {
    path: &'p Path,
    listener: UnixListener,
    /// Removes the file when it is dropped.
    _entry: Entry,
}

/// A client that is served.
struct Served {
    stream: UnixStream,
    /// Returns whether it was a VMM: it has sent something.
    thread: JoinHandle<bool>,
    /// Whether another connection was closed meanwhile, and a line has said so.
    has_refused: bool,
}

impl Socket<'_> {
    /// Makes the socket, in place of one that nobody serves.
    fn bind(path: &Path) -> Result<Socket<'_>> {
        let shown = path.display();
        let bytes = path.as_os_str().len();
        if bytes > LONGEST {
            bail!(Usage(format!(
                "--socket {shown}: it has {bytes} bytes, and a socket's path at most {LONGEST}"
            )));
        }
        let name = path.file_name().unwrap_or_default();
        let above = path.parent().filter(|above| !above.as_os_str().is_empty());
        let folder = Folder::open(above.unwrap_or(Path::new(".")), Share::Owner);
        let folder = folder.with_context(|| format!("cannot make {shown}"))?;
        match listen(folder, name) {
            Ok((listener, entry)) => Ok(Socket { path, listener, _entry: entry }),
            Err(MonitorError::NotASocket(_)) => {
                bail!(Usage(format!("--socket {shown}: there is a file that is no socket")))
            }
            Err(MonitorError::InUse(_)) => {
                bail!(Usage(format!("--socket {shown}: another process serves it")))
            }
            Err(why) => Err(why.into()),
        }
    }

    /// Serves one client after the other. One that connects while another is served is closed at once. The
    /// first of these is reported: its VMM may say only that a connection was closed, or nothing.
    fn serve(&self, function: &Arc<PciFunction>, once: bool) -> Result<()> {
        let mut served: Option<Served> = None;
        let mut is_first = true;
        let was_reset = || function.chip().count(Counter::ResetLeased) > 0;
        let mut told = None;
        let result = loop {
            if told.is_none() && was_reset() {
                // On a thread of its own: stderr may be a pipe that nobody reads.
                told = Some(thread::spawn(|| say(RESET_LEASED)));
            }
            if served.as_ref().is_some_and(|served| served.thread.is_finished()) {
                is_first &= !end(served.take())?;
            }
            if Interrupts::came().is_some() || once && !is_first && served.is_none() {
                break Ok(());
            }
            match self.listener.accept() {
                Ok((stream, _)) => {
                    if served.as_ref().is_some_and(|served| has_closed(&served.stream)) {
                        is_first &= !end(served.take())?;
                    }
                    if let Some(served) = &mut served {
                        if !std::mem::replace(&mut served.has_refused, true) {
                            // On a thread of its own: stderr may be a pipe that nobody reads.
                            let line = self.refusal();
                            thread::spawn(move || say(line));
                        }
                        continue;
                    }
                    if once && !is_first {
                        continue;
                    }
                    match start(function, stream, is_first) {
                        Ok(client) => served = Some(client),
                        Err(why) => break Err(why),
                    }
                }
                Err(why) if why.kind() == ErrorKind::WouldBlock => {
                    thread::sleep(Duration::from_millis(20));
                }
                Err(why) => break Err(why).context("cannot accept a connection"),
            }
        };
        end(served)?;
        match told {
            Some(told) => drop(told.join()),
            None if was_reset() => say(RESET_LEASED),
            None => {}
        }
        result
    }

    /// Returns the line about a connection that was closed because another one is served.
    fn refusal(&self) -> String {
        format!(
            "closed another connection to {}: it serves one VM at a time; give each VM a server and a \
             socket of its own",
            self.path.display()
        )
    }
}

/// Starts to serve a client. Each after the first has a device as after a reset.
fn start(function: &Arc<PciFunction>, stream: UnixStream, is_first: bool) -> Result<Served> {
    stream.set_nonblocking(false).context("cannot use a connection")?;
    let (function, theirs) = (Arc::clone(function), stream.try_clone()?);
    let run = move || {
        let is_vmm = sends(&theirs);
        if is_vmm {
            if !is_first {
                thread::sleep(PAUSE);
                function.reset(|_| ());
            }
            match serve(&function, &theirs) {
                Ok(End::Closed) => {}
                Ok(End::Protocol(what)) => {
                    say(format_args!("the VMM's connection was ended: {what}"));
                }
                Ok(_) => {}
                Err(why) => say(format_args!("the VMM's connection failed: {why}")),
            }
        }
        // The client learns of the end by the last descriptor.
        let _ = theirs.shutdown(Shutdown::Both);
        is_vmm
    };
    let thread = thread::Builder::new().name("vfio-user".into()).spawn(run);
    let thread = thread.context("cannot start a thread")?;
    Ok(Served { stream, thread, has_refused: false })
}

/// Waits for a client's first byte. Returns false if there is none: another process only looks whether the socket
/// is served, or holds it.
fn sends(stream: &UnixStream) -> bool {
    let mut byte = [0];
    stream.set_read_timeout(Some(PATIENCE)).is_ok()
        && recv(stream, &mut byte, RecvFlags::PEEK).is_ok_and(|(n, _)| n > 0)
}

/// Returns whether the other side of a connection has closed it.
fn has_closed(stream: &UnixStream) -> bool {
    // The end is reported without being asked for.
    let mut polled = [PollFd::new(stream, PollFlags::empty())];
    poll(&mut polled, Some(&Timespec::default())).is_ok_and(|n| n > 0)
}

/// Ends a connection. Returns whether it was a VMM's.
///
/// # Errors
/// If it does not end: the client has sent a descriptor, and the kernel waits while it is closed. The thread
/// is left to itself, and the device must not be given to another client.
fn end(served: Option<Served>) -> Result<bool> {
    let Some(Served { stream, thread, .. }) = served else { return Ok(false) };
    let _ = stream.shutdown(Shutdown::Both);
    let begun = Instant::now();
    while !thread.is_finished() {
        if begun.elapsed() > PATIENCE {
            bail!("the VMM's connection does not end: a descriptor that it sent cannot be closed");
        }
        thread::sleep(Duration::from_millis(1));
    }
    Ok(thread.join().unwrap_or(true))
}
