//! `kvm-vmm DIR [VCPUS]`: runs the demo's guest and writes a session to DIR.
//!
//! [`run`] is all that a VMM has to add for hypertrace.

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use hypertrace_device::{Chip, DrainPolicy, DrainWaker, Geometry, Memory};
use hypertrace_guest::{Args, Program, layout};
use hypertrace_trace::control::error_chain;
use hypertrace_trace::{Session, SessionConfig, Summary};
use kvm_vmm::{Answer, Doorbells, Machine, attach_window, record_in};

fn run(dir: &Path, vcpus: usize) -> Result<Summary, Box<dyn std::error::Error>> {
    let mut machine = Machine::new(vcpus)?;

    // A ring for each vCPU's thread, and some for the VMM's other threads.
    let config = SessionConfig { host_rings: vcpus + 4, ..SessionConfig::new(dir) };
    let session = Session::create(config)?;
    session.set_events(&"*".parse()?, true)?;
    let doorbells = Doorbells::new()?;
    let config = doorbells.config(&session, vcpus as u32);
    let memory = Memory::anonymous(Geometry::default())?;
    let chip = Chip::new(memory, &config, session.clone(), doorbells.kick.try_clone()?);
    let chip = Arc::new(chip);
    let drain = chip.drain_thread(&doorbells.kick, DrainPolicy::default(), || Ok(()))?;
    let kick = doorbells.kick.try_clone()?;
    session.wake_by(move || kick.wake());
    machine.observe(record_in(session.clone()));
    attach_window(&mut machine, &chip, &doorbells, layout::DEVICE, Answer::Device)?;

    let args = Args {
        device: layout::DEVICE,
        events: 100_000,
        reference_points: 1_000,
        stamps: 100,
        ..Args::new(Program::Demo)
    };
    machine.run(&args, Duration::from_secs(60))?;

    drain.finish();
    Ok(session.finish()?)
}

fn main() -> ExitCode {
    let mut args = std::env::args_os().skip(1);
    let dir = args.next();
    let vcpus = match args.next() {
        None => Some(1),
        Some(text) => text.to_str().and_then(|text| text.parse().ok()),
    };
    let (Some(dir), Some(vcpus), None) = (dir, vcpus, args.next()) else {
        eprintln!("usage: kvm-vmm DIR [VCPUS]");
        return ExitCode::from(2);
    };
    match run(Path::new(&dir), vcpus) {
        Ok(summary) => {
            println!("{} events, {} lost", summary.records, summary.lost);
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("kvm-vmm: {}", error_chain(&*error));
            ExitCode::FAILURE
        }
    }
}
