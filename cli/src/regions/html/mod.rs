//! Regions as one page that needs no other file and no network. This module writes everything except for the
//! charts that can be zoomed. The page's script makes these charts with uPlot.

mod bars;
mod charts;
mod whose;

use super::rows::Shown;
use super::text::{
    ExitRow, WaitRow, columns, exit_count, exit_rows, footnotes, notes, remarks, time, wait_rows,
};
use crate::output::grouped;
use crate::page::PageFile;
use crate::writer::origin;
use anyhow::{Context, Result};
pub use bars::{Segment, colour, stack};
use bars::{bar, legend, owner_legend, patterns};
use charts::Charts;
use hypertrace_export::escape::Html;
use hypertrace_timeline::regions::{Breakdown, ByValue, Group, Histogram, NotCounted, Part, Step};
use hypertrace_timeline::{ClockMaps, Recording, Session, Warning};
use rustix::rand::{GetRandomFlags, getrandom};
use std::fmt::{self, Write as _};
use whose::Whose;

/// File of the page.
pub const PAGE: PageFile = PageFile {
    mark: "<!doctype html>\n<!-- hypertrace regions -->\n",
    option: "--html",
    prefix: ".regions-",
};

const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");
/// uPlot 1.6.32, from its package in the npm registry, unchanged.
const UPLOT: &str = include_str!("uplot/uPlot.iife.min.js");
const UPLOT_STYLE: &str = include_str!("uplot/uPlot.min.css");
const UPLOT_LICENSE: &str = include_str!("uplot/LICENSE");

/// Maximum number of groups that get a section.
const MAX_SECTIONS: usize = 12;
/// Maximum number of groups in the table of all groups.
const MAX_ROWS: usize = 200;
/// Maximum number of slowest regions that are shown for a group.
const SLOWEST: usize = 20;
/// Maximum number of intervals of the slowest region in its table.
const MAX_STEPS: usize = 100;
/// Maximum number of characters of a name.
const MAX_CHARACTERS: usize = 100;

/// Makes the page.
///
/// # Errors
/// If the system has no random bytes.
pub fn page(shown: &Shown<'_>, recording: &Recording, warnings: &[Warning]) -> Result<String> {
    let sessions = &recording.sessions;
    let groups = shown.groups().filter(|group| group.count > 0);
    let groups: Vec<&Group> = groups.take(MAX_SECTIONS).collect();
    let charts = Charts::of(shown, &groups);
    let names = sessions.iter().map(|(s, _)| short(&s.dir().display().to_string()));
    let title = format!("Regions of {}", names.collect::<Vec<_>>().join(", "));
    let data = charts.data();
    let whose = Whose::of(shown, recording, &groups);
    let page = Page { shown, charts, whose };
    document(PAGE.mark, &title, &data, |out| page.write(out, &title, sessions, &groups, warnings))
}

/// Makes a page from a body and the page's data. The data is a JSON text, and contains nothing that ends a
/// script.
///
/// # Errors
/// If the system has no random bytes.
pub fn document(
    mark: &str,
    title: &str,
    data: &str,
    body: impl FnOnce(&mut String) -> fmt::Result,
) -> Result<String> {
    let nonce = nonce().context("cannot get random bytes")?;
    let mut out = String::new();
    // Writing to a String does not fail.
    let _ = write_document(&mut out, [mark, title, data, &nonce], body);
    Ok(out)
}

fn write_document(
    out: &mut String,
    [mark, title, data, nonce]: [&str; 4],
    body: impl FnOnce(&mut String) -> fmt::Result,
) -> fmt::Result {
    write!(
        out,
        "{mark}<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; \
         style-src 'nonce-{nonce}'; script-src 'nonce-{nonce}'; base-uri 'none'; \
         form-action 'none'\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n\
         <title>{}</title>\n\
         <style nonce=\"{nonce}\">\n{UPLOT_STYLE}\n{STYLE}</style>\n</head>\n<body>\n",
        Html(title)
    )?;
    patterns(out)?;
    body(out)?;
    write!(
        out,
        "<script type=\"application/json\" id=\"data\">{data}</script>\n\
         <script nonce=\"{nonce}\">\n/*\n{UPLOT_LICENSE}\n*/\n{UPLOT}\n{SCRIPT}</script>\n\
         </body>\n</html>\n"
    )
}

