//! How well the clocks of a session are known, and why.

use super::guest_tscs;
use crate::output::{counted, grouped};
use crate::report::unplaced;
use hypertrace_abi::clock::Reason;
use hypertrace_export::escape::Escaped;
use hypertrace_timeline::clock::{ClockMap, Jump, Residuals};
use hypertrace_timeline::info::{self, in_ns, measured, points_in_rings};
use hypertrace_timeline::{ClockMaps, Domain, Segment, Session, Stream};
use std::fmt::{self, Write as _};

/// Maximum number of jumps of a clock that are shown as text.
const SHOWN: usize = 10;

/// Writes what is known about a session's clocks. `first`: the first session, on whose timeline this session
/// is placed.
pub fn text(
    out: &mut String,
    first: Option<&Session>,
    (session, maps): (&Session, &ClockMaps),
    info: &info::Session,
) -> fmt::Result {
    let mut clocks = session.json().clocks.iter();
    let kind = clocks.find(|clock| clock.domain == Domain::Host).map_or("counter", |c| &c.kind);
    write!(out, "  host: {} of {} Hz", clock_name(kind), grouped(info.frequency))?;
    write!(out, "{}, ", steps(1e9 / info.frequency as f64))?;
    match &info.boot_id {
        Some(boot) => writeln!(out, "boot {boot}")?,
        None => writeln!(out, "boot unknown")?,
    }
    if let Some(first) = first {
        match unplaced(first, session) {
            Some(why) => writeln!(out, "  {}", Escaped(why.as_bytes()))?,
            None => {
                let moved = grouped(info.moved_ns.unsigned_abs());
                writeln!(
                    out,
                    "  same machine and boot as {}: merged by the raw counter\n  \
                     (the system's clocks alone would be off by {moved} ns)",
                    Escaped(first.dir().as_os_str().as_encoded_bytes())
                )?;
            }
        }
    }
    // A restored VM's session also has the clock of the time before the restore. The session has no events of
    // this time.
    let is_used = |id: &u32| session.streams().iter().any(|stream| has_clock(stream, *id));
    let has_used = maps.iter().any(|(id, ..)| is_used(&id));
    let is_shown = |(id, _, map): &(u32, Option<u32>, &ClockMap)| {
        !has_used || map.constraints() > 0 || is_used(id)
    };
    let mut all = maps.iter().filter(is_shown).peekable();
    while let Some((id, client, map)) = all.next() {
        let has_others = maps.iter().any(|(other, client, _)| other == id && client.is_some());
        let whose = match client {
            Some(client) => format!("guest/{client} alone: its clock differs from the others"),
            None if has_others => "the sources that agree".into(),
            None => "all sources".into(),
        };
        clock(out, session, maps, (id, client, map), &whose)?;
        if all.peek().is_none_or(|(next, ..)| *next != id) {
            guest_tscs::to_text(out, session, maps, id)?;
        }
    }
    for info::WithoutPoints { clock: id, clients, has_bound } in info.without_points.iter().copied()
    {
        let clients = counted(clients as u64, "source");
        let error = match has_bound {
            true => "their error is as above if the other sources' points are true",
            false => "their error is unknown, because the other sources' points disagree",
        };
        writeln!(out, "  clock {id}: {clients} without reference points;\n    {error}")?;
    }
    if maps.iter().next().is_none() {
        writeln!(out, "  all events have the host's counter")?;
    }
    if info.unusable_reference_points > 0 {
        let unusable = grouped(info.unusable_reference_points);
        writeln!(
            out,
            "  {unusable} reference points have an impossible source or guest time: left out"
        )?;
    }
    if let Some(why) = &info.kernel_error {
        writeln!(out, "  the kernel's events are not used: {}", Escaped(why.as_bytes()))?;
    }
    match info.kernel_limits.map(|limits| (limits.used, limits.left_out)) {
        None => {}
        // In two cases, missing exits are no fault: the events of programs cause no exits, and neither do a
        // guest's points that another process answers.
        Some((0, 0)) if session.json().programs || session.json().served => {}
        Some((0, 0)) => writeln!(out, "  kernel.dat has no exit of a reference point")?,
        Some((used, left_out)) => {
            writeln!(
                out,
                "  kernel.dat has {} times of exits that limit the error, too",
                count(used)
            )?;
            if left_out > 0 {
                let left_out = count(left_out);
                writeln!(
                    out,
                    "  {left_out} more contradict the points or each other, and are left out"
                )?;
            }
        }
    }
    Ok(())
}

