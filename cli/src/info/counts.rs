//! A session's counts of events, losses and faults.

use crate::output::{grouped, table, wrapped};
use crate::writer::{origin, unfinished};
use hypertrace_abi::ring::Losses;
use hypertrace_export::escape::Escaped;
use hypertrace_export::json::causes;
use hypertrace_timeline::{Domain, KernelStat, Session, StreamStat, info};
use std::fmt::Write as _;

fn source(session: &Session, stat: &StreamStat) -> String {
    match stat.stream {
        Some((Domain::Host, ring)) => format!("{}/{ring}", session.json().sides()[1]),
        Some((Domain::Guest, client)) => format!("{}/{client}", session.json().sides()[0]),
        None => "total".into(),
    }
}

/// Formats the table of a session's streams, and the lines below the table.
pub fn text(session: &Session, info: &info::Session) -> String {
    let all = [
        (false, "records", (|row| row.records) as fn(&StreamStat) -> u64),
        (false, "events", |row| row.events),
        (true, "points", |row| row.reference_points),
        (false, "lost", |row| row.lost),
        (true, "filtered", |row| row.filtered),
        (true, "faults", |row| row.faults),
    ];
    // A rare count has a column only if the count is not zero. `records`, `events` and `lost` always have a
    // column, because every user asks for these counts.
    let columns = all.into_iter().filter(|(is_rare, _, count)| !is_rare || count(&info.total) > 0);
    let columns = Vec::from_iter(columns.map(|(_, name, count)| (name, count)));
    let header = ["source", "name"].into_iter().chain(columns.iter().map(|(name, _)| *name));
    let cells = |row: &StreamStat| {
        let texts = [source(session, row), Escaped(row.name.as_bytes()).to_string()];
        let counts = columns.iter().map(|(_, count)| grouped(count(row)));
        texts.into_iter().chain(counts).collect::<Vec<_>>()
    };
    let mut out = String::new();
    if info.streams.is_empty() {
        out.push_str("no events\n");
    } else {
        let shown = || info.streams.iter().filter(|row| !is_unused(row));
        let rows = shown().chain([&info.total]).map(cells);
        let table = table(header, 2..2 + columns.len(), rows).to_string();
        table.lines().for_each(|line| out.extend([line.trim_end(), "\n"]));
        match info.streams.len() - shown().count() {
            0 => {}
            1 => out.push_str("1 source without a record is not shown\n"),
            n => out.push_str(&format!("{n} sources without a record are not shown\n")),
        }
    }
    let mut below = String::new();
    // Writing to a String does not fail.
    let _ = details(&mut below, session, info);
    for kernel in info.kernel.iter().chain(&info.guest_kernels) {
        let name = kernel.file.as_deref().unwrap_or("kernel.dat");
        let clock = kernel.clock.map_or(String::new(), |clock| format!(" (clock {clock})"));
        let _ = kernel_text(&mut below, &format!("{name}{clock}"), kernel);
    }
    if !below.is_empty() {
        let lines = below.lines().map(|line| wrapped(line, ""));
        out.extend(lines);
    }
    out
}

/// Returns whether all counts of a stream are zero, as for a client that nobody leased.
fn is_unused(row: &StreamStat) -> bool {
    row.records == 0 && row.lost == 0 && row.filtered == 0 && row.faults == 0
}

/// Writes the lines that only some sessions have.
fn details(out: &mut String, session: &Session, info: &info::Session) -> std::fmt::Result {
    for row in &info.streams {
        list(out, &format!("lost by {}", source(session, row)), causes(row.causes))?;
    }
    let unattached = session.json().lost_unattached;
    let unattached = Losses { unattached, ..Losses::default() };
    list(out, "lost by threads without a ring", causes(unattached))?;
    for row in &info.streams {
        let kinds = row.faults_by_kind.iter().map(|(kind, n)| match kind.as_str() {
            "untyped" => ("events without a text", *n),
            kind => (kind, *n),
        });
        list(out, &format!("faults of {}", source(session, row)), kinds)?;
    }
    // A program has no device. Instead, the recorder's counts are shown, and of these only the counts of
    // faults.
    let is_program = session.json().programs;
    let title = if is_program { "recorder" } else { "device" };
    let device = info.device.iter().map(|(k, n)| (k.as_str(), *n));
    // For a program, `rings_without_point` is no fault, because a program also rings when its ring fills.
    let is_usual = |name: &str| is_program && ["passes", "rings_without_point"].contains(&name);
    list(out, title, device.filter(|(name, n)| *n > 0 && !is_usual(name)))?;
    if info.missing > 0 {
        let missing = grouped(info.missing);
        write!(
            out,
            "\nmissing: {missing} events that session.json counts and no stream file holds"
        )?;
    }
    if let Some(said) = unfinished(session) {
        write!(out, "\n{said}")?;
    }
    if let Some(origin) = origin(session) {
        write!(out, "\n{}", Escaped(origin.as_bytes()))?;
    }
    Ok(())
}

fn list<'a>(
    out: &mut String,
    title: &str,
    counts: impl Iterator<Item = (&'a str, u64)>,
) -> std::fmt::Result {
    let item = |(name, n): (&str, u64)| format!("{} {}", Escaped(name.as_bytes()), grouped(n));
    let items: Vec<String> = counts.map(item).collect();
    if items.is_empty() { Ok(()) } else { write!(out, "\n{title}: {}", items.join(", ")) }
}

fn kernel_text(out: &mut String, name: &str, kernel: &KernelStat) -> std::fmt::Result {
    if kernel.cpus.is_empty() {
        write!(out, "\n{name}: no events")?;
    }
    for (at, cpu) in kernel.cpus.iter().enumerate() {
        match at {
            0 => write!(out, "\n{name}: ")?,
            _ => out.push_str("; "),
        }
        let events = if cpu.events == 1 { "event" } else { "events" };
        if !cpu.buffer.is_empty() {
            write!(out, "{}:", Escaped(cpu.buffer.as_bytes()))?;
        }
        write!(out, "cpu{} {} {events}, ", cpu.cpu, grouped(cpu.events))?;
        match cpu.lost {
            0 if !kernel.losses_known => out.push_str("? lost"),
            lost if !kernel.losses_known => write!(out, "{} lost at least", grouped(lost))?,
            lost => write!(out, "{} lost", grouped(lost))?,
        }
        if cpu.uncounted > 0 {
            let places = if cpu.uncounted == 1 { "place" } else { "places" };
            write!(out, " and an unknown number in {} {places}", grouped(cpu.uncounted))?;
        }
    }
    Ok(())
}

/// Formats the counts of a kernel's file, and what the file says of its recording.
pub fn file_text(stat: &KernelStat) -> String {
    let mut out = String::new();
    // Writing to a String does not fail.
    let _ = kernel_text(&mut out, "events", stat);
    for (name, fact) in &stat.facts {
        let _ = write!(out, "\n{}: {}", name.replace('_', " "), Escaped(fact.as_bytes()));
    }
    out.trim_start().lines().map(|line| wrapped(line, "")).collect()
}
