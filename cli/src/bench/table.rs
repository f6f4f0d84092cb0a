//! The output of `bench`.

use super::cpus;
use super::measure::Measured;
use super::timing::TICKS_PER_NS;
use crate::output;
use serde::Serialize;

/// Machine that the numbers were measured on.
#[derive(Serialize)]
pub struct Machine {
    cpu: String,
    cpus: usize,
    /// The closest unit that two of the CPUs share: core, cache, or nothing.
    cpus_share: String,
    kernel: String,
    counter_hz: u64,
    version: &'static str,
}

impl Machine {
    pub fn new() -> Machine {
        let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        let cpuinfo = read("/proc/cpuinfo");
        let cpu = cpuinfo
            .lines()
            .find_map(|line| line.strip_prefix("model name")?.split_once(':'))
            .map_or("unknown", |(_, name)| name.trim());
        Machine {
            cpu: cpu.to_owned(),
            cpus: std::thread::available_parallelism().map_or(1, usize::from),
            cpus_share: cpus::shared_by_two(),
            kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
            counter_hz: (*TICKS_PER_NS * 1e9) as u64,
            version: env!("CARGO_PKG_VERSION"),
        }
    }
}

pub fn text(machine: &Machine, rows: &[Measured]) -> String {
    let machine = format!(
        "{}, {} CPUs (shared by two: {}), Linux {}, counter {:.3} GHz",
        machine.cpu,
        machine.cpus,
        machine.cpus_share,
        machine.kernel,
        machine.counter_hz as f64 / 1e9
    );
    let number = |value: Option<f64>| value.map_or("-".to_owned(), |value| format!("{value:.2}"));
    let cells = |row: &Measured| {
        let met = match row.met {
            Some(true) => "met",
            Some(false) => "missed",
            None => "",
        };
        [
            row.name.to_owned(),
            number(row.ns),
            number(row.ratio),
            number(row.iqr),
            row.floor.unwrap_or_default().to_owned(),
            row.target.unwrap_or_default().to_owned(),
            met.to_owned(),
            row.note.clone(),
        ]
    };
    let header = ["row", "ns", "ratio", "IQR", "floor", "target", "", "what"];
    format!("{machine}\n\n{}\n", output::table(header, 1..4, rows.iter().map(cells)))
}
