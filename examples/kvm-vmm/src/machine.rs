//! A machine: the guest image on vCPUs, from the first instruction to the end or the time limit.

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
use crate::observe::Observer;
use crate::vcpu::{self, Shared};
use crate::vm::Vm;

/// A machine that is ready to run one program.
pub struct Machine {
    vm: Arc<Vm>,
    vcpus: Vec<VcpuFd>,
    shared: Shared,
    /// Memory slots and doorbells that stand while the machine does.
    parts: Vec<Box<dyn Send>>,
    /// Asked while it runs whether to stop.
    is_asked_to_stop: Option<fn() -> bool>,
}

/// How often a machine asks whether to stop.
const STOP_PERIOD: Duration = Duration::from_millis(20);

/// What a program that ended well leaves.
#[derive(Debug)]
pub struct Outcome {
    /// What it wrote to the console: bytes of the guest, not to be shown on a terminal unescaped.
    pub console: Vec<u8>,
    /// What each vCPU posted on the [`Board`].
    pub results: Vec<[u64; BOARD_RESULTS]>,
}

impl Machine {
    /// A machine with `vcpus` vCPUs and an empty bus.
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
            .map(|index| boot::create_vcpu(&vm, index, entry))
            .collect::<Result<_, _>>()?;
        Ok(Machine {
            vm,
            vcpus,
            shared: Shared {
                bus: Bus::default(),
                control: Control::default(),
                observer: Arc::new(|_| ()),
                stop: AtomicBool::new(false),
            },
            parts: Vec::new(),
            is_asked_to_stop: None,
        })
    }

    /// The VM, to map memory and arm doorbells; it may be kept and used while the machine runs.
    pub fn vm(&self) -> &Arc<Vm> {
        &self.vm
    }

    /// The bus, to add devices before the machine runs.
    pub fn bus_mut(&mut self) -> &mut Bus {
        &mut self.shared.bus
    }

    /// Whom the machine tells what it does; nobody at first. Set it before devices are attached:
    /// they tell the same one.
    pub fn observe(&mut self, observer: Observer) {
        self.shared.observer = observer;
    }

    /// Has the machine ask, some 50 times a second while it runs, whether to stop.
    pub fn stop_when(&mut self, is_asked: fn() -> bool) {
        self.is_asked_to_stop = Some(is_asked);
    }

    pub(crate) fn observer(&self) -> Observer {
        Arc::clone(&self.shared.observer)
    }

    /// Keeps `part` until the machine has run.
    pub(crate) fn keep(&mut self, part: impl Send + 'static) {
        self.parts.push(Box::new(part));
    }

    /// Runs the program that `args` asks for, on every vCPU at once, until all have ended.
    ///
    /// # Errors
    /// The first vCPU that fails or ends with a code other than 0 stops the others; so does the end
    /// of `limit`, and whoever [asks](Machine::stop_when). No vCPU is running when this returns.
    pub fn run(self, args: &Args, limit: Duration) -> Result<Outcome, Error> {
        let deadline = Instant::now() + limit;
        let kick = kick_signal()?;
        let vcpus = self.vcpus.len();
        boot::write_args(&self.vm, &Args { vcpus: vcpus as u32, ..args.clone() })?;

        let shared = Arc::new(self.shared);
        let (ended, ends) = mpsc::channel();
        let mut threads = Vec::new();
        let mut failed = None;
        for (index, mut fd) in self.vcpus.into_iter().enumerate() {
            let (ended, shared) = (ended.clone(), Arc::clone(&shared));
            let spawned = thread::Builder::new().name(format!("vcpu{index}")).spawn(move || {
                // A device that panics must not leave the others waiting for this vCPU.
                let run = AssertUnwindSafe(|| vcpu::run(index, &mut fd, &shared));
                let end = panic::catch_unwind(run).unwrap_or(Err(VcpuError::Panicked));
                // The receiver is gone only when the run is over anyway.
                let _ = ended.send((index, end));
            });
            match spawned {
                Ok(thread) => threads.push(thread),
                Err(source) => {
                    failed = Some(Error::Thread(source));
                    break;
                }
            }
        }
        drop(ended);

        let mut running = threads.len();
        while running > 0 && failed.is_none() {
            if self.is_asked_to_stop.is_some_and(|is_asked| is_asked()) {
                failed = Some(Error::Stopped);
                break;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            let wait = self.is_asked_to_stop.map_or(left, |_| left.min(STOP_PERIOD));
            match ends.recv_timeout(wait) {
                Ok((_, Ok(Some(0)) | Ok(None))) => running -= 1,
                Ok((vcpu, Ok(Some(code)))) => {
                    let console = shared.control.take_console().escape_ascii().to_string();
                    failed = Some(Error::Program { vcpu, code, console });
                }
                Ok((vcpu, Err(source))) => failed = Some(Error::Vcpu { vcpu, source }),
                Err(RecvTimeoutError::Timeout) if wait < left => {}
                Err(RecvTimeoutError::Timeout) => failed = Some(Error::TimedOut { running, limit }),
                // Not before every thread has said its end.
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
        shared.stop.store(true, Ordering::Relaxed);
        stop(threads, kick);
        match failed {
            Some(error) => Err(error),
            None => outcome(&self.vm, &shared, vcpus),
        }
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

/// Ends the vCPU threads, `stop` being set.
fn stop(threads: Vec<JoinHandle<()>>, kick: i32) {
    for thread in threads {
        // Again and again until it is out: a signal that comes after the thread looked at `stop`
        // and before it is in KVM_RUN interrupts nothing. (The other way is `immediate_exit`, set
        // by the handler through a thread-local pointer into KVM's page.)
        while !thread.is_finished() {
            // It fails only for a thread that has ended.
            let _ = thread.kill(kick);
            thread::sleep(Duration::from_millis(1));
        }
        // What it had to say it has sent.
        let _ = thread.join();
    }
}

/// The signal that makes KVM_RUN return, its handler installed once per process.
fn kick_signal() -> Result<i32, Error> {
    static SIGNAL: OnceLock<Result<i32, Errno>> = OnceLock::new();
    extern "C" fn ignore(_: libc::c_int, _: *mut libc::siginfo_t, _: *mut libc::c_void) {}
    let installed = SIGNAL.get_or_init(|| {
        let signal = SIGRTMIN();
        register_signal_handler(signal, ignore).map(|()| signal)
    });
    installed.map_err(kvm("sigaction"))
}
