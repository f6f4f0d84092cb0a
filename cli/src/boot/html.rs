//! Boots as one page, made like the page of `regions`.

use super::text::{MAX_ROWS, Recorded, columns, fastest, percent, several_of, summary};
use crate::output::grouped;
use crate::page::PageFile;
use crate::regions::html::{Segment, colour, document, scrolled, short, stack};
use crate::regions::time;
use anyhow::Result;
use hypertrace_export::escape::Html;
use hypertrace_timeline::Warning;
use hypertrace_timeline::boot::{Boot, Stage};
use hypertrace_timeline::regions::Part;
use std::fmt::{self, Write as _};

/// The page's file.
pub const PAGE: PageFile = PageFile {
    mark: "<!doctype html>\n<!-- hypertrace boot -->\n",
    option: "--html",
    prefix: ".boot-",
};

/// Maximum number of rows of each table. A page can be scrolled, so its tables are longer than the tables of
/// the text.
const MAX_TABLE: usize = 4 * MAX_ROWS;

/// Makes the page: the stages of all boots, and each stage of the fastest boot.
///
/// # Errors
/// If the system has no random bytes.
pub fn page(recorded: &[Recorded], warnings: &[Warning]) -> Result<String> {
    let boots = Vec::from_iter(recorded.iter().flat_map(|(_, boots)| boots));
    let title = format!("Where {} took their time", several_of(&boots));
    // The page has no chart that needs a script.
    document(PAGE.mark, &title, "{\"groups\":[]}", |out| {
        writeln!(out, "<header><h1>{title}</h1>")?;
        out.push_str(
            "<p class=\"note\">A stage lasts from its mark to the next one, so the stages add up to the whole time.</p>\n\
             </header>\n<main>\n",
        );
        for warning in warnings {
            writeln!(out, "<p class=\"warning\">{}</p>", Html(warning))?;
        }
        if boots.len() > 1 {
            several(out, &boots)?;
        }
        if let Some((path, boot)) = fastest(recorded) {
            for line in summary(path, boot).lines() {
                writeln!(out, "<p>{}</p>", Html(&short(line)))?;
            }
            stages(out, boot)?;
            for (at, stage) in boot.stages.iter().enumerate() {
                section(out, at, stage)?;
            }
        }
        out.push_str("</main>\n");
        Ok(())
    })
}

/// Writes a table with these columns. The first column has names.
fn table(
    out: &mut String,
    caption: &str,
    heads: &[&str],
    rows: impl FnOnce(&mut String) -> fmt::Result,
) -> fmt::Result {
    scrolled(out, caption, |out| {
        write!(out, "<table><caption>{caption}</caption>\n<thead><tr>")?;
        for (at, head) in heads.iter().enumerate() {
            let is_text = at == 0 || ["did", "wait"].contains(head);
            let class = if is_text { " class=\"name\"" } else { "" };
            write!(out, "<th scope=\"col\"{class}>{head}</th>")?;
        }
        out.push_str("</tr></thead>\n<tbody>\n");
        rows(out)?;
        out.push_str("</tbody></table>\n");
        Ok(())
    })
}

/// Writes the number of rows that a table leaves out.
fn left_out(out: &mut String, rows: usize) -> fmt::Result {
    match rows.checked_sub(MAX_TABLE) {
        Some(more @ 1..) => writeln!(out, "<p class=\"note\">{more} more are left out.</p>"),
        _ => Ok(()),
    }
}

/// Writes the stages of several boots.
fn several(out: &mut String, boots: &[&Boot]) -> fmt::Result {
    let heads = ["stage", "fastest", "slowest", "fewest exits", "most exits"];
    table(out, &format!("{} {}", boots.len(), several_of(boots)), &heads, |out| {
        for (name, column) in columns(boots) {
            let (least, most) = column.counts();
            writeln!(
                out,
                "<tr><th scope=\"row\">{}</th><td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>",
                Html(&short(&name)),
                time(column.min()),
                time(column.max()),
                grouped(least),
                grouped(most)
            )?;
        }
        Ok(())
    })
}