/// Returns a number that nobody could know when the sessions were recorded. The browser uses only a style and
/// a script that have this number.
fn nonce() -> rustix::io::Result<String> {
    let mut bytes = [0; 16];
    let mut filled = 0;
    while filled < bytes.len() {
        match getrandom(&mut bytes[filled..], GetRandomFlags::empty()) {
            Ok(count) => filled += count,
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(format!("{:032x}", u128::from_ne_bytes(bytes)))
}

/// Returns a name, or its beginning if the name is long.
pub fn short(name: &str) -> String {
    match name.char_indices().nth(MAX_CHARACTERS) {
        Some((end, _)) => format!("{}\u{2026}", &name[..end]),
        None => name.to_owned(),
    }
}

/// A page that is being written.
struct Page<'a> {
    shown: &'a Shown<'a>,
    charts: Charts,
    whose: Whose,
}

impl Page<'_> {
    fn write(
        &self,
        out: &mut String,
        title: &str,
        sessions: &[(Session, ClockMaps)],
        groups: &[&Group],
        warnings: &[Warning],
    ) -> fmt::Result {
        writeln!(out, "<header><h1>{}</h1>", Html(title))?;
        out.push_str(
            "<p class=\"note\">How long regions of interest took, and where their time went. \
             Time counts for a part only between two events that prove it; the rest is \
             unknown.</p>\n</header>\n<main>\n",
        );
        for (session, _) in sessions {
            if let Some(origin) = origin(session) {
                let name = short(&session.dir().display().to_string());
                writeln!(out, "<p class=\"note origin\">{}: {}</p>", Html(&name), Html(&origin))?;
            }
        }
        for warning in warnings {
            writeln!(out, "<p class=\"warning\">{}</p>", Html(warning))?;
        }
        for remark in remarks(self.shown) {
            writeln!(out, "<p class=\"note\">{}.</p>", Html(&remark))?;
        }
        self.overview(out, groups)?;
        for (index, group) in groups.iter().enumerate() {
            self.section(out, index, group)?;
        }
        out.push_str("</main>\n");
        Ok(())
    }

    /// Writes the table of all groups.
    fn overview(&self, out: &mut String, sections: &[&Group]) -> fmt::Result {
        let all: Vec<&Group> = self.shown.groups().collect();
        if all.is_empty() {
            out.push_str("<p>No regions.</p>\n");
            return Ok(());
        }
        scrolled(out, "All regions", |out| {
            out.push_str("<table><caption>All regions</caption>\n<thead><tr>");
            let by = all.iter().find_map(|group| Some(short(&group.by.as_ref()?.key)));
            for name in ["region".to_owned()].into_iter().chain(by.clone()) {
                write!(out, "<th scope=\"col\" class=\"name\">{}</th>", Html(&name))?;
            }
            for name in ["count", "min", "p50", "p90", "p99", "max", "not counted"] {
                write!(out, "<th scope=\"col\">{name}</th>")?;
            }
            out.push_str("</tr></thead>\n<tbody>\n");
            let mut linked = 0;
            for group in all.iter().copied().take(MAX_ROWS) {
                let name = short(&self.shown.title(group));
                let has_section = sections.get(linked).is_some_and(|s| std::ptr::eq(*s, group));
                out.push_str("<tr><th scope=\"row\" class=\"name\">");
                if has_section {
                    write!(out, "<a href=\"#g{linked}\">{}</a></th>", Html(&name))?;
                    linked += 1;
                } else {
                    write!(out, "{}</th>", Html(&name))?;
                }
                if by.is_some() {
                    let value = short(group.value().unwrap_or_default());
                    write!(out, "<td class=\"name\">{}</td>", Html(&value))?;
                }
                write!(out, "<td>{}</td>", grouped(group.count))?;
                for ns in [group.min_ns, group.p50_ns, group.p90_ns, group.p99_ns, group.max_ns] {
                    match ns {
                        None => out.push_str("<td></td>"),
                        Some(ns) => write!(out, "<td>{}</td>", Ns(ns))?,
                    }
                }
                let not_counted = group.not_counted.iter().sum();
                writeln!(out, "<td>{}</td></tr>", grouped(not_counted))?;
            }
            out.push_str("</tbody></table>\n");
            Ok(())
        })?;
        let with_regions = all.iter().filter(|group| group.count > 0).count();
        if all.len() > MAX_ROWS || with_regions > sections.len() {
            writeln!(
                out,
                "<p class=\"note\">{} groups; the first {MAX_ROWS} are in this table, and the \
                 first {} with regions below. Choose others with --name.</p>",
                grouped(all.len() as u64),
                sections.len()
            )?;
        }
        Ok(())
    }

    /// Writes everything about a group.
    fn section(&self, out: &mut String, index: usize, group: &Group) -> fmt::Result {
        write!(out, "<section aria-labelledby=\"g{index}\"><h2 id=\"g{index}\">")?;
        write!(out, "{}", Html(&short(&self.shown.title(group))))?;
        if let Some(ByValue { key, value }) = &group.by {
            let (by, value) = (short(key), short(value));
            write!(out, " <small>{} {}</small>", Html(&by), Html(&value))?;
        }
        let regions = if group.count == 1 { "region" } else { "regions" };
        write!(out, "</h2>\n<p>{} {regions}:", grouped(group.count))?;
        for (name, ns) in group.quantiles() {
            let comma = if name == "min" { "" } else { "," };
            write!(out, "{comma} {name} <b>{}</b>", Ns(ns))?;
        }
        out.push_str("</p>\n<ul class=\"note\">");
        for note in notes(group) {
            write!(out, "<li>{note}</li>")?;
        }
        for (kind, name) in NotCounted::ALL {
            let count = group.not_counted[kind as usize];
            if count > 0 {
                write!(out, "<li>not counted: {} {}</li>", grouped(count), name.replace('_', " "))?;
            }
        }
        out.push_str("</ul>\n<h3>Where the time went</h3>\n");
        legend(out, group, |part| group.total.times.get(part) > 0)?;
        out.push_str("<div class=\"columns\"><div>");
        self.shares(out, group)?;
        out.push_str("</div><div>");
        self.breakdowns(out, group)?;
        out.push_str("</div></div>\n<div class=\"columns\"><div>");
        histogram(out, &group.histogram)?;
        out.push_str("</div><div><h3>Share of the regions by duration</h3>");
        writeln!(out, "<div data-curve=\"{index}\">{NO_SCRIPT}</div></div></div>")?;
        self.slowest(out, group)?;
        self.steps(out, group)?;
        let parts = &self.charts.parts[index];
        if !parts.is_empty() {
            out.push_str("<h3>Threads around a region</h3>\n");
            legend(out, group, |part| parts.contains(&part))?;
            owner_legend(out, &self.charts.owners[index])?;
            writeln!(out, "<div data-lanes=\"{index}\">{NO_LANES}</div>")?;
        }
        out.push_str("</section>\n");
        Ok(())
    }

    /// Writes a bar for each breakdown. All bars have the same length.
    fn shares(&self, out: &mut String, group: &Group) -> fmt::Result {
        out.push_str("<div class=\"bars\">\n");
        for (name, breakdown) in columns(group) {
            let (times, exits) = (&breakdown.times, exits_of(breakdown));
            let ns = breakdown.duration_ns;
            write!(out, "<span>{name} <b>{}</b></span>", time(ns))?;
            bar(out, self.shown, group, times, &exits, ns)?;
            out.push('\n');
        }
        out.push_str("</div>\n");
        Ok(())
    }

    fn breakdowns(&self, out: &mut String, group: &Group) -> fmt::Result {
        let columns = columns(group);
        scrolled(out, "Where the time went", |out| {
            out.push_str("<table><thead><tr><th scope=\"col\">part</th>");
            for (name, _) in &columns {
                write!(out, "<th scope=\"col\" colspan=\"2\">{name}</th>")?;
            }
            out.push_str("</tr></thead>\n<tbody>\n<tr><th scope=\"row\">duration</th>");
            for (_, breakdown) in &columns {
                write!(out, "<td>{}</td><td></td>", Ns(breakdown.duration_ns))?;
            }
            out.push_str("</tr>\n");
            for part in Part::ALL {
                if columns.iter().any(|(_, b)| b.times.get(part) > 0) {
                    write!(out, "<tr><th scope=\"row\">{}</th>", group.label(part))?;
                    for (_, b) in &columns {
                        let ns = b.times.get(part);
                        let share = ns as f64 * 100.0 / b.duration_ns.max(1) as f64;
                        let ns = Ns(ns);
                        write!(out, "<td>{ns}</td><td class=\"share\">{share:.1}%</td>")?;
                    }
                    out.push_str("</tr>\n");
                }
                exits(out, &columns, part)?;
                for WaitRow { name, ns } in wait_rows(self.shown, &columns, part) {
                    let name = short(&name);
                    write!(out, "<tr><th scope=\"row\" class=\"sub wait\">{}</th>", Html(&name))?;
                    for ns in ns {
                        match ns {
                            0 => out.push_str("<td>-</td><td></td>"),
                            _ => write!(out, "<td>{}</td><td></td>", Ns(ns))?,
                        }
                    }
                    out.push_str("</tr>\n");
                }
            }
            out.push_str("</tbody></table>\n");
            Ok(())
        })?;
        for note in footnotes(self.shown, group) {
            write!(out, "<p class=\"note\">{note}</p>")?;
        }
        Ok(())
    }

    /// Writes the slowest regions, each with a bar and its numbers.
    fn slowest(&self, out: &mut String, group: &Group) -> fmt::Result {
        let all: Vec<_> = self.shown.regions.slowest(group).take(SLOWEST).collect();
        let longest = all.first().map_or(0, |(sample, _)| sample.duration_ns());
        out.push_str("<h3>The slowest</h3>\n<div class=\"bars\">\n");
        let mut are_known = true;
        for (sample, exits) in &all {
            are_known &= exits.is_some();
            let exits: Vec<(u8, u64)> =
                exits.iter().flat_map(|all| all.iter()).map(|(r, e)| (*r, e.kernel)).collect();
            let text = self.whose.get(sample);
            let (thread, fields) = (Html(&text.thread), Html(&text.fields));
            write!(out, "<span><b>{}</b> {thread} {fields}</span>", time(sample.duration_ns()))?;
            bar(out, self.shown, group, &sample.times, &exits, longest)?;
            out.push('\n');
        }
        out.push_str("</div>\n");
        if !are_known {
            out.push_str(
                "<p class=\"note\">There are too many regions to keep the reasons of all exits: \
                 the kernel's part is not divided where reasons are missing.</p>\n",
            );
        }
        out.push_str("<details><summary>Numbers of the slowest regions</summary>\n");
        scrolled(out, "Numbers of the slowest regions", |out| {
            out.push_str(
                "<table><thead><tr><th scope=\"col\">duration</th>\
                 <th scope=\"col\" class=\"name\">thread</th><th scope=\"col\">id</th>\
                 <th scope=\"col\" class=\"name\">fields</th><th scope=\"col\">began</th>",
            );
            let shown: Vec<_> = Part::ALL
                .into_iter()
                .filter(|part| all.iter().any(|(sample, _)| sample.times.get(*part) > 0))
                .collect();
            for part in &shown {
                write!(out, "<th scope=\"col\">{}</th>", group.label(*part))?;
            }
            out.push_str("</tr></thead>\n<tbody>\n");
            for (sample, _) in &all {
                let text = self.whose.get(sample);
                let (thread, fields) = (Html(&text.thread), Html(&text.fields));
                let began = self.shown.since_start(sample) as f64 / 1e9;
                write!(
                    out,
                    "<tr><td>{}</td><td class=\"name\">{thread}</td><td>{}</td>\
                     <td class=\"name\">{fields}</td><td>{began:.9}s</td>",
                    Ns(sample.duration_ns()),
                    sample.id
                )?;
                for part in &shown {
                    write!(out, "<td>{}</td>", Ns(sample.times.get(*part)))?;
                }
                out.push_str("</tr>\n");
            }
            out.push_str("</tbody></table>\n");
            Ok(())
        })?;
        out.push_str(
            "<p class=\"note\">Began: time since the session's start, for report --from.</p>\n\
             </details>\n",
        );
        Ok(())
    }

    /// Writes what the thread of the slowest region did, step by step.
    fn steps(&self, out: &mut String, group: &Group) -> fmt::Result {
        let example = group.breakdown.slowest.as_ref().and_then(|slowest| slowest.example.as_ref());
        let Some(example) = example else { return Ok(()) };
        let (intervals, is_whole) = self.shown.regions.steps(example);
        if intervals.is_empty() {
            return Ok(());
        }
        let events = &self.shown.regions.events;
        out.push_str("<details><summary>Steps of the slowest region</summary>\n");
        scrolled(out, "Steps of the slowest region", |out| {
            out.push_str(
                "<table><thead><tr><th scope=\"col\">after</th><th scope=\"col\">for</th>\
                 <th scope=\"col\" class=\"name\">part</th>\
                 <th scope=\"col\" class=\"name\">until the event</th></tr></thead>\n<tbody>\n",
            );
            for interval in intervals.iter().take(MAX_STEPS) {
                let part = interval.part;
                let after = interval.from.saturating_sub(example.begin_ns);
                let length = interval.to.saturating_sub(interval.from);
                write!(
                    out,
                    "<tr><td>{}</td><td>{}</td><td class=\"name\">{}",
                    time(u64::try_from(after).unwrap_or(0)),
                    time(u64::try_from(length).unwrap_or(0)),
                    group.label(part)
                )?;
                if part == Part::Kernel || part == Part::Vmm && interval.reason != 0 {
                    let reason = short(self.shown.regions.reason(interval.reason));
                    write!(out, ", {}", Html(&reason))?;
                }
                let event = interval.ended_by.and_then(|by| events.get(by.event as usize));
                let event = short(event.map_or("", |name| name));
                writeln!(out, "</td><td class=\"name\">{}</td></tr>", Html(&event))?;
            }
            out.push_str("</tbody></table>\n");
            Ok(())
        })?;
        let left = intervals.len().saturating_sub(MAX_STEPS);
        if left > 0 {
            writeln!(out, "<p class=\"note\">{left} more steps are left out.</p>")?;
        }
        if !is_whole {
            out.push_str("<p class=\"note\">Only the region's last steps are known.</p>\n");
        }
        out.push_str("</details>\n");
        Ok(())
    }
}

