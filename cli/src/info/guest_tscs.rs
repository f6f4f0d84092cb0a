//! What KVM and the VMM say about guests' TSCs.

use super::clocks::{count, ns, since_start};
use crate::output::{counted, grouped};
use hypertrace_timeline::clock::{Agreement, Contradicted, FRACTION};
use hypertrace_timeline::{ClockMaps, ComparedTsc, GuestCpu, GuestTsc, KvmWord, Session};
use std::fmt::{self, Write as _};

/// Maximum number of items that the text shows: of contradicting clients, of statements of KVM, and of CPUs.
const SHOWN: usize = 10;

/// Error of 1 us, in units of host time ([`FRACTION`] in a nanosecond). Around each border between two parts
/// of the host's time, a time as long as the error is unknown. A larger error than this therefore leaves much
/// of the time of a guest's threads unknown.
const WIDE: u64 = 1_000 * FRACTION.unsigned_abs();

/// Writes whether two sources agree about a clock: the statements of KVM and the VMM, and the points of the
/// clock's clients.
pub fn to_text(out: &mut String, session: &Session, maps: &ClockMaps, clock: u32) -> fmt::Result {
    of_kvm(out, session, maps, clock)?;
    let of_clock = || maps.compared_tscs().filter(|compared| compared.clock == clock);
    let agreed = Vec::from_iter(of_clock().filter(|compared| compared.agreement.is_agreed()));
    for (at, first) in agreed.iter().enumerate() {
        if agreed[..at].iter().any(|other| other.tsc == first.tsc) {
            continue;
        }
        let same = agreed.iter().filter(|other| other.tsc == first.tsc);
        let same = same.map(|compared| compared.agreement);
        agreement(out, first.tsc, &Vec::from_iter(same))?;
    }
    let mut others = of_clock().filter(|compared| !compared.agreement.is_agreed());
    for compared in others.by_ref().take(SHOWN) {
        contradiction(out, session, &compared)?;
    }
    match others.count() {
        0 => {}
        more => writeln!(out, "      and {} more sources", count(more))?,
    }
    let has_word = !agreed.is_empty() || maps.kvm_words().any(|(of, ..)| of == clock);
    let is_tsc = session.json().clock(clock).is_some_and(|clock| clock.kind == "tsc");
    let mut all = maps.iter().filter(|(id, ..)| *id == clock);
    // The advice to record the host's kernel is only for a clock without jumps, because such a recording does
    // not explain jumps.
    let is_wide = all
        .any(|of| of.2.segments() == 1 && maps.bounds(of).is_some_and(|bounds| bounds.p99 > WIDE));
    match is_tsc && is_wide && !has_word && !session.json().programs {
        true => writeln!(
            out,
            "    smaller      if the host's kernel is recorded, too: KVM knows\n\
             \x20                the guest's TSC (`hypertrace record -a`, as root)"
        ),
        false => Ok(()),
    }
}

