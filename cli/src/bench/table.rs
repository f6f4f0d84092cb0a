//! The output of `bench`.

use super::rows::Context;
use super::{Measured, cpus};
use comfy_table::{CellAlignment, Table, presets};
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

pub fn machine(context: &Context) -> Machine {
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
        counter_hz: (context.ticks_per_ns * 1e9) as u64,
        version: env!("CARGO_PKG_VERSION"),
    }
}

/// Returns the median and the distance between the quartiles.
pub fn median_and_iqr(values: &mut [f64]) -> (f64, f64) {
    values.sort_by(f64::total_cmp);
    let at = |part: f64| {
        let position = part * (values.len() - 1) as f64;
        let (low, high) = (values[position as usize], values[position.ceil() as usize]);
        low + (high - low) * position.fract()
    };
    (at(0.5), at(0.75) - at(0.25))
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
    let mut table = Table::new();
    table.load_preset(presets::NOTHING);
    table.set_header(["row", "ns", "ratio", "IQR", "floor", "target", "", "what"]);
    let number = |value: Option<f64>| value.map_or("-".to_owned(), |value| format!("{value:.2}"));
    for row in rows {
        let met = match row.met {
            Some(true) => "met",
            Some(false) => "missed",
            None => "",
        };
        table.add_row([
            row.name.to_owned(),
            number(row.ns),
            number(row.ratio),
            number(row.iqr),
            row.floor.unwrap_or_default().to_owned(),
            row.target.unwrap_or_default().to_owned(),
            met.to_owned(),
            row.note.clone(),
        ]);
    }
    for column in 1..=3 {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    format!("{machine}\n\n{table}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn median_and_quartiles_are_interpolated() {
        assert_eq!(median_and_iqr(&mut [4.0, 1.0, 3.0, 2.0]), (2.5, 1.5));
        assert_eq!(median_and_iqr(&mut [7.0]), (7.0, 0.0));
    }
}
