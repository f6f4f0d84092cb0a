//! Compares the parts of regions by `hypertrace regions` with counts of the kernel and of the program itself
//! in the same run. The program is a guest under KVM, a program in Rust, or a program in C.
//!
//! Each program has four kinds of regions: for computing, for waiting until a VMM's handler has computed, for
//! sleeping, and for waiting until another thread leaves the CPU. Both sides of each comparison are measured,
//! so other load on the machine changes both sides.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use hypertrace_abi::clock::ticks;
use hypertrace_guest::{Args, Board, Program, layout, spend};
use hypertrace_kernel::{Config, Recording, Source, stolen};
use hypertrace_tests::c::{self, Linked};
use hypertrace_tests::command::{Hypertrace, copy_program, run};
use hypertrace_tests::host::{self, Host};
use hypertrace_tests::truth::{self, Reading, Rival, Sample};
use hypertrace_tests::{capability, kvm, this_test, traced};
use hypertrace_trace::session_json;
use kvm_vmm::{Answer, Machine, attach_window, record_in};
use serde_json::Value;
use vm_memory::{Bytes, GuestAddress};

const HYPERTRACE: Hypertrace = Hypertrace(env!("CARGO_BIN_EXE_hypertrace"));

/// Number of rounds. Each round has one region of each kind.
const ROUNDS: u64 = 40;

/// Time of a region that computes, in nanoseconds.
const COMPUTE: u64 = 2_000_000;
/// Time of the other regions, in nanoseconds.
const OTHERS: u64 = 1_000_000;

/// Names of the regions.
const COMPUTED: &str = "computed";
const HANDLED: &str = "handled";
const SLEPT: &str = "slept";
const COMPETED: &str = "competed";

/// Names of the regions of a program without a VMM.
const NATIVE: [&str; 3] = [COMPETED, COMPUTED, SLEPT];

/// Time in nanoseconds that the program takes in each region to read its counters before and after a part. A
/// file of procfs is read four times.
const READING: i64 = 20_000;

/// Address of the device that `Program::Spend` uses. No memory and no other device has this address.
const DEVICE: u64 = 0xc000_0000;

/// The device, which spends time in a known way, and takes readings of its vCPU's thread.
struct Spender {
    cpu: usize,
    /// The regions so far. Each round has the same regions in the same order.
    regions: Vec<Sample>,
    before: Option<Reading>,
    after: Option<(Reading, u64)>,
    part: Option<[Reading; 2]>,
    rival: Rival,
}

impl Spender {
    fn store(&mut self, register: u64, value: u64) {
        let part = |act: &dyn Fn()| {
            let before = Reading::now();
            act();
            Some([before, Reading::now()])
        };
        match register {
            spend::BEFORE => {
                truth::pin_to(self.cpu);
                self.before = Some(Reading::now());
            }
            spend::COMPUTE => self.part = part(&|| truth::compute(OTHERS)),
            spend::SLEEP => self.part = part(&|| thread::sleep(Duration::from_nanos(OTHERS))),
            spend::COMPETE => self.part = part(&|| self.rival.compete(value)),
            spend::AFTER => self.after = Some((Reading::now(), value)),
            spend::BEGAN => {
                let (before, (after, ended)) =
                    self.before.take().zip(self.after.take()).expect("readings in order");
                let (n, names) = (self.regions.len(), [COMPUTED, HANDLED, SLEPT, COMPETED]);
                let name = names[n % names.len()];
                self.regions.push(Sample {
                    region: (name.to_owned(), (n / names.len()) as u64 + 1),
                    inside: [value, ended],
                    around: [before, after],
                    part: self.part.take().unwrap_or([before, before]),
                });
            }
            _ => {}
        }
    }
}

