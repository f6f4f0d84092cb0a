//! What this user can record on this machine.

use super::clocks;
use crate::output::{hanging, print, print_json};
use anyhow::Result;
use hypertrace::Clock;
use hypertrace_abi::clock::{Counter, CounterKind, frequency, ticks};
use hypertrace_format::error::error_chain;
use hypertrace_kernel::ability;
use kvm_vmm::{Machine, Unusable};
use rustix::process::{Resource, getrlimit};
use serde_json::json;
use std::fs;
use std::hint::black_box;
use std::time::Instant;

/// An ability of a machine, or the reason why the machine lacks the ability.
struct Ability {
    name: &'static str,
    /// What the ability is needed for.
    purpose: &'static str,
    /// If this machine has the ability, a detail. Otherwise, the reason why the ability is missing, and a
    /// remedy.
    found: Result<String, (String, String)>,
}

/// An ability as JSON.
#[derive(serde::Serialize)]
#[cfg_attr(test, derive(serde::Deserialize))]
pub struct Shown {
    name: String,
    purpose: String,
    usable: bool,
    detail: Option<String>,
    why_not: Option<String>,
    remedy: Option<String>,
}

/// Prints what this machine can do.
pub fn show(is_json: bool) -> Result<()> {
    let abilities = [kvm(), tracefs(), perf(), locked_memory(), clock()];
    if is_json {
        let all = abilities.into_iter().map(|Ability { name, purpose, found }| {
            let (name, purpose, usable) = (name.to_owned(), purpose.to_owned(), found.is_ok());
            let (why_not, remedy) = found.as_ref().err().cloned().unzip();
            Shown { name, purpose, usable, detail: found.ok(), why_not, remedy }
        });
        return print_json(json!({ "machine": Vec::from_iter(all) }));
    }
    let mut text = String::from("What this user can record on this machine:\n");
    for Ability { name, purpose, found } in &abilities {
        let (answer, detail) = match found {
            Ok(detail) => ("yes", detail),
            Err((why, _)) => ("no", why),
        };
        let below = format!("{:17}", "");
        text += &hanging(&format!("{answer}: {detail}"), &format!("  {name:<15}"), &below);
        text += &hanging(&format!("for {purpose}"), &below, &below);
        if let Err((_, remedy)) = found {
            text += &hanging(&format!("what helps: {remedy}"), &below, &below);
        }
    }
    print(text + "\nNext: hypertrace demo, or hypertrace record PROGRAM\n")
}

fn kvm() -> Ability {
    let found = match Machine::new(1) {
        Ok(_) => Ok("a VM can be made".into()),
        Err(kvm_vmm::Error::Unusable(why)) => {
            let remedy = match &why {
                Unusable::Missing if cfg!(target_arch = "aarch64") => {
                    "boot Linux at EL2; for a VM or a container, the host has to offer KVM"
                }
                Unusable::Missing => {
                    "modprobe kvm_intel or kvm_amd; for a VM or a container, the host has to offer KVM"
                }
                Unusable::Permission => "usermod -aG kvm USER as root, and log in again",
                _ => "enable virtualization in the firmware; end other hypervisors",
            };
            Err((error_chain(&why), remedy.into()))
        }
        Err(why) => Err((error_chain(&why), "dmesg may say more".into())),
    };
    Ability { name: "KVM", purpose: "VMs; without it, the demo runs on threads", found }
}

fn tracefs() -> Ability {
    let found = ability::tracefs().map(|path| path.display().to_string());
    let purpose = "all events of the kernel: record --kernel, -e, -p, -a";
    Ability { name: "tracefs", purpose, found: found.map_err(|why| parts(&why)) }
}

fn perf() -> Ability {
    let paranoid = setting("/proc/sys/kernel/perf_event_paranoid");
    let found = ability::perf().map(|()| format!("perf_event_paranoid {paranoid}"));
    let purpose = "the scheduling of this user's threads, if tracefs cannot be used";
    Ability { name: "perf", purpose, found: found.map_err(|why| parts(&why)) }
}

/// Compares the limits of the memory that perf may lock with the memory that a recording needs for each CPU.
fn locked_memory() -> Ability {
    let of_perf = setting("/proc/sys/kernel/perf_event_mlock_kb");
    let limit = getrlimit(Resource::Memlock).current;
    let shown = limit.map_or("unlimited".into(), |bytes| format!("{} KiB", bytes >> 10));
    let needed = ability::PERF_KIB;
    let is_enough = of_perf.parse().is_ok_and(|kib: u64| kib >= needed)
        || limit.is_none_or(|bytes| bytes >> 10 >= needed);
    let detail = format!("{shown}, and {of_perf} KiB for each CPU by perf_event_mlock_kb");
    let found = match is_enough {
        true => Ok(detail),
        false => Err((detail, format!("sysctl kernel.perf_event_mlock_kb={needed} as root"))),
    };
    Ability { name: "locked memory", purpose: "perf's buffers", found }
}

