//! A benchmark in a guest, whose iterations are regions: a store that exits to the VMM. The guest has no
//! operating system and measures with its own counter; criterion runs in the VMM and does the statistics.
//!
//! ```console
//! $ HYPERTRACE_OUT=S hypertrace record --kernel -o K cargo bench -p hypertrace-benchmark --bench guest
//! $ hypertrace regions S K
//! ```
//!
//! The session is written to the new directory that `HYPERTRACE_OUT` names or, without this variable, to a
//! temporary directory that is removed.

use std::error::Error;
use std::path::Path;
use std::time::Duration;

use criterion::Criterion;
use hypertrace_guest::{Args, Program, layout};
use hypertrace_vmm::{DeviceConfig, Hypertrace, SessionConfig};
use kvm_vmm::{Answer, Machine, Unusable, attach_window, record_in};

/// Address of a device that does nothing.
const NULL: u64 = 0xc000_0000;

/// Maximum time of a sample.
const LIMIT: Duration = Duration::from_secs(300);

/// Index of the guest's result that holds the ticks of the guest's regions.
const TICKS: usize = 0;

/// The host of the guests, with a session for all samples.
struct Host {
    hypertrace: Hypertrace,
    /// Number of iterations so far, because each iteration has its own id.
    done: u64,
}

impl Host {
    fn new(dir: &Path) -> Result<Host, Box<dyn Error>> {
        let hypertrace = Hypertrace::start(SessionConfig::new(dir), DeviceConfig::new(1))?;
        hypertrace.session().set_events(&"*".parse()?, true)?;
        Ok(Host { hypertrace, done: 0 })
    }

    /// Runs a guest that does this many iterations. Returns the time that the guest measured.
    fn sample(&mut self, iterations: u64) -> Result<Duration, Box<dyn Error>> {
        let mut machine = Machine::new(1)?;
        let Host { hypertrace, .. } = self;
        machine.observe(record_in(hypertrace.session().clone()));
        attach_window(&mut machine, hypertrace.device(), layout::DEVICE, Answer::Device)?;
        let args = Args {
            device: layout::DEVICE,
            events: iterations,
            params: [NULL, self.done, 0, 0],
            ..Args::new(Program::StoreRegions)
        };
        self.done += iterations;
        let ticks = machine.run(&args, LIMIT)?.results[0][TICKS];
        // The guest's counter has the host's frequency.
        let seconds = ticks as f64 / self.hypertrace.session().host_frequency() as f64;
        Ok(Duration::from_secs_f64(seconds))
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    if let Err(kvm_vmm::Error::Unusable(why)) = Machine::new(1) {
        return report_unusable(&why);
    }
    let temporary;
    let dir = match std::env::var_os("HYPERTRACE_OUT") {
        Some(dir) => dir.into(),
        None => {
            temporary = tempfile::tempdir()?;
            temporary.path().to_owned()
        }
    };
    let mut host = Host::new(&dir)?;
    let mut criterion = Criterion::default().configure_from_args();
    criterion.bench_function("store", |bencher| {
        bencher.iter_custom(|iterations| host.sample(iterations).expect("a guest that ends"));
    });
    criterion.final_summary();
    let summary = host.hypertrace.finish()?;
    eprintln!("{} records in {}, {} lost", summary.records, dir.display(), summary.lost);
    Ok(())
}

/// Prints why there is no guest. Without KVM the benchmark measures nothing and succeeds.
fn report_unusable(why: &Unusable) -> Result<(), Box<dyn Error>> {
    eprintln!("no benchmark in a guest: {why}");
    Ok(())
}
