//! The recorder of a function trace: the state that all vCPUs share, and the state of each vCPU.
//!
//! The code is unsafe because QEMU's callbacks reach the recorder through a static, and each vCPU's state
//! without a lock.
#![allow(unsafe_code)]

use super::InstallError;
use super::clock::Clock;
use super::code::Code;
use super::level::{LEVELS, Level, Levels};
use super::libraries;
use super::options::{Options, Part};
use super::region::Region;
use super::site::{Site, Sites};
use super::stack_pointer::StackPointer;
use super::tracer::Tracer;
use super::windows::Keeper;
use crate::api::{Instruction, Qemu};
use crate::target::Target;
use crate::{say, with_causes};
use hypertrace_functions::Task;
use hypertrace_functions::record::{Record, RecordType};
use hypertrace_functions::shadow::Settings;
use hypertrace_functions::symbols::Source;
use hypertrace_functions::write::{Directory, cut};
use hypertrace_segment::signals::SignalsBlocked;
use memmap2::MmapMut;
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use std::cell::{Cell, UnsafeCell};
use std::ffi::c_uint;
use std::mem::ManuallyDrop;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

/// First version of the API in which QEMU calls back for the loads of return instructions, and shows
/// registers.
pub const FULL: i32 = 2;

/// First version of the API that shows the values of stores.
pub const VALUES: i32 = 4;

/// First address of kernels, in the upper half, on both architectures.
const KERNELS: u64 = 1 << 63;

/// Name of the module that contains the functions of a program and of the program's libraries.
const PROGRAM: &str = "program";

/// Maximum number of vCPUs, or threads of a program, that are recorded.
const MAX_VCPUS: usize = 1024;

thread_local! {
    /// Number of vCPUs with records that this thread runs.
    static OWN: Cell<u64> = const { Cell::new(0) };
}

/// The recorder of a function trace.
pub struct Recorder {
    /// The guest's architecture.
    pub target: Target,
    /// The guest's privilege levels.
    pub levels: Levels,
    /// Whether the guest is a whole machine, whose code has several privilege levels.
    pub is_machine: bool,
    /// Whether QEMU calls back for the loads of return instructions, and shows registers.
    pub is_full: bool,
    /// Whether QEMU shows the values of stores.
    pub has_values: bool,
    by_level: bool,
    settings: Settings,
    clock: Clock,
    vcpus: Box<[Vcpu]>,
    sites: Mutex<Sites>,
    directory: Mutex<Directory>,
    keeper: Mutex<Option<Keeper>>,
    has_ended: AtomicBool,
    /// Whether the plugin has reported on stderr that a vCPU has no records.
    has_failed: AtomicBool,
    /// Names of functions, and which functions are recorded. A program's names are known after QEMU has
    /// translated the first code of the program.
    code: OnceLock<Code>,
    sources: Vec<Source>,
    /// QEMU's address of a program's code minus the program's own address. The value is unset for a machine.
    guest_base: OnceLock<u64>,
    parts: Vec<Part>,
    /// The only privilege level that is recorded; `None`: all levels are recorded.
    level: Option<Level>,
    region: Option<Region>,
    /// Number of child processes of the emulated program, in memory that these processes share.
    children: Children,
    /// Copies of the stack pointers, if the stack pointers can be followed.
    stack_pointer: Option<StackPointer>,
    /// Number of vCPUs with records.
    in_use: AtomicU64,
    /// Number of calls and returns on vCPUs for which the plugin keeps no records.
    left_out: AtomicU64,
}

/// State of a vCPU, which only the thread that runs the vCPU uses.
#[derive(Default)]
struct Vcpu(UnsafeCell<Tracers>);

/// Records of a vCPU by privilege level.
#[derive(Default)]
struct Tracers {
    all: [Option<Box<Tracer>>; LEVELS],
    /// Level of the last event.
    last: Level,
    /// Whether the recorder makes no further tracers for this vCPU.
    is_closed: bool,
}

impl Tracers {
    /// Returns the kernel's stack that is in use, or 0. The kernel has a stack for each thread of each
    /// program.
    #[inline]
    fn kernel_stack(&self, levels: Levels) -> u64 {
        let kernel = self.all.get(usize::from(levels.kernels.0)).and_then(Option::as_ref);
        kernel.and_then(|kernel| kernel.kernel_stack()).unwrap_or(0)
    }
}

