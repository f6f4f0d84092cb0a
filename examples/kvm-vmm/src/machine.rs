//! A machine, which runs the guest image on vCPUs, from the first instruction to the program's end or a time
//! limit.

use std::panic::{self, AssertUnwindSafe};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, OnceLock};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use hypertrace_guest::{Args, BOARD_RESULTS, Board, MAX_VCPUS, layout};
use kvm_ioctls::VcpuFd;
use vm_memory::{Bytes, GuestAddress};
use vmm_sys_util::errno::Error as Errno;
use vmm_sys_util::signal::{Killable, SIGRTMIN, register_signal_handler};

use crate::boot;
use crate::bus::Bus;
use crate::control::Control;
use crate::error::{Error, VcpuError, kvm};
use crate::image;
use crate::observe::Observer;
use crate::vcpu::{self, Shared};
use crate::vm::Vm;

/// Machine that is ready to run one program.
pub struct Machine {
    vm: Arc<Vm>,
    pub(crate) vcpus: Vec<Vcpu>,
    shared: Shared,
    /// Function that the running machine calls to learn whether to stop.
    is_asked_to_stop: Option<fn() -> bool>,
}

/// A vCPU that is not running.
pub(crate) struct Vcpu {
    pub fd: VcpuFd,
    /// Whether the vCPU's program has ended.
    pub has_ended: bool,
}

/// State of a machine after [`Machine::run_for`].
pub enum Progress {
    /// All programs have ended.
    Ended(Outcome),
    /// Some programs have not ended, and continue when the machine runs again.
    Paused(Machine),
}

/// Period of the calls of the function that decides whether to stop.
const STOP_PERIOD: Duration = Duration::from_millis(20);

/// Results of a program that succeeded.
#[derive(Debug)]
pub struct Outcome {
    /// Console output: bytes of the guest, to be escaped for a terminal.
    pub console: Vec<u8>,
    /// The values that each vCPU posted on the [`Board`].
    pub results: Vec<[u64; BOARD_RESULTS]>,
}

impl Machine {
    /// Makes a machine with `vcpus` vCPUs and an empty bus.
    ///
    /// # Errors
    /// [`Error::Unusable`] if this host has no usable KVM.
    pub fn new(vcpus: usize) -> Result<Machine, Error> {
        if !(1..=MAX_VCPUS).contains(&vcpus) {
            return Err(Error::VcpuCount(vcpus));
        }
        let vm = Vm::new()?;
        let entry = boot::load(&vm)?;
        let vcpus = (0..vcpus)
            .map(|index| Ok(Vcpu { fd: boot::create_vcpu(&vm, index, entry)?, has_ended: false }))
            .collect::<Result<_, Error>>()?;
        Ok(Machine {
            vm,
            vcpus,
            shared: Shared {
                bus: Bus::default(),
                control: Control::default(),
                observer: Arc::new(|_| ()),
                stop: AtomicBool::new(false),
            },
            is_asked_to_stop: None,
        })
    }

    /// Returns the VM. With the VM, the caller can map memory and arm doorbells, also while the machine runs.
    pub fn vm(&self) -> &Arc<Vm> {
        &self.vm
    }

    /// Returns the number of vCPUs.
    pub fn vcpus(&self) -> usize {
        self.vcpus.len()
    }

    /// Returns the number of vCPUs whose programs have not ended.
    pub fn running(&self) -> usize {
        self.vcpus.iter().filter(|vcpu| !vcpu.has_ended).count()
    }

    /// Returns the bus, to add devices before the machine runs.
    pub fn bus_mut(&mut self) -> &mut Bus {
        &mut self.shared.bus
    }

    /// Sets the observer of the machine's events. There is no observer at first. The caller must set the
    /// observer before it attaches devices, because devices use the observer, too.
    pub fn observe(&mut self, observer: Observer) {
        self.shared.observer = observer;
    }

    /// Stops the machine when this function returns true. The machine calls the function some 50 times a
    /// second.
    pub fn stop_when(&mut self, is_asked: fn() -> bool) {
        self.is_asked_to_stop = Some(is_asked);
    }

    pub(crate) fn observer(&self) -> Observer {
        Arc::clone(&self.shared.observer)
    }

    /// Runs the program in `args` on all vCPUs at once, until all programs have ended.
    ///
    /// # Errors
    /// If a vCPU fails or ends with a code other than 0, if the time limit is over, or if the function
    /// of [`stop_when`](Machine::stop_when) returns true. No vCPU is running when this returns.
    pub fn run(self, args: &Args, limit: Duration) -> Result<Outcome, Error> {
        self.write_args(args)?;
        match self.run_for(limit)? {
            Progress::Ended(outcome) => Ok(outcome),
            Progress::Paused(machine) => Err(Error::TimedOut { running: machine.running(), limit }),
        }
    }

    /// Writes the program's arguments, before the first [`run_for`](Machine::run_for).
    ///
    /// # Errors
    /// If the guest's memory cannot be written.
    pub fn write_args(&self, args: &Args) -> Result<(), Error> {
        image::write_args(&self.vm, &Args { vcpus: self.vcpus.len() as u32, ..args.clone() })
    }