fn clock(
    out: &mut String,
    session: &Session,
    maps: &ClockMaps,
    of: (u32, Option<u32>, &ClockMap),
    whose: &str,
) -> fmt::Result {
    let (id, _, map) = of;
    let described = session.json().clock(id);
    let kind = described.map_or(String::new(), |clock| clock_name(&clock.kind));
    writeln!(out, "\n  {} {kind} (clock {id}), {whose}", session.json().sides()[0])?;
    if let Some(reason) =
        described.and_then(|clock| reason_text(Reason::named(clock.reason.as_deref()?)))
    {
        writeln!(out, "    chosen       {reason}, as the guest says")?;
    }
    if described.is_some_and(|clock| clock.found) {
        return writeln!(
            out,
            "    offset unknown: its events were in the VM's memory before this session had it,\n    \
             or before that went back to an older state (loadvm, migration)"
        );
    }
    if map.constraints() == 0 {
        return match points_in_rings(session, id) {
            0 => writeln!(out, "    offset unknown: there are no reference points"),
            records => writeln!(
                out,
                "    offset unknown: there are no reference points that the host answered.\n    \
                 {} records in rings count as points (commits, events of the 2016\n    \
                 interface), but the guest did not wait for the host at any of them",
                grouped(records)
            ),
        };
    }
    writeln!(
        out,
        "    known from   {} readings around reference points",
        count(map.constraints())
    )?;
    let assumed = described.is_some_and(|clock| clock.assumed);
    rate(out, map, described.map_or(0, |clock| clock.frequency), assumed)?;
    let bounds = maps.bounds(of);
    match bounds {
        None => writeln!(
            out,
            "    error        unknown: at some time, nothing limits the clock on one side"
        )?,
        Some(bounds) => writeln!(
            out,
            "    error        at most \u{b1} {} ns at half of a client's own readings,\n\
             \x20                \u{b1} {} ns at 99 % and \u{b1} {} ns at all of them;\n\
             \x20                more where they are far apart, and after the last one",
            ns(bounds.p50),
            ns(bounds.p99),
            ns(bounds.max),
        )?,
    }
    distances(out, maps.residuals(of), maps.is_limited_by_kernel(id))?;
    let found = map.segments() - 1;
    write!(
        out,
        "    jumps        {} found",
        if found == 0 { "none".into() } else { count(found) }
    )?;
    if let Some(room) = maps.room_for_jumps(of) {
        write!(out, "; a jump of less than {} ns may be missed", ns(room))?;
        if bounds.is_some() {
            write!(out, ",\n{:17}and the errors above hold even then", "")?;
        }
        if maps.is_limited_by_kernel(id) {
            write!(out, "\n{:17}(kernel.dat does not make this smaller)", "")?;
        }
    }
    writeln!(out)?;
    for jump in map.jumps().iter().take(SHOWN) {
        tell(out, session, id, jump)?;
    }
    if found > SHOWN {
        writeln!(out, "      and {} more", count(found - SHOWN))?;
    }
    Ok(())
}

/// If a counter's step is longer than a nanosecond, returns a comma and the step in words. Otherwise, returns
/// an empty text.
pub fn steps(ns: f64) -> String {
    let tenths = (ns * 10.0).round() / 10.0;
    if ns < 1.5 { String::new() } else { format!(", in steps of {tenths} ns") }
}

/// Returns the usual name of a clock of this kind.
fn clock_name(kind: &str) -> String {
    match kind {
        "tsc" => "TSC".into(),
        "cntvct" => "CNTVCT".into(),
        "monotonic_raw" => "CLOCK_MONOTONIC_RAW".into(),
        other => Escaped(other.as_bytes()).to_string(),
    }
}

/// Returns in words why programs stamp with a clock; `None` if the reason is not known.
pub fn reason_text(reason: Reason) -> Option<&'static str> {
    match reason {
        Reason::Unknown => None,
        Reason::Named => Some("an option or HYPERTRACE_CLOCK names it"),
        Reason::Kept => Some("the kernel keeps the counter"),
        Reason::Emulated => Some("an emulator's CPUs have one counter"),
        Reason::Agreeing => Some("the kernel has dropped the TSC, but all CPUs agree"),
        Reason::Differing => Some("the TSCs of the CPUs differ"),
        Reason::Doubtful => Some("the counter is not known to be one clock"),
    }
}