/// Number of child processes. Each child process adds itself.
struct Children(&'static AtomicU64);

impl Children {
    /// Maps memory that child processes share.
    fn new() -> Option<Children> {
        let file = memfd_create("children", MemfdFlags::CLOEXEC).ok()?;
        ftruncate(&file, size_of::<AtomicU64>() as u64).ok()?;
        // SAFETY: only this process and its children have the file.
        let map = ManuallyDrop::new(unsafe { MmapMut::map_mut(&file) }.ok()?);
        // SAFETY: the memory is zeroed, aligned to a page, and never unmapped.
        Some(Children(unsafe { &*map.as_ptr().cast::<AtomicU64>() }))
    }
}

// SAFETY: see `Recorder::tracer`.
unsafe impl Sync for Vcpu {}

impl Recorder {
    /// Makes the directory, and starts the thread that keeps its files.
    ///
    /// # Errors
    /// If the directory is not empty or cannot be made, or the thread cannot be started.
    pub fn start(qemu: &Qemu, target: Target, options: &Options) -> Result<Recorder, InstallError> {
        let arguments = std::env::args_os().map(|word| word.to_string_lossy().into_owned());
        let command = arguments.collect::<Vec<_>>().join(" ");
        let _signals_blocked = SignalsBlocked::begin_to_write();
        // A program may change the current directory, and QEMU itself changes the current directory when QEMU
        // becomes a daemon.
        let dir = std::path::absolute(&options.dir).map_err(InstallError::Path)?;
        if qemu.is_machine && qemu.version < FULL {
            return Err(InstallError::Registers(qemu.version));
        }
        if options.region.is_some() && qemu.is_machine && qemu.version < VALUES {
            return Err(InstallError::Region(qemu.version));
        }
        let mut code = Code::read(&options.symbols)?;
        if qemu.is_machine {
            code.keep(&options.parts)?;
        }
        let mut directory = Directory::create(&dir, "guest", &command)?;
        if qemu.is_machine && !code.symbols().is_empty() {
            directory.add_module("guest", code.symbols())?;
        }
        let (clock, anchor) = Clock::start();
        directory.write_anchor(&anchor)?;
        let keeper = Keeper::start(options.limit).map_err(InstallError::Thread)?;
        let defaults = Settings::default();
        let mut recorder = Recorder {
            target,
            levels: Levels::of(target),
            is_machine: qemu.is_machine,
            is_full: qemu.version >= FULL,
            has_values: qemu.version >= VALUES,
            by_level: options.by_level,
            settings: Settings {
                min: options.min,
                depth: options.depth.unwrap_or(defaults.depth),
                nested: !options.by_level,
                paused: options.region.is_some(),
                named_at_start: !options.parts.is_empty(),
                ..defaults
            },
            clock,
            vcpus: (0..MAX_VCPUS).map(|_| Vcpu::default()).collect(),
            sites: Mutex::default(),
            directory: Mutex::new(directory),
            keeper: Mutex::new(Some(keeper)),
            has_ended: AtomicBool::new(false),
            has_failed: AtomicBool::new(false),
            code: if qemu.is_machine { code.into() } else { OnceLock::new() },
            sources: options.symbols.clone(),
            guest_base: OnceLock::new(),
            parts: options.parts.clone(),
            level: options.level,
            region: options.region.as_deref().map(Region::new),
            children: Children::new().ok_or(InstallError::Fork)?,
            stack_pointer: None,
            in_use: AtomicU64::new(0),
            left_out: AtomicU64::new(0),
        };
        if target == Target::Aarch64 && recorder.is_full && recorder.sees_all() {
            recorder.stack_pointer = StackPointer::new();
        }
        Ok(recorder)
    }

    /// Returns the names of functions, and which functions are recorded. This method may be called only in a
    /// callback of a vCPU.
    pub fn code(&self) -> &Code {
        self.code.get_or_init(|| self.read_program())
    }

    /// Reads the symbols of the program that is about to run.
    fn read_program(&self) -> Code {
        let _signals_blocked = SignalsBlocked::begin_to_write();
        let made = || -> Result<Code, InstallError> {
            let mut code = Code::read(&self.sources)?;
            code.add_program();
            code.keep(&self.parts)?;
            if !code.symbols().is_empty() {
                lock(&self.directory).add_module(PROGRAM, code.symbols())?;
            }
            Ok(code)
        };
        made().unwrap_or_else(|why| {
            say(format_args!("hypertrace plugin: {}", with_causes(&why)));
            // If a file cannot be removed, then the next use of the directory reports that file.
            let _ = lock(&self.directory).discard();
            // SAFETY: `_exit` ends the process at once. QEMU ends the process after an error at installation,
            // too, and no code of the program has run yet. QEMU's own exit is not used, because QEMU would
            // call this plugin again.
            unsafe { libc::_exit(1) }
        })
    }

    /// Adds the names of a program's libraries to the directory.
    fn name_libraries(&self) {
        let (Some(base), Some(code)) = (self.guest_base(), self.code.get()) else { return };
        let Ok(maps) = std::fs::read("/proc/self/maps") else { return };
        let observed = lock(&self.sites).addresses();
        let symbols = code.with_libraries(libraries::files(&maps, base), &observed);
        if symbols.len() > code.symbols().len() {
            // An error is ignored, because a trace without the libraries' names still has the names of the
            // program.
            let _ = lock(&self.directory).set_module(PROGRAM, &symbols);
        }
    }

    /// Finds out how much QEMU's addresses differ from the program's addresses.
    pub fn find_guest_base(&self, of: &Instruction<'_>) {
        if !self.is_machine
            && self.guest_base.get().is_none()
            && let Some(base) = of.guest_base()
        {
            self.guest_base.get_or_init(|| base);
        }
    }

    /// Returns how much QEMU's addresses differ from the program's addresses.
    #[inline]
    pub fn guest_base(&self) -> Option<u64> {
        self.guest_base.get().copied()
    }

    /// Returns a program's bytes at an address, if memory is mapped there.
    pub fn code_at<const N: usize>(&self, address: u64) -> Option<[u8; N]> {
        let at = address.wrapping_add(self.guest_base()?);
        let mut bytes = [0; N];
        let local = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: N };
        let remote = libc::iovec { iov_base: at as *mut _, iov_len: N };
        // SAFETY: the call writes into `bytes` only; a bad address is an error.
        let read = unsafe { libc::process_vm_readv(libc::getpid(), &local, 1, &remote, 1, 0) };
        (read == N as isize).then_some(bytes)
    }

    /// Returns the region in which functions are recorded.
    pub fn region(&self) -> Option<&Region> {
        self.region.as_ref()
    }

    /// Counts a child process. The child calls this method.
    pub fn count_child(&self) {
        self.children.0.fetch_add(1, Relaxed);
    }

    /// Returns whether code of a privilege level is recorded.
    pub fn records(&self, level: Level) -> bool {
        self.level.is_none_or(|only| only == level)
    }

    /// Returns whether the plugin observes all calls and returns. If the plugin observes all calls and
    /// returns, each event shows which stack the next event is on. Returns false for a program, because
    /// signals change a program's stack, too.
    pub fn sees_all(&self) -> bool {
        self.is_machine && self.level.is_none() && self.parts.is_empty()
    }

    /// Returns whether an instruction may run at another address than the address for which QEMU has
    /// translated the instruction. QEMU runs translated code at each virtual address of the code's page:
    /// programs map the same code at different addresses, and a kernel runs its first code at physical
    /// addresses. After a kernel's start, the kernel runs each instruction at one address only.
    #[inline]
    pub fn may_run_elsewhere(&self, site: &Site) -> bool {
        self.is_machine && (site.level == self.levels.programs || site.at < KERNELS)
    }

    /// Returns the copies of the stack pointers.
    #[inline]
    pub fn stack_pointer(&self) -> Option<&StackPointer> {
        self.stack_pointer.as_ref()
    }

    /// Handles a store of this value to EMIT.
    pub fn emitted(&self, value: u64) {
        if let Some(region) = &self.region {
            region.emitted(value, self.clock.now());
        }
    }

    /// Returns the place of a translated instruction; `None` if there are too many places.
    pub fn place(&self, site: Site) -> Option<*const Site> {
        lock(&self.sites).place(site)
    }

    /// Forgets the places of all code, because QEMU has dropped all translated code.
    pub fn forget_places(&self) {
        lock(&self.sites).forget();
    }

    /// Calls `f` with the tracer of a vCPU at a privilege level, and with the time.
    ///
    /// # Safety
    /// The calling thread runs this vCPU, or no thread does.
    #[inline]
    pub unsafe fn tracer(&self, vcpu: c_uint, level: Level, f: impl FnOnce(&mut Tracer, u64)) {
        let track = if self.by_level { level } else { Level(0) };
        if let Some(vcpu_part) = self.vcpus.get(vcpu as usize) {
            // SAFETY: by the caller's promise, no other thread has a reference.
            let tracers = unsafe { &mut *vcpu_part.0.get() };
            let has_changed = std::mem::replace(&mut tracers.last, level) != level;
            let is_program = self.is_machine && track == self.levels.programs;
            let thread = is_program.then(|| tracers.kernel_stack(self.levels));
            if let Some(tracer) = tracers.all.get_mut(usize::from(track.0)).and_then(Option::as_mut)
            {
                if let Some(thread) = thread {
                    tracer.set_space(thread);
                }
                if has_changed {
                    tracer.moves();
                }
                let time = self.time(tracer);
                return f(tracer, time);
            }
            if let Some(tracer) = self.open(tracers, vcpu, track) {
                let time = self.time(tracer);
                return f(tracer, time);
            }
        }
        self.left_out.fetch_add(1, Relaxed);
    }

    /// First resumes recording if a region is open, or pauses recording if no region is open. Then returns
    /// the time of an event.
    #[inline]
    fn time(&self, tracer: &mut Tracer) -> u64 {
        if let Some(region) = &self.region {
            let is_paused = !region.is_open();
            if tracer.is_paused() != is_paused {
                tracer.turn(is_paused, region.time());
            }
            if is_paused {
                return tracer.time_while_paused();
            }
        }
        self.clock.now()
    }

    /// Makes the records of a vCPU at a level.
    #[cold]
    fn open<'l>(
        &self,
        tracers: &'l mut Tracers,
        vcpu: u32,
        level: Level,
    ) -> Option<&'l mut Tracer> {
        if tracers.is_closed || self.has_ended.load(Relaxed) {
            return None;
        }
        let _signals_blocked = SignalsBlocked::begin_to_write();
        let name = if self.by_level { self.levels.name(level) } else { "all".into() };
        let task = Task::of_vcpu(vcpu, level.0.into(), &name);
        let mut directory = lock(&self.directory);
        let path = directory.records(task.tid);
        let made = directory.add_tasks([task]).map_err(|why| with_causes(&why));
        let made = made.and_then(|()| {
            let keeper = lock(&self.keeper);
            let keeper = keeper.as_ref().ok_or("the trace has ended")?;
            keeper.track(&path).map_err(|why| format!("{}: {why}", path.display()))
        });
        match made {
            Ok(track) => {
                let is_first = tracers.all.iter().all(Option::is_none);
                self.in_use.fetch_add(is_first.into(), Relaxed);
                OWN.set(OWN.get() + u64::from(is_first));
                let tracer = Box::new(Tracer::new(self.settings, track));
                tracers.all.get_mut(usize::from(level.0)).map(|place| &mut **place.insert(tracer))
            }
            Err(why) => {
                tracers.is_closed = true;
                // Only the first failure is reported; `left_out` counts the events of all vCPUs without
                // records.
                if self.has_failed.swap(true, Relaxed) {
                    return None;
                }
                say(format_args!("hypertrace: functions of vCPU {vcpu} are not recorded: {why}"));
                None
            }
        }
    }

    /// Ends the records of a vCPU that has ended.
    ///
    /// # Safety
    /// As for [`Recorder::tracer`].
    pub unsafe fn end_vcpu(&self, vcpu: c_uint) -> Totals {
        let mut totals = Totals::default();
        let Some(vcpu) = self.vcpus.get(vcpu as usize) else { return totals };
        // SAFETY: by the caller's promise, no other thread has a reference.
        let tracers = unsafe { &mut *vcpu.0.get() };
        for tracer in tracers.all.iter_mut().flatten() {
            let time = self.time(tracer);
            tracer.close(time);
            totals.add(tracer);
        }
        totals
    }

    /// Ends the trace. Returns counts of what was recorded, and of what could not be recorded.
    ///
    /// # Safety
    /// No thread runs a vCPU.
    pub unsafe fn end(&self) -> Totals {
        let _signals_blocked = SignalsBlocked::begin_to_write();
        self.has_ended.store(true, Relaxed);
        let mut totals = Totals::default();
        let mut rests = Vec::new();
        for vcpu in 0..MAX_VCPUS {
            // SAFETY: by the caller's promise, no thread runs a vCPU.
            totals.join(&unsafe { self.end_vcpu(vcpu as c_uint) });
            // SAFETY: by the caller's promise, no thread runs a vCPU.
            rests.extend(unsafe { self.rest(vcpu) });
        }
        totals.children = self.children.0.load(Relaxed);
        totals.regions = self.region.as_ref().map(Region::begun);
        totals.left_out = self.left_out.load(Relaxed);
        totals.not_observed = lock(&self.sites).left_out();
        let failure = lock(&self.keeper).take().and_then(Keeper::end);
        // If no record was lost, then the failure is not reported, because no track needed the window that
        // could not be made.
        let failure = failure.filter(|_| totals.lost > 0);
        totals.failure = failure.map(|failure| match failure.source {
            Some(source) => format!("{}: {source}", failure.path.display()),
            None => "the limit of all files is reached (limit=SIZE)".into(),
        });
        let directory = lock(&self.directory);
        let mut ends = vec![cut(directory.path()).map(|_| ())];
        // The missing records are appended even if the files are then larger than the limit, because a reader
        // has to know of the gap.
        for (tid, rest) in rests {
            let appended = directory.append(tid).and_then(|mut file| {
                rest.iter().try_for_each(|record| file.write(*record))?;
                file.finish()
            });
            if appended.is_err() {
                totals.lost +=
                    rest.iter().filter(|record| record.kind != RecordType::Lost).count() as u64;
            }
            ends.push(appended);
        }
        if let Some(why) = ends.into_iter().find_map(Result::err) {
            totals.failure.get_or_insert_with(|| with_causes(&why));
        }
        drop(directory);
        // The libraries' names are written last. On a full disk, the names would otherwise take the room that
        // the records need.
        self.name_libraries();
        let directory = lock(&self.directory);
        totals.without_name = directory.names_left_out() as u64;
        totals.is_empty = is_empty(directory.path());
        totals
    }

    /// Returns as text all options that leave functions out, except for the region.
    pub fn filters(&self) -> Vec<String> {
        let parts = self.parts.iter().map(|part| match part {
            Part::Name(_) => format!("symbol={part}"),
            Part::Range(..) => format!("range={part}"),
        });
        let level = self.level.map(|Level(level)| format!("level={level}"));
        let min = Some(self.settings.min).filter(|min| *min > 0).map(|min| format!("min={min}ns"));
        parts.chain(level).chain(min).collect()
    }

    /// Returns the records that a vCPU's files still lack at their ends. Each element has the thread id of a
    /// task, and the records for this task's file.
    ///
    /// # Safety
    /// As for [`Recorder::tracer`].
    unsafe fn rest(&self, vcpu: usize) -> Vec<(u32, Vec<Record>)> {
        let Some(part) = self.vcpus.get(vcpu) else { return Vec::new() };
        // SAFETY: by the caller's promise, no other thread has a reference.
        let tracers = unsafe { &*part.0.get() };
        let tracers =
            (0..).zip(&tracers.all).filter_map(|(level, tracer)| Some((level, tracer.as_ref()?)));
        let rests = tracers
            .map(|(level, tracer)| (Task::of_vcpu(vcpu as u32, level, "").tid, tracer.rest()));
        rests.filter(|(_, rest)| !rest.is_empty()).collect()
    }

    /// Returns whether other threads run vCPUs with records.
    pub fn has_others(&self) -> bool {
        self.in_use.load(Relaxed) > OWN.get()
    }
}