/// Writes what the recording of the host's kernel says about the TSCs of a clock's clients.
fn of_kvm(out: &mut String, session: &Session, maps: &ClockMaps, clock: u32) -> fmt::Result {
    let mut words: Vec<(&KvmWord, usize)> = Vec::new();
    for (_, _, word) in maps.kvm_words().filter(|(of, ..)| *of == clock) {
        match words.iter_mut().find(|(other, _)| *other == word) {
            Some((_, clients)) => *clients += 1,
            None => words.push((word, 1)),
        }
    }
    for (word, clients) in words.iter().take(SHOWN) {
        let clients = clients_text(*clients);
        for (tsc, from, until) in word.used().take(SHOWN) {
            let seconds = |at| since_start(session, at) as f64 / 1e9;
            writeln!(
                out,
                "    KVM says {}, by kernel.dat, from\n\
                 \x20                {:.3} to {:.3} s of the session: the times of\n\
                 \x20                {clients} are by it, and exact",
                said(tsc),
                seconds(from),
                seconds(until),
            )?;
        }
        if word.is_outside {
            writeln!(
                out,
                "    KVM's TSC offset is not used for {clients}: it puts\n\
                 \x20                guest events outside of guest mode"
            )?;
        } else if word.is_ambiguous {
            writeln!(
                out,
                "    KVM's TSC offsets are not used for {clients}: those of\n\
                 \x20                several VMs or vCPUs fit the points"
            )?;
        } else if word.used().next().is_none() && word.contradicted > 0 {
            writeln!(
                out,
                "    KVM's TSC offsets are not used for {clients}: the points\n\
                 \x20                contradict all {} of kernel.dat",
                count(word.contradicted),
            )?;
        }
    }
    let mut cpus = maps.guest_cpus().filter(|cpu| cpu.clock == clock);
    for GuestCpu { cpu, events, threads, .. } in cpus.by_ref().take(SHOWN) {
        let events = counted(*events as u64, "event");
        write!(out, "    guest's cpu{cpu} {events} of its kernel ")?;
        match threads[..] {
            [] => writeln!(out, "are in guest mode of\n{:17}no thread", "")?,
            [only] => writeln!(out, "are in guest mode of\n{:17}thread {only}", "")?,
            _ => {
                let number = count(threads.len());
                writeln!(out, "may be in guest mode\n{:17}of each of {number} threads", "")?;
            }
        }
    }
    match cpus.count() {
        0 => Ok(()),
        more => writeln!(out, "      and {} more CPUs", count(more)),
    }
}

fn agreement(out: &mut String, tsc: GuestTsc, clients: &[Agreement]) -> fmt::Result {
    let least = |side: fn(&Agreement) -> Option<u64>| clients.iter().filter_map(side).min();
    let (earlier, later) = (least(|found| found.room.0), least(|found| found.room.1));
    let number = clients.iter().map(|found| found.constraints).sum();
    writeln!(
        out,
        "    the VMM says {}; none of the {} limits of\n\
         \x20                {} contradicts it: times are by it. A constant\n\
         \x20                offset could be {} ns earlier or {} ns later",
        said(tsc),
        count(number),
        clients_text(clients.len()),
        ns(earlier.unwrap_or(0)),
        ns(later.unwrap_or(0)),
    )
}

fn contradiction(out: &mut String, session: &Session, compared: &ComparedTsc) -> fmt::Result {
    let ComparedTsc { clock, client, tsc, agreement: found, .. } = compared;
    let (contradicting, all) = (count(found.contradicting), count(found.constraints));
    write!(out, "    the VMM says {} for guest/{client}: not used.\n{:17}", said(*tsc), "")?;
    match found.worst {
        Some(Contradicted { point, is_upper, by, .. }) => {
            let base = session.json().clock(*clock).map_or(0, |clock| clock.base);
            let raw = base.saturating_add(point.x.unsigned_abs());
            let side = if is_upper { "not after" } else { "not before" };
            let seconds = since_start(session, point.y) as f64 / 1e9;
            writeln!(
                out,
                "{contradicting} of {all} limits contradict it, by {} ns\n\
                 \x20                at most: raw {raw} was {side}\n\
                 \x20                {seconds:.9} s of the session",
                ns(by),
            )
        }
        None if !found.has_possible_rate => {
            writeln!(out, "Its rate is not within the limits above")
        }
        None => writeln!(out, "Its {all} limits are on one side only"),
    }
}

fn said(tsc: GuestTsc) -> String {
    let sign = if tsc.offset < 0 { "-" } else { "+" };
    let offset = format!("{sign} {} ticks", grouped(tsc.offset.unsigned_abs()));
    match (tsc.multiplier, tsc.shift) {
        (1, 0) => format!("host {offset}"),
        (multiplier, shift) => {
            let ratio = multiplier as f64 / (1u64 << shift) as f64;
            format!("host * {ratio:.9} {offset}")
        }
    }
}

fn clients_text(number: usize) -> String {
    match number {
        1 => "1 source".into(),
        number => format!("{} sources", count(number)),
    }
}
