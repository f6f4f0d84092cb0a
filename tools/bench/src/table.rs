//! The results as text.

use super::cpus;
use super::measure::Measured;
use super::row::Row;
use super::rows::SECTIONS;
use super::timing::TICKS_PER_NS;
use rustix::termios::tcgetwinsize;
use serde::Serialize;
use std::io;
use textwrap::{Options, WordSplitter};

/// Machine on which the numbers were measured.
#[derive(Serialize)]
pub struct Machine {
    cpu: String,
    cpus: usize,
    /// Closest unit that two of the CPUs share: core, cache, or nothing.
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

/// Number of columns of an output that is no terminal.
const COLUMNS: usize = 100;

/// Returns the number of columns of the terminal that is standard output.
pub fn columns() -> usize {
    let size = tcgetwinsize(io::stdout()).ok().filter(|size| size.ws_col > 0);
    size.map_or(COLUMNS, |size| size.ws_col.into())
}

/// Returns the text about the machine and about each row. The line below a row says what the row measures.
/// Below a row that misses its target, the text also says what bounds the row's time. No line is longer than
/// `columns`.
pub fn text(machine: &Machine, rows: &[Measured], columns: usize) -> String {
    let machine = format!(
        "{}, {} CPUs (shared by two: {}), Linux {}, counter {:.3} GHz",
        machine.cpu,
        machine.cpus,
        machine.cpus_share,
        machine.kernel,
        machine.counter_hz as f64 / 1e9
    );
    let name = rows.iter().map(|row| row.name.len()).max().unwrap_or(0);
    let line = |row: &str, ns: &str, ratio: &str, iqr: &str, target: &str| {
        format!("{row:name$} {ns:>11} {ratio:>8} {iqr:>8}  {target}").trim_end().to_owned() + "\n"
    };
    let mut text = wrapped(&machine, "", columns) + "\n";
    text += &line("row", "ns", "ratio", "IQR", "target");
    let number = |value: Option<f64>| value.map_or("-".to_owned(), |value| format!("{value:.2}"));
    for row in rows {
        let met = match row.met {
            Some(true) => "met",
            Some(false) => "missed",
            None => "",
        };
        text += &line(row.name, &number(row.ns), &number(row.ratio), &number(row.iqr), met);
        let target = row.target.map(|target| format!("; target {target}"));
        text += &wrapped(&(row.note.clone() + &target.unwrap_or_default()), "    ", columns);
        if row.met == Some(false) && !row.details.is_empty() {
            text += &wrapped(row.details, "    ", columns);
        }
    }
    text
}

/// Lists rows below the texts of their sections. For each row, the list has the row's name and target. The
/// lines below the name say what the row measures, and how.
pub fn list(rows: &[&Row], columns: usize) -> String {
    let name = rows.iter().map(|row| row.name.len()).max().unwrap_or(0);
    let entry = |row: &Row| {
        let line = format!("{:name$} {}", row.name, row.target.unwrap_or_default());
        let text = format!("{}. {}", row.what, row.note);
        line.trim_end().to_owned() + "\n" + &wrapped(text.trim_end(), "    ", columns)
    };
    let is_listed = |row: &&Row| rows.iter().any(|listed| listed.name == row.name);
    let section = |(about, of): &(&str, &[&[Row]])| {
        let of = of.iter().copied().flatten().filter(is_listed);
        let entries: String = of.map(entry).collect();
        if entries.is_empty() { entries } else { wrapped(about, "# ", columns) + &entries }
    };
    SECTIONS.iter().map(section).collect()
}

/// Divides a line between words, and indents the resulting lines.
fn wrapped(line: &str, indent: &str, columns: usize) -> String {
    let options = Options::new(columns).initial_indent(indent).subsequent_indent(indent);
    // Paths and commands stay whole, so that they can be copied.
    let options = options.word_splitter(WordSplitter::NoHyphenation);
    textwrap::fill(line, options) + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rows;

    #[test]
    fn a_listed_row_is_below_the_text_of_its_section() {
        let rows: Vec<_> = rows::all().filter(|row| row.name.starts_with("c_dis")).collect();

        let expected = "\
# C: a program that the benchmark compiles by `cc`
c_disabled <= 0.5 ns over an empty loop
    `c_emit` switched off by the host; the ratio is the difference in ns.
";
        assert_eq!(list(&rows, 80), expected);
    }

    #[test]
    fn no_line_is_wider_than_the_terminal() {
        let measured = |row: &Row| Measured {
            name: row.name,
            ns: Some(100_000_000.0),
            ratio: Some(12_345.0),
            iqr: Some(12_345.0),
            target: row.target,
            met: Some(false),
            note: row.what.to_owned(),
            details: row.note,
            ..Measured::default()
        };
        let rows: Vec<_> = rows::all().map(measured).collect();
        for columns in [80, 120] {
            let text = text(&Machine::new(), &rows, columns)
                + &list(&rows::all().collect::<Vec<_>>(), columns);

            let longest = text.lines().map(|line| line.chars().count()).max();
            assert!(longest.unwrap() <= columns, "{text}");
        }
    }
}