/// Text in place of a chart where scripts do not run.
pub const NO_SCRIPT: &str = "<noscript><p class=\"note\">This chart can be zoomed, which needs \
    JavaScript. The bars show the same regions.</p></noscript>";
const NO_LANES: &str = "<noscript><p class=\"note\">Lanes can be zoomed, which needs JavaScript. \
    The steps of the slowest region are in the table above.</p></noscript>";

/// A time as text for people, with its nanoseconds for programs.
struct Ns(u64);

impl fmt::Display for Ns {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "<data value=\"{}\">{}</data>", self.0, time(self.0))
    }
}

fn exits_of(breakdown: &Breakdown) -> Vec<(u8, u64)> {
    breakdown.exits.iter().map(|exit| (exit.number, exit.kernel_ns)).collect()
}

/// Writes a row for each reason of exits in a part.
fn exits(out: &mut String, columns: &[(&str, &Breakdown)], part: Part) -> fmt::Result {
    for ExitRow { reason, cells } in exit_rows(columns, part) {
        let name = short(reason);
        write!(out, "<tr><th scope=\"row\" class=\"sub\">{}</th>", Html(&name))?;
        for cell in cells {
            match cell {
                (0.0, 0) => out.push_str("<td>-</td><td></td>"),
                (0.0, ns) => write!(out, "<td>{}</td><td></td>", Ns(ns))?,
                (count, ns) => {
                    let (ns, count) = (Ns(ns), exit_count(count));
                    write!(out, "<td>{ns}</td><td class=\"share\">{count}x</td>")?;
                }
            }
        }
        out.push_str("</tr>\n");
    }
    Ok(())
}