/// Attaches the device. Returns the device's readings, which are complete when the machine has ended.
fn attach_spender(machine: &mut Machine) -> Arc<Mutex<Spender>> {
    let (vm, cpu) = (Arc::clone(machine.vm()), truth::first_cpu());
    let result = layout::BOARD + (Board::results_offset(0) + 8 * spend::COMPETED) as u64;
    let rival = Rival::start(cpu, OTHERS, move |turn| {
        // ORDERING: the guest's load of this word decides only how long the guest's own loop runs.
        vm.ram().store(turn, GuestAddress(result), Ordering::Relaxed).unwrap();
    });
    let (regions, before, after, part) = (Vec::new(), None, None, None);
    let spender = Spender { cpu, regions, before, after, part, rival };
    let spender = Arc::new(Mutex::new(spender));
    let device = Arc::clone(&spender);
    machine.bus_mut().add(
        DEVICE..DEVICE + 0x1000,
        |_, data| data.fill(0),
        move |register, data| {
            let value = data.try_into().map_or(0, u64::from_le_bytes);
            device.lock().unwrap().store(register, value);
        },
    );
    spender
}

/// Makes a comparison until the result is right, at most three times. A wrong result is tried again only if a
/// hypervisor took time from the CPUs meanwhile. The hypervisor may have taken that time between a switch and
/// the switch's event.
#[track_caller]
fn without_steal(mut is_right: impl FnMut() -> bool) {
    for _ in 0..3 {
        let before = stolen();
        if is_right() {
            return;
        }
        let taken = stolen().zip(before).map(|(after, before)| after.saturating_sub(before));
        assert!(taken.is_some_and(|taken| !taken.is_zero()), "a part is not what it was");
        println!("{taken:?} were taken by a hypervisor");
    }
    panic!("a part is not what it was, three times beside a hypervisor that takes CPU time");
}

/// Returns whether a recording comes from the kernel's trace, and reports the result as a capability.
fn has_kernel_trace(source: Source, why: Option<&str>) -> bool {
    match source {
        Source::Tracefs => capability::used("tracefs"),
        Source::Perf => capability::missing("tracefs", why.unwrap_or_default()),
    }
    source == Source::Tracefs
}

#[test]
fn in_a_guest() {
    without_steal(guest_is_right);
}

/// Runs a guest that spends its time. Returns true if the parts of the guest's regions agree with the
/// readings, or if this machine cannot measure the parts.
fn guest_is_right() -> bool {
    let Some(mut machine) = kvm::machine(1) else { return true };
    if let Some(why) = truth::is_missing() {
        capability::missing("schedstat", why);
        return true;
    }
    let host = Host::new(host::geometry(1));
    let dir = host.dir().to_owned();
    let mut config = Config::new(&dir);
    config.pids = vec![std::process::id()];
    let recording = match Recording::start(&config) {
        Ok(recording) => recording,
        Err(why) => {
            capability::missing("tracefs", why);
            return true;
        }
    };
    if !has_kernel_trace(recording.source(), recording.why_perf()) {
        recording.finish().unwrap();
        return true;
    }
    let drain = host.drain();
    machine.observe(record_in(host.session.clone()));
    let base = layout::DEVICE;
    attach_window(&mut machine, &host.device, base, Answer::Device).unwrap();
    let spender = attach_spender(&mut machine);
    let frequency = host.session.host_frequency();
    let ticks_of = |ns: u64| ns * (frequency / 1_000) / 1_000_000;
    let params = [DEVICE, ticks_of(COMPUTE), ticks_of(20_000), 0];
    let program = Args { device: base, events: ROUNDS, params, ..Args::new(Program::Spend) };

    let outcome = kvm::run(machine, &program);

    drain.finish();
    let recorded = host.finish();
    let kernel = recording.finish().unwrap();
    assert_eq!((recorded.summary.lost, kernel.asked.lost()), (0, 0));
    let samples = std::mem::take(&mut spender.lock().unwrap().regions);
    let truth = Truth { of: Of::Guest, frequency, samples };
    let measured = truth.check(recorded.dir(), &[COMPETED, COMPUTED, HANDLED, SLEPT]);
    measured.is_some_and(|measured| guests_readings_agree(&truth, &outcome.results[0], &measured))
}