    /// Runs all vCPUs until their programs have ended, and pauses the vCPUs that still run after this time.
    ///
    /// # Errors
    /// As for [`run`](Machine::run), except for the time limit.
    pub fn run_for(self, time: Duration) -> Result<Progress, Error> {
        let deadline = Instant::now() + time;
        let kick = kick_signal()?;
        let Machine { vm, vcpus, shared, is_asked_to_stop } = self;
        let shared = Arc::new(shared);
        shared.stop.store(false, Ordering::Relaxed);
        let (ended, ends) = mpsc::channel();
        let (mut threads, mut paused) = (Vec::new(), Vec::new());
        let mut failed = None;
        for (index, mut vcpu) in vcpus.into_iter().enumerate() {
            if vcpu.has_ended || failed.is_some() {
                paused.push((index, vcpu));
                continue;
            }
            let (ended, shared) = (ended.clone(), Arc::clone(&shared));
            let spawned = thread::Builder::new().name(format!("vcpu{index}")).spawn(move || {
                // A panic of a device must reach the receiver as an error, because the other vCPUs must not
                // wait for this vCPU.
                let run = AssertUnwindSafe(|| vcpu::run(index, &mut vcpu.fd, &shared));
                let end = panic::catch_unwind(run).unwrap_or(Err(VcpuError::Panicked));
                vcpu.has_ended = matches!(end, Ok(Some(_)));
                // The receiver is dropped only after the run.
                let _ = ended.send((index, end));
                (index, vcpu)
            });
            match spawned {
                Ok(thread) => threads.push(thread),
                Err(source) => failed = Some(Error::Thread(source)),
            }
        }
        drop(ended);

        let mut running = threads.len();
        while running > 0 && failed.is_none() {
            if is_asked_to_stop.is_some_and(|is_asked| is_asked()) {
                failed = Some(Error::Stopped);
                break;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            let wait = is_asked_to_stop.map_or(left, |_| left.min(STOP_PERIOD));
            match ends.recv_timeout(wait) {
                Ok((_, Ok(Some(0)) | Ok(None))) => running -= 1,
                Ok((vcpu, end)) => failed = Some(failure(vcpu, end, &shared)),
                Err(RecvTimeoutError::Timeout) if wait < left => {}
                // The channel is disconnected only after all threads have sent their results.
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => break,
            }
        }
        shared.stop.store(true, Ordering::Relaxed);
        paused.extend(stop(threads, kick));
        // A program may have failed while its vCPU was stopped.
        while failed.is_none()
            && let Ok((vcpu, end)) = ends.try_recv()
        {
            failed = match end {
                Ok(Some(0) | None) => None,
                end => Some(failure(vcpu, end, &shared)),
            };
        }
        if let Some(error) = failed {
            return Err(error);
        }
        if paused.iter().all(|(_, vcpu)| vcpu.has_ended) {
            return Ok(Progress::Ended(outcome(&vm, &shared, paused.len())?));
        }
        paused.sort_by_key(|(index, _)| *index);
        let vcpus = paused.into_iter().map(|(_, vcpu)| vcpu).collect();
        // The threads have ended.
        let shared = Arc::into_inner(shared).ok_or(Error::Stopped)?;
        Ok(Progress::Paused(Machine { vm, vcpus, shared, is_asked_to_stop }))
    }
}

fn failure(vcpu: usize, end: Result<Option<u32>, VcpuError>, shared: &Shared) -> Error {
    match end {
        Ok(code) => {
            let console = shared.control.take_console().escape_ascii().to_string();
            Error::Program { vcpu, code: code.unwrap_or(0), console }
        }
        Err(source) => Error::Vcpu { vcpu, source },
    }
}

fn outcome(vm: &Vm, shared: &Shared, vcpus: usize) -> Result<Outcome, Error> {
    let mut results = Vec::new();
    for cpu in 0..vcpus {
        let mut words = [0; BOARD_RESULTS];
        let base = layout::BOARD + Board::results_offset(cpu) as u64;
        for (index, word) in words.iter_mut().enumerate() {
            *word = u64::from_le(vm.ram().read_obj(GuestAddress(base + 8 * index as u64))?);
        }
        results.push(words);
    }
    Ok(Outcome { console: shared.control.take_console(), results })
}

/// Ends the vCPU threads, and returns their vCPUs. The caller has set `stop` before.
fn stop<T>(threads: Vec<JoinHandle<T>>, kick: i32) -> Vec<T> {
    let ended = threads.into_iter().filter_map(|thread| {
        // The signal is repeated until the thread ends. A signal between the thread's load of `stop` and its
        // KVM_RUN would interrupt nothing. (As an alternative, the handler could set `immediate_exit` through
        // a thread-local pointer into KVM's page.)
        while !thread.is_finished() {
            // The signal fails only for a thread that has ended.
            let _ = thread.kill(kick);
            thread::sleep(Duration::from_millis(1));
        }
        // The thread has sent its result, and does not panic afterwards.
        thread.join().ok()
    });
    ended.collect()
}

/// Installs the handler of the signal that interrupts KVM_RUN, once per process, and returns the
/// signal's number.
fn kick_signal() -> Result<i32, Error> {
    static SIGNAL: OnceLock<Result<i32, Errno>> = OnceLock::new();
    extern "C" fn ignore(_: libc::c_int, _: *mut libc::siginfo_t, _: *mut libc::c_void) {}
    let installed = SIGNAL.get_or_init(|| {
        let signal = SIGRTMIN();
        register_signal_handler(signal, ignore).map(|()| signal)
    });
    installed.map_err(kvm("sigaction"))
}
