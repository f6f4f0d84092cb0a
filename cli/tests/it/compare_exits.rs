//! `hypertrace compare` of guests under KVM whose VMM handles loads slower on the second side. The comparison
//! names the exits of these loads, but neither the exits of stores nor the guest's own time.

use hypertrace_abi::clock::ticks;
use hypertrace_guest::{Args, Program, layout};
use hypertrace_kernel::{Config, Recording, Source};
use hypertrace_tests::command::{Hypertrace, run};
use hypertrace_tests::host::{self, Host, Recorded};
use hypertrace_tests::{capability, kvm};
use kvm_vmm::{Answer, attach_window, record_in};
use serde_json::Value;

const HYPERTRACE: Hypertrace = Hypertrace(env!("CARGO_BIN_EXE_hypertrace"));

/// Address of the device that the guest loads from and stores to. No memory and no other device has this
/// address.
const DEVICE: u64 = 0xc000_0000;

/// Records a guest that makes a load and a store in each of its regions. The VMM needs `slower_ns` more for
/// each load. `None`, with a report, if this machine cannot record such a guest.
fn record(regions: u64, slower_ns: u64) -> Option<Recorded> {
    let mut machine = kvm::machine(1)?;
    let host = Host::new(host::geometry(1));
    let mut config = Config::new(host.dir());
    config.pids = vec![std::process::id()];
    let recording = match Recording::start(&config) {
        Ok(recording) => recording,
        Err(why) => {
            capability::missing("tracefs", why);
            return None;
        }
    };
    if recording.source() != Source::Tracefs {
        capability::missing("tracefs", recording.why_perf().unwrap_or_default());
        recording.finish().unwrap();
        return None;
    }
    let drain = host.drain();
    machine.observe(record_in(host.session.clone()));
    attach_window(&mut machine, &host.device, layout::DEVICE, Answer::Device).unwrap();
    let slower = slower_ns * (host.session.host_frequency() / 1_000) / 1_000_000;
    let load = move |_, data: &mut [u8]| {
        let began = ticks();
        while ticks() - began < slower {
            std::hint::spin_loop();
        }
        data.fill(0);
    };
    machine.bus_mut().add(DEVICE..DEVICE + 0x1000, load, |_, _| {});
    let params = [DEVICE, 1, DEVICE + 8, 0];
    let program = Args { params, events: regions, ..Args::new(Program::StoreRegions) };

    kvm::run(machine, &Args { device: layout::DEVICE, ..program });

    drain.finish();
    let recorded = host.finish();
    recording.finish().unwrap();
    capability::used("tracefs");
    Some(recorded)
}

/// Compares `runs` recordings a side. Returns the regions' difference, and the sentence.
fn compare(runs: usize, regions: u64, slower_ns: u64) -> Option<(Value, String)> {
    let mut sides = [Vec::new(), Vec::new()];
    for number in 0..runs {
        // The sides take turns in being the first of a pair.
        let order = if number % 2 == 0 { [0, 1] } else { [1, 0] };
        for side in order {
            sides[side].push(record(regions, [0, slower_ns][side])?);
        }
    }
    let mut compare = HYPERTRACE.command(["compare", "--json", "--name", "store"]);
    let [a, b] = sides.each_ref().map(|side| side.iter().map(|recorded| recorded.dir()));
    let json: Value = run(compare.args(a).arg("--with").args(b)).json();
    let answer = json["answer"][0].as_str().unwrap().to_owned();
    Some((json["differences"][0].clone(), answer))
}

/// Returns the difference of a part of the time, or of the VMM's time in exits for a reason. The second
/// number is half of the width of the difference's interval.
fn difference(of: &Value, list: &str, name: &str) -> (f64, f64) {
    let all = of[list].as_array().unwrap();
    let found = all.iter().find(|change| change["name"] == name).unwrap();
    let change = if list == "exits" { &found["vmm"] } else { found };
    (change["difference_ns"].as_f64().unwrap(), change["half_width_ns"].as_f64().unwrap())
}

#[test]
fn the_exit_whose_handler_is_slower_is_named() {
    // The difference is large enough to be seen despite other load on the machine.
    let Some((store, answer)) = compare(5, 200, 100_000) else { return };

    assert!(answer.starts_with("store is ") && answer.contains(" slower "), "{answer}");
    assert!(answer.contains("VMM +") && answer.contains("(exits mmio read +"), "{answer}");
    let whole = store["typical"]["difference_ns"].as_f64().unwrap();
    let (read, _) = difference(&store, "exits", "mmio read");
    let (write, _) = difference(&store, "exits", "mmio write");
    assert!(read > 0.5 * whole && write.abs() < 0.2 * read, "{answer} {store}");
}

#[test]
#[ignore = "20 recordings of guests with 2,000 regions: cargo xtask full"]
fn five_microseconds_are_those_of_the_exit() {
    let Some((store, answer)) = compare(10, 2_000, 5_000) else { return };

    let (read, of_read) = difference(&store, "exits", "mmio read");
    let (write, of_write) = difference(&store, "exits", "mmio write");
    let (guest, of_guest) = difference(&store, "parts", "guest");
    println!(
        "figure: a handler of loads that takes 5 us more: mmio read {read:+.0} +- {of_read:.0} ns, \
         mmio write {write:+.0} +- {of_write:.0}, guest {guest:+.0} +- {of_guest:.0}; {answer}"
    );
    assert!(answer.contains("(exits mmio read +"), "{answer}");
    // The VMM's waiting loop ends a little late.
    assert!((read - 5_000.0).abs() < of_read + 500.0, "{answer}");
    assert!(write.abs() < of_write + 500.0 && guest.abs() < of_guest + 1_000.0, "{answer}");
}