/// Writes a part of the page that can be scrolled sideways, also with the keyboard.
pub fn scrolled(
    out: &mut String,
    label: &str,
    write: impl FnOnce(&mut String) -> fmt::Result,
) -> fmt::Result {
    writeln!(out, "<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"{label}\">")?;
    write(out)?;
    out.push_str("</div>\n");
    Ok(())
}

fn histogram(out: &mut String, histogram: &Histogram) -> fmt::Result {
    let most = histogram.most().max(1);
    out.push_str(
        "<h3>How long they took</h3>\n<table class=\"wide\"><thead><tr>\
         <th scope=\"col\">duration</th><th scope=\"col\">regions</th><td></td></tr></thead>\n\
         <tbody>\n",
    );
    for Step { from, to, count } in histogram.steps() {
        let width = *count as f64 * 100.0 / most as f64;
        writeln!(
            out,
            "<tr><th scope=\"row\">{} .. {}</th><td>{}</td><td class=\"bar\">\
             <svg class=\"bar\" aria-hidden=\"true\"><rect class=\"p-on_cpu\" width=\"{width:.2}%\" \
             height=\"100%\"/></svg></td></tr>",
            time(*from),
            time(*to),
            grouped(*count)
        )?;
    }
    out.push_str("</tbody></table>\n");
    Ok(())
}