/// Sums of a trace.
#[derive(Debug, Default)]
pub struct Totals {
    /// Number of executed calls.
    pub calls: u64,
    /// Number of returns without a call, within functions whose calls are known.
    pub misses: u64,
    /// Number of lost records, for which there was no window in time, or no window at all.
    pub lost: u64,
    /// Number of calls that were too deep to be recorded.
    pub too_deep: u64,
    /// Number of stacks that were forgotten.
    pub evicted: u64,
    /// Number of child processes, which are not recorded.
    pub children: u64,
    /// Number of regions that began, if functions are recorded only in regions.
    pub regions: Option<u64>,
    /// Number of calls and returns on vCPUs for which the plugin keeps no records.
    pub left_out: u64,
    /// Number of translated calls and returns that are not observed.
    pub not_observed: u64,
    /// Number of functions whose names found no room in the directory.
    pub without_name: u64,
    /// Whether there is no record at all.
    pub is_empty: bool,
    /// Reason why records are missing.
    pub failure: Option<String>,
}

impl Totals {
    fn add(&mut self, tracer: &Tracer) {
        let (counts, lost) = tracer.counts();
        self.calls += counts.calls;
        self.misses += counts.unmatched;
        self.too_deep += counts.too_deep;
        self.evicted += counts.evicted;
        self.lost += lost;
    }

    fn join(&mut self, other: &Totals) {
        self.calls += other.calls;
        self.misses += other.misses;
        self.too_deep += other.too_deep;
        self.evicted += other.evicted;
        self.lost += other.lost;
    }
}

/// Returns whether no file of a directory has records; false if the directory cannot be read.
fn is_empty(directory: &Path) -> bool {
    let Ok(files) = std::fs::read_dir(directory) else { return false };
    let paths = files.flatten().map(|file| file.path());
    let mut records = paths.filter(|path| path.extension().is_some_and(|suffix| suffix == "dat"));
    records.all(|path| path.metadata().is_ok_and(|file| file.len() == 0))
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