fn clock() -> Ability {
    let source = setting("/sys/devices/system/clocksource/clocksource0/current_clocksource");
    let chosen = hypertrace::default_clock();
    let why = |reason| clocks::reason_text(reason).unwrap_or("no reason");
    let found = match chosen {
        Ok((Clock::Counter, reason)) => {
            let name = match Counter::own().kind {
                CounterKind::Tsc => "TSC",
                CounterKind::Cntvct => "CNTVCT",
                CounterKind::Other => "counter",
            };
            let (steps, why) = (clocks::steps(step_ns()), why(reason));
            Ok(format!("the CPU's {name}{steps}; the kernel uses {source}; {why}"))
        }
        Ok((_, reason)) => Err((
            format!("CLOCK_MONOTONIC_RAW; the kernel uses {source}; {}", why(reason)),
            "HYPERTRACE_CLOCK=tsc uses the TSC nevertheless".into(),
        )),
        Err(why) => Err((error_chain(&why), "unset HYPERTRACE_CLOCK".into())),
    };
    Ability { name: "clock", purpose: "time stamps that cost only nanoseconds", found }
}

/// Returns the step of the counter in nanoseconds, which is exact if the CPU states the counter's rate.
fn step_ns() -> f64 {
    let (begin, mut readings) = (Instant::now(), Vec::with_capacity(10_000));
    for pair in 0..5_000 {
        // The loop has a different length each time. Otherwise, all differences of a counter with fine steps
        // would be multiples of the loop's time.
        (0..pair % 16).for_each(|turn| _ = black_box(turn));
        readings.extend([ticks(), ticks()]);
    }
    let ns = begin.elapsed().as_nanos() as f64;
    let all = readings[readings.len() - 1].saturating_sub(readings[0]);
    let tick = frequency().map_or(ns / all.max(1) as f64, |frequency| 1e9 / frequency as f64);
    step(&readings) as f64 * tick
}

/// Returns the counter's step in ticks: almost all differences between readings are multiples of this step. A
/// difference may be off by one tick for each step, because a hypervisor that scales the counter rounds each
/// reading. If a CPU never returns the same reading twice, two readings within one step differ by one tick.
fn step(readings: &[u64]) -> u64 {
    let differences = readings.windows(2).map(|pair| pair[1].saturating_sub(pair[0]));
    let mut differences = Vec::from_iter(differences.filter(|difference| *difference > 1));
    differences.sort_unstable();
    let Some(step) = differences.get(differences.len() / 20).copied() else { return 1 };
    let fits = |difference: &&u64| {
        let rest = *difference % step;
        rest.min(step - rest) <= difference.div_ceil(step).min(step / 4)
    };
    let fitting = differences.iter().filter(fits).count();
    if fitting >= differences.len() * 9 / 10 { step } else { 1 }
}

/// Returns the first line of a file of settings.
fn setting(path: &str) -> String {
    fs::read_to_string(path).map_or("unknown".into(), |text| text.trim().to_owned())
}

/// Divides an error's message into the reason and, after the last semicolon, the remedy.
fn parts(error: &hypertrace_kernel::Error) -> (String, String) {
    let text = error_chain(error);
    let (why, remedy) = text.rsplit_once("; ").unwrap_or((&text, "run this as root"));
    (why.to_owned(), remedy.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_step_of_a_counter_is_found_in_its_readings() {
        // 100 MHz, scaled to 2.596 GHz. Each reading is taken one to four steps after the reading before.
        let scaled = |step: u64| step * 2_596 / 100;
        let coarse = (0..1_000).scan(0, |step, turn| {
            *step += 1 + turn % 4;
            Some(scaled(*step))
        });
        let fine = (0..1_000).scan(0, |tick, turn| {
            *tick += 20 + turn % 16;
            Some(*tick)
        });

        assert!((25..=26).contains(&step(&Vec::from_iter(coarse))));
        assert_eq!(step(&Vec::from_iter(fine)), 1);
        // Readings of a counter of 24 MHz.
        assert_eq!(step(&[5, 5, 6, 6, 6, 7]), 1);
    }
}