/// Returns whether a stream of the guest has packets of a clock.
fn has_clock(stream: &Stream, id: u32) -> bool {
    let has = |segment: &Segment| segment.packets > 0 && segment.first.stream_id == id;
    stream.domain == Domain::Guest && stream.segments.iter().any(has)
}

/// Writes the limits of a clock's rate. If only the declared rate is known, the text says so.
fn rate(out: &mut String, map: &ClockMap, declared: u64, is_assumed: bool) -> fmt::Result {
    let declared = grouped(declared);
    let Some((slowest, fastest)) = map.frequencies() else {
        return writeln!(
            out,
            "    rate         assumed {declared} Hz, which the points do not prove: the\n\
             \x20                errors below allow for any rate"
        );
    };
    let (slowest, fastest) = (grouped(slowest as u64), grouped(fastest.ceil() as u64));
    if !map.has_another_rate() {
        let (word, limits) = match is_assumed {
            true => ("assumed", "; the points allow"),
            false => ("declared", ", assumed to be within 1,000 ppm"),
        };
        return writeln!(
            out,
            "    rate         {word} {declared} Hz{limits}:\n\
             \x20                {slowest} to {fastest} Hz"
        );
    }
    let why = match map.allows_declared_rate() {
        true => {
            ", or\n                 the guest is stopped now and then: the errors below\n\
             \x20                allow for both"
        }
        false => "",
    };
    writeln!(
        out,
        "    rate         declared {declared} Hz. The points contradict that{why}.\n\
         \x20                Assumed to be within 1,000 ppm of the points' mean:\n\
         \x20                {slowest} to {fastest} Hz"
    )
}

/// Writes how far the computed times are from the limits that the constraints set. `has_kernel`: whether some
/// constraints come from the kernel's trace.
fn distances(out: &mut String, residuals: Residuals, has_kernel: bool) -> fmt::Result {
    let (Some(to), Some(from)) = (residuals.to_host, residuals.from_host) else { return Ok(()) };
    let (to, from) = (ns(to), ns(from));
    match has_kernel {
        false => writeln!(
            out,
            "    a point      is handled by the host {to} ns after the guest's\n\
             \x20                reading; the next reading is {from} ns later\n\
             \x20                (medians, by the times that reports show)"
        ),
        true => writeln!(
            out,
            "    a point      reaches the host's kernel {to} ns after the guest's\n\
             \x20                reading; the next reading is {from} ns after the exit\n\
             \x20                (medians, by the times that reports show; for points\n\
             \x20                without an exit in kernel.dat, the host's own times)"
        ),
    }
}

/// Writes how far a jump moves the clock, and which two reference points prove the jump.
fn tell(out: &mut String, session: &Session, id: u32, jump: &Jump) -> fmt::Result {
    let base = session.json().clock(id).map_or(0, |clock| clock.base);
    let (what, first, second) = match jump.ahead {
        true => ("went ahead by", "not before", "not after"),
        false => ("lost", "not after", "not before"),
    };
    let tick = |x: i64| base.saturating_add(x.unsigned_abs());
    let (before, after) = (&jump.before, &jump.after);
    writeln!(out, "      the guest's clock {what} at least {} ns:", ns(jump.least))?;
    for (point, side) in [(before, first), (after, second)] {
        let seconds = since_start(session, point.y) as f64 / 1e9;
        writeln!(out, "        raw {} was {side} {seconds:.9} s of the session", tick(point.x))?;
    }
    let Some((ppm, ns)) = measured(session, id, jump) else { return Ok(()) };
    let how = if jump.ahead { "fast" } else { "slow" };
    writeln!(
        out,
        "        measured: at least {} ppm {how} for {:.3} ms. A rate is assumed\n        \
         to be within 1,000 ppm, so this counts as a jump",
        grouped(ppm.abs() as u64),
        ns / 1e6
    )
}

/// Returns a host time of a map in nanoseconds since the session's start.
pub fn since_start(session: &Session, host: i64) -> i128 {
    let unix = session.unix_ns(host);
    unix - i128::from(session.json().started_unix_ns)
}

pub fn count(n: usize) -> String {
    grouped(n as u64)
}

pub fn ns(units: u64) -> String {
    grouped(in_ns(units))
}