/// A program that spends its time as `Program::Spend` does, except in a VMM. Writes the program's readings to
/// `file`.
fn spend_natively(file: &Path) {
    let cpu = truth::first_cpu();
    truth::pin_to(cpu);
    let competed = Arc::new(AtomicU64::new(0));
    let done = Arc::clone(&competed);
    let rival = Rival::start(cpu, OTHERS, move |turn| done.store(turn, Ordering::Relaxed));
    let mut samples = Vec::new();
    let mut measure = |name: &str, id, region: &dyn Fn() -> ([u64; 2], Option<[Reading; 2]>)| {
        let before = Reading::now();
        let (inside, part) = region();
        let around = [before, Reading::now()];
        let part = part.unwrap_or([before, before]);
        samples.push(Sample { region: (name.to_owned(), id), inside, around, part });
    };
    for round in 1..=ROUNDS {
        measure(COMPUTED, round, &|| {
            let _region = hypertrace::region!("computed", id = round);
            let began = ticks();
            truth::compute(COMPUTE);
            ([began, ticks()], None)
        });
        measure(SLEPT, round, &|| {
            let _region = hypertrace::region!("slept", id = round);
            let began = ticks();
            let before = Reading::now();
            thread::sleep(Duration::from_nanos(OTHERS));
            let part = [before, Reading::now()];
            ([began, ticks()], Some(part))
        });
        measure(COMPETED, round, &|| {
            let _region = hypertrace::region!("competed", id = round);
            let began = ticks();
            rival.compete(round);
            while competed.load(Ordering::Relaxed) < round {
                std::hint::spin_loop();
            }
            ([began, ticks()], None)
        });
    }
    let mut text = String::new();
    for sample in &samples {
        writeln!(text, "{sample}").unwrap();
    }
    std::fs::write(file, text).unwrap();
}

/// Place where regions ran. The place decides which parts of the regions' time are known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Of {
    Guest,
    Program(Source),
}

/// Quantities that are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Duration,
    /// Time in the guest or the program, in the kernel on their behalf, and in the VMM.
    OnCpu,
    Vmm,
    Runnable,
    Blocked,
    OffCpu,
    Unattributed,
}

/// Time of each [`Kind`] in a region, in nanoseconds.
type Spent = [i64; 7];

/// Readings of a run that are independent of its trace.
struct Truth {
    of: Of,
    /// Ticks of the counter in a second.
    frequency: u64,
    samples: Vec<Sample>,
}

impl Truth {
    /// Reads the file of readings of a program that has ended.
    #[track_caller]
    fn of_program(source: Source, dir: &Path, readings: &Path) -> Truth {
        let json = std::fs::read(dir.join(session_json::FILE)).unwrap();
        let json: Value = serde_json::from_slice(&json).unwrap();
        let frequency = json["clocks"][0]["frequency"].as_u64().unwrap();
        let of = Of::Program(source);
        Truth { of, frequency, samples: Sample::parse_all(readings) }
    }

    fn ns(&self, ticks: u64) -> i64 {
        (i128::from(ticks) * 1_000_000_000 / i128::from(self.frequency)) as i64
    }

    /// Returns how a region's time was spent. The counter and the trace include the time that a hypervisor
    /// took from the CPU. A thread's own time excludes the hypervisor's time.
    fn spent(&self, sample: &Sample) -> Spent {
        let between = |[from, to]: [Reading; 2]| {
            let waited = to.waited - from.waited;
            (self.ns(to.ticks - from.ticks), waited as i64, (to.ran - from.ran) as i64)
        };
        let wall = self.ns(sample.inside[1] - sample.inside[0]);
        let (_, runnable, _) = between(sample.around);
        let (part, waited, ran) = between(sample.part);
        let (vmm, blocked) = match &*sample.region.0 {
            HANDLED | COMPETED => (part - waited, 0),
            SLEPT => (ran, part - waited - ran),
            _ => (0, 0),
        };
        let vmm = if self.of == Of::Guest { vmm } else { 0 };
        let off_cpu = runnable + blocked;
        [wall, wall - off_cpu, vmm, runnable, blocked, off_cpu, 0]
    }

