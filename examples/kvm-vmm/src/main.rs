//! `kvm-vmm DIR [VCPUS]`: runs the demo's guest and writes a session to DIR.
//!
//! If `--save SNAPSHOT MILLISECONDS` stands in front of DIR, the program pauses a guest that still runs after
//! this time, and saves the guest in the directory SNAPSHOT. `--restore SNAPSHOT` continues the guest, in a
//! new session.
//!
//! The function [`run`] shows all code that a VMM needs for hypertrace.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use hypertrace_guest::{Args, Program, layout};
use hypertrace_trace::control::error_chain;
use hypertrace_vmm::{DeviceConfig, Hypertrace, SessionConfig, Summary};
use kvm_vmm::{Answer, Error, Machine, Progress, Snapshot, attach_window, record_in};

const USAGE: &str = "usage: kvm-vmm [--save SNAPSHOT MILLISECONDS] DIR [VCPUS]
       kvm-vmm --restore SNAPSHOT [--save SNAPSHOT MILLISECONDS] DIR";

/// Time limit of the guest.
const LIMIT: Duration = Duration::from_secs(60);

/// Arguments of the program.
#[derive(Default)]
struct Options {
    dir: PathBuf,
    vcpus: Option<usize>,
    /// Directory of the snapshot to save, and the time after which the guest is paused.
    save: Option<(PathBuf, Duration)>,
    /// Directory of the snapshot to restore.
    restore: Option<PathBuf>,
}

fn run(options: &Options) -> Result<Summary, Box<dyn std::error::Error>> {
    let saved = options.restore.as_deref().map(Snapshot::open).transpose()?;
    let mut machine = match &saved {
        Some(saved) => saved.machine()?,
        None => Machine::new(options.vcpus.unwrap_or(1))?,
    };
    let config = DeviceConfig::new(machine.vcpus() as u32);
    let events = vec!["*".parse()?];
    let session = SessionConfig::new(&options.dir).with(|config| config.events = events);
    let hypertrace = Hypertrace::start(session, config)?;
    if let Some(saved) = &saved {
        hypertrace.load(saved.device())?;
    }
    let session = hypertrace.session();
    machine.give_tscs(session);
    machine.observe(record_in(session.clone()));
    attach_window(&mut machine, hypertrace.device(), layout::DEVICE, Answer::Device)?;

    if saved.is_none() {
        machine.write_args(&Args {
            device: layout::DEVICE,
            events: 100_000,
            reference_points: 1_000,
            ..Args::new(Program::Demo)
        })?;
    }
    let time = options.save.as_ref().map_or(LIMIT, |(_, time)| *time);
    match (machine.run_for(time)?, &options.save) {
        (Progress::Ended(_), _) => {}
        (Progress::Paused(machine), Some((dir, _))) => {
            Snapshot::save(&machine, hypertrace.save()?, dir)?;
        }
        (Progress::Paused(machine), None) => {
            return Err(Error::TimedOut { running: machine.running(), limit: LIMIT }.into());
        }
    }

    Ok(hypertrace.finish()?)
}

fn parse(mut args: impl Iterator<Item = std::ffi::OsString>) -> Option<Options> {
    let number = |text: std::ffi::OsString| text.to_str()?.parse().ok();
    let mut options = Options::default();
    loop {
        let arg = args.next()?;
        match arg.to_str() {
            Some("--save") => {
                let dir = args.next()?.into();
                options.save = Some((dir, Duration::from_millis(number(args.next()?)?)));
            }
            Some("--restore") => options.restore = Some(args.next()?.into()),
            _ => {
                options.dir = Path::new(&arg).into();
                break;
            }
        }
    }
    if options.restore.is_none()
        && let Some(vcpus) = args.next()
    {
        options.vcpus = Some(number(vcpus)? as usize);
    }
    args.next().is_none().then_some(options)
}

fn main() -> ExitCode {
    let Some(options) = parse(std::env::args_os().skip(1)) else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    match run(&options) {
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