/// Writes the stages of a boot, each with a bar at the stage's place in the boot.
fn stages(out: &mut String, boot: &Boot) -> fmt::Result {
    let total = boot.duration_ns();
    let begin = boot.stages.first().map_or(0, |stage| stage.begin_ns);
    let since = |ts: i64| ts.saturating_sub(begin).max(0).unsigned_abs();
    out.push_str("<h2>Stages</h2>\n");
    out.push_str("<table class=\"wide\"><thead><tr>");
    for (head, class) in [("stage", "name"), ("from", ""), ("took", ""), ("share", "")] {
        write!(out, "<th scope=\"col\" class=\"{class}\">{head}</th>")?;
    }
    out.push_str("<td></td></tr></thead>\n<tbody>\n");
    for (at, stage) in boot.stages.iter().enumerate() {
        let (from, ns) = (since(stage.begin_ns), stage.duration_ns());
        let share = |ns: u64| ns as f64 * 100.0 / total.max(1) as f64;
        let class = if stage.is_unknown() { "p-unknown" } else { "p-on_cpu" };
        writeln!(
            out,
            "<tr><th scope=\"row\" class=\"name\"><a href=\"#s{at}\">{}</a></th><td>{}</td><td>{}</td><td class=\"share\">{}%</td>\
             <td class=\"bar\"><svg class=\"bar\" aria-hidden=\"true\"><rect class=\"{class}\" x=\"{:.2}%\" \
             width=\"{:.2}%\" height=\"100%\"/></svg></td></tr>",
            Html(&short(&stage.name)),
            time(from),
            time(ns),
            percent(ns, total),
            share(from),
            share(ns)
        )?;
    }
    for point in &boot.points {
        writeln!(
            out,
            "<tr><td class=\"name\">{}</td><td>{}</td><td></td><td></td><td></td></tr>",
            Html(&point.name),
            time(since(point.ts_ns))
        )?;
    }
    out.push_str("</tbody></table>\n");
    Ok(())
}

/// Writes what happened in a stage.
fn section(out: &mut String, at: usize, stage: &Stage) -> fmt::Result {
    let total = stage.duration_ns();
    writeln!(
        out,
        "<section aria-labelledby=\"s{at}\"><h2 id=\"s{at}\">{} <small>{}</small></h2>",
        Html(&short(&stage.name)),
        time(total)
    )?;
    threads(out, stage)?;
    out.push_str("<div class=\"beside\"><div>");
    if !stage.exits.is_empty() {
        table(out, "Exits of vCPUs", &["touched", "exits", "time"], |out| {
            for exit in stage.exits.iter().take(MAX_TABLE) {
                writeln!(
                    out,
                    "<tr><th scope=\"row\">{}</th><td>{}</td><td>{}</td></tr>",
                    Html(&short(&exit.what)),
                    grouped(exit.count),
                    time(exit.ns)
                )?;
            }
            Ok(())
        })?;
        left_out(out, stage.exits.len())?;
    }
    out.push_str("</div><div>");
    if !stage.path.is_empty() {
        table(out, "Critical path", &["who", "did", "time", "share"], |out| {
            for step in stage.path.iter().take(MAX_TABLE) {
                writeln!(
                    out,
                    "<tr><th scope=\"row\">{}</th><td class=\"name\">{}</td><td>{}</td><td class=\"share\">{}%</td></tr>",
                    Html(&short(&step.name)),
                    step.part.label(),
                    time(step.ns),
                    percent(step.ns, total)
                )?;
            }
            Ok(())
        })?;
        left_out(out, stage.path.len())?;
    }
    out.push_str("</div></div></section>\n");
    Ok(())
}

/// Writes a bar for each thread. The length of the bar is the duration of the stage. Below the bars, a table
/// lists what the threads waited for.
fn threads(out: &mut String, stage: &Stage) -> fmt::Result {
    if stage.threads.is_empty() {
        return Ok(());
    }
    let all = || stage.threads.iter().take(MAX_TABLE);
    out.push_str("<h3>Threads</h3>\n<ul class=\"legend\" aria-label=\"Colours\">");
    for part in Part::ALL.into_iter().filter(|part| all().any(|of| of.times.get(*part) > 0)) {
        colour(out, format_args!("p-{}", part.key()), part.label())?;
    }
    out.push_str("</ul>\n<div class=\"bars\">\n");
    for thread in all() {
        let vcpu = thread.vcpu.map_or(String::new(), |n| format!(" (vCPU {n})"));
        let name = short(&thread.to_string());
        write!(out, "<span>{}{vcpu}</span>", Html(&name))?;
        let segments = thread.times.iter().filter(|(_, ns)| *ns > 0);
        let segments = segments.map(|(part, ns)| Segment { part, name: part.label().into(), ns });
        stack(out, &Vec::from_iter(segments), stage.duration_ns())?;
        out.push('\n');
    }
    out.push_str("</div>\n");
    left_out(out, stage.threads.len())?;
    if all().all(|thread| thread.waits.is_empty()) {
        return Ok(());
    }
    out.push_str("<details><summary>What the threads waited for</summary>\n");
    table(out, "Waits", &["thread", "wait", "time"], |out| {
        for thread in all() {
            for wait in thread.waits.iter().take(MAX_ROWS) {
                writeln!(
                    out,
                    "<tr><th scope=\"row\">{}</th><td class=\"name\">{}</td><td>{}</td></tr>",
                    Html(&short(&thread.to_string())),
                    Html(&short(&wait.to_string())),
                    time(wait.ns)
                )?;
            }
        }
        Ok(())
    })?;
    out.push_str("</details>\n");
    Ok(())
}