    /// Compares the readings with `hypertrace regions` of this session. Returns the session's samples if each
    /// part agrees.
    #[track_caller]
    fn check(&self, dir: &Path, names: &[&str]) -> Option<Measured> {
        let json: Value = run(HYPERTRACE.command(["regions", "--json"]).arg(dir))
            .beside_missing_switches()
            .json();
        let lines = run(HYPERTRACE.command(["regions", "--samples"]).arg(dir))
            .beside_missing_switches()
            .ok();
        let measured = measured(&lines);
        let groups = json["regions"].as_array().unwrap();
        let found: Vec<_> = groups.iter().map(|group| group["name"].as_str().unwrap()).collect();
        assert_eq!(found, names, "{json:#}");
        let mut is_right = true;
        for group in groups {
            let name = group["name"].as_str().unwrap();
            assert_eq!(group["count"], ROUNDS, "{group:#}");
            let not_counted = group["not_counted"].as_object().unwrap();
            assert!(not_counted.values().all(|count| *count == 0), "{group:#}");
            let parts = &group["total"]["parts"];
            let total: i64 = parts.as_object().unwrap().values().filter_map(Value::as_i64).sum();
            let duration = group["total"]["duration_ns"].as_i64().unwrap();
            assert!((total - duration).abs() <= duration / 1_000, "{group:#}");
            let bound = group["bound_ns"].as_i64().expect("a clock that is known");
            assert!(self.of == Of::Guest || bound == 0, "{group:#}");
            if self.of == Of::Program(Source::Perf) {
                let kinds = [Kind::Duration, Kind::OnCpu, Kind::OffCpu];
                is_right &= self.compare(name, &measured, bound, &kinds);
            } else {
                assert_eq!(parts["off_cpu_ns"], 0, "{group:#}");
                let kinds = [Kind::Duration, Kind::OnCpu, Kind::Vmm, Kind::Runnable, Kind::Blocked];
                is_right &= self.compare(name, &measured, bound, &kinds);
            }
        }
        is_right.then_some(measured)
    }

    /// Compares the regions of a name. Only half of the rounds count: the rounds with the least time between
    /// the readings and the region. Returns whether each part agrees.
    #[track_caller]
    fn compare(&self, name: &str, measured: &Measured, bound: i64, kinds: &[Kind]) -> bool {
        let mut samples: Vec<_> = self.samples.iter().filter(|s| s.region.0 == name).collect();
        samples.sort_by_key(|sample| sample.slack());
        assert_eq!(samples.len() as u64, ROUNDS);
        // On a loaded machine, the kernel drops a few events without counting them as lost. The time that
        // such a region then lacks is unknown, and the region's other time is known.
        samples.retain(|sample| {
            let spent = measured[&sample.region];
            spent[Kind::Unattributed as usize] * 100 <= spent[Kind::Duration as usize]
        });
        assert!(samples.len() as u64 >= ROUNDS - ROUNDS / 10, "{name}: {} regions", samples.len());
        // `least` is the time between the readings and the region in the best round. The limit of two
        // readings is for a loaded machine, which may have taken the CPU even in the best round.
        let least = self.ns(samples[0].slack()).min(2 * READING);
        samples.truncate(samples.len() / 2);
        // A hypervisor may take the CPU between the kernel's decision to switch and the switch's event. Then
        // one part is too long, another part is too short, and both errors are equal, so the region with the
        // largest error is left out.
        let off = |sample: &&Sample| -> i64 {
            let (found, truth) = (&measured[&sample.region], self.spent(sample));
            kinds.iter().map(|kind| (found[*kind as usize] - truth[*kind as usize]).abs()).sum()
        };
        samples.sort_by_key(off);
        samples.pop();
        let n = samples.len() as i64;
        // Time off a CPU that may lie between the readings and a region.
        let outside: i64 = samples.iter().map(|sample| self.ns(sample.slack()) - least).sum();
        println!("{name}: {n} regions, bound {bound} ns, {} ns beside each", outside / n);
        let mut is_right = true;
        let sum =
            |kind: Kind| -> i64 { samples.iter().map(|s| self.spent(s)[kind as usize]).sum() };
        // At a switch, the kernel counts some of its own work for one of the two threads, but makes the
        // switch's event on the other side of this work. A slow machine needs longer for this work, and also
        // longer for a short region, so the allowance grows with the region's time on the CPU.
        let reading = (sum(Kind::OnCpu) / n / 2).clamp(READING, 2 * READING);
        for kind in kinds {
            let found: i64 = samples.iter().map(|s| measured[&s.region][*kind as usize]).sum();
            let truth = sum(*kind);
            // The time on a CPU is the rest of a region after the other readings are subtracted, so this time
            // has the errors of all those readings.
            let of = if *kind == Kind::OnCpu { truth.max(sum(Kind::OffCpu)) } else { truth };
            let tolerance = (of / 20).max(n * (bound + reading)) + outside;
            let is_near = (found - truth).abs() <= tolerance;
            let each = |ns: i64| ns as f64 / n as f64 / 1_000.0;
            println!(
                "  {kind:<8?} {:>9.1} us, truth {:>9.1} +- {:.1} {}",
                each(found),
                each(truth),
                each(tolerance),
                if is_near { "" } else { "WRONG" }
            );
            is_right &= is_near;
        }
        is_right
    }
}

/// Time of regions by name and id, as `regions --samples` shows it.
type Measured = BTreeMap<(String, u64), Spent>;

/// Compares regions `computed` with the times that the guest itself measured: its own running time, and its
/// time away from the CPU. Returns whether both agree.
fn guests_readings_agree(truth: &Truth, results: &[u64], measured: &Measured) -> bool {
    let own = measured.iter().filter(|((name, _), _)| name == COMPUTED);
    let sums = own.fold((0, 0), |(on_cpu, runnable), (_, spent)| {
        (on_cpu + spent[Kind::OnCpu as usize], runnable + spent[Kind::Runnable as usize])
    });
    let ((on_cpu, runnable), n) = (sums, ROUNDS as i64);
    let (ran, away) = (truth.ns(results[spend::RAN]), truth.ns(results[spend::AWAY]));
    // Time that was taken while the guest's thread had a CPU: by KVM itself, by interrupts, and by the
    // hypervisor below if this host is a guest.
    let taken = (away - runnable).max(0);
    let [ran_us, away_us, on_cpu_us, taken_us] =
        [ran, away, on_cpu, taken].map(|ns| ns / n / 1_000);
    println!("the guest's own readings of {COMPUTED}: ran {ran_us} us, away {away_us} us;");
    println!("its thread was {on_cpu_us} us on a CPU, of which the guest was away {taken_us} us");
    let checks = [
        (on_cpu >= ran - ran / 20, "a part of the guest's time is missing"),
        (runnable <= away + away / 20 + n * READING, "the guest ran in time that is runnable"),
        (on_cpu <= ran + ran / 20 + taken, "the guest did not run in a part of its time"),
    ];
    checks.iter().filter(|(holds, _)| !holds).for_each(|(_, what)| println!("{what}"));
    checks.iter().all(|(holds, _)| *holds)
}

/// Parses the lines of `regions --samples`.
#[track_caller]
fn measured(lines: &str) -> Measured {
    let mut lines = lines.lines();
    let columns: Vec<&str> = lines.next().unwrap().split(',').collect();
    let parse = |line: &str| {
        let values: BTreeMap<&str, &str> = columns.iter().copied().zip(line.split(',')).collect();
        let number = |column: &str| values[column].parse::<i64>().unwrap();
        let own = ["on_cpu_ns", "guest_ns", "kernel_ns", "vmm_ns"];
        let on_cpu = own.map(number).into_iter().sum();
        let (runnable, blocked) = (number("runnable_ns"), number("blocked_ns"));
        let off_cpu = runnable + blocked + number("off_cpu_ns");
        let (duration, unknown) = (number("duration_ns"), number("unknown_ns"));
        let spent = [duration, on_cpu, number("vmm_ns"), runnable, blocked, off_cpu, unknown];
        ((values["name"].to_owned(), number("id") as u64), spent)
    };
    lines.map(parse).collect()
}

/// Runs a program with `record --kernel`, and compares its regions with its readings. Without the kernel's
/// trace, compares the times that perf records. `is_hidden` says that the test itself has hidden the trace.
/// Returns whether the parts agree, or cannot be known here.
#[track_caller]
fn program_is_right(command: &mut Command, place: &Path, is_hidden: bool) -> bool {
    let ran = run(command);
    if ran.stderr.contains("perf_event_open") {
        capability::missing("perf", ran.stderr);
        return true;
    }
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let source = if ran.stderr.contains("(by tracefs)") { Source::Tracefs } else { Source::Perf };
    let truth = Truth::of_program(source, &place.join("S"), &place.join("readings"));
    let measured = truth.check(&place.join("S"), &NATIVE);
    if !is_hidden {
        has_kernel_trace(source, Some("sleep and wait for a CPU were not told apart"));
    }
    measured.is_some()
}

/// Returns the command `record --kernel` that records into `place`.
fn run_kernel(hypertrace: &Path, place: &Path) -> Command {
    let mut command = Command::new(hypertrace);
    command.args(["record", "--kernel", "-o"]).arg(place.join("S"));
    command
}

#[test]
fn in_a_program() {
    if let Some(place) = traced::argument() {
        return spend_natively(&Path::new(&place).join("readings"));
    }
    if let Some(why) = truth::is_missing() {
        return capability::missing("schedstat", why);
    }

    without_steal(|| {
        let place = tempfile::tempdir().unwrap();
        let mut command = run_kernel(HYPERTRACE.0.as_ref(), place.path());
        traced::program(&mut command, this_test!(), place.path().to_str().unwrap());
        program_is_right(&mut command, place.path(), false)
    });
}

#[test]
fn in_a_c_program() {
    let Some(compiler) = c::compiler() else { return };
    if let Some(why) = truth::is_missing() {
        return capability::missing("schedstat", why);
    }
    let place = tempfile::tempdir().unwrap();
    let program = compiler.program(&c::source("tests/c/spend.c"), Linked::Archive, place.path());

    without_steal(|| {
        let place = tempfile::tempdir().unwrap();
        let mut command = run_kernel(HYPERTRACE.0.as_ref(), place.path());
        command.arg("--").arg(&program).arg(place.path().join("readings"));
        program_is_right(&mut command, place.path(), false)
    });
}

#[test]
fn in_a_program_of_an_ordinary_user() {
    let Some(compiler) = c::compiler() else { return };
    if let Some(why) = truth::is_missing() {
        return capability::missing("schedstat", why);
    }
    let is_root = rustix::process::geteuid().is_root();

    without_steal(|| {
        let place = tempfile::tempdir().unwrap();
        std::fs::set_permissions(place.path(), Permissions::from_mode(0o777)).unwrap();
        let hypertrace = place.path().join("hypertrace");
        copy_program(HYPERTRACE.0, &hypertrace);
        let spend = c::source("tests/c/spend.c");
        let program = compiler.program(&spend, Linked::Archive, place.path());
        let mut command = run_kernel(&hypertrace, place.path());
        command.arg("--").arg(program).arg(place.path().join("readings")).current_dir("/");
        if is_root {
            command.uid(65534).gid(65534);
        }
        program_is_right(&mut command, place.path(), is_root)
    });
}
