//! The comparison as a page, made like the page of `regions`.

use super::{Side, text};
use crate::output::grouped;
use crate::page::PageFile;
use crate::regions::html::{NO_SCRIPT, Segment, colour, document, scrolled, short, stack};
use anyhow::Result;
use hypertrace_compare::{Change, Comparison, Difference, Unit, Verdict, sentences, signed};
use hypertrace_export::escape::{Html, JsonInHtml};
use serde_json::{Value, json};
use std::fmt::{self, Write as _};

/// File of the page.
pub const PAGE: PageFile = PageFile {
    mark: "<!doctype html>\n<!-- hypertrace compare -->\n",
    option: "--html",
    prefix: ".compare-",
};

/// Maximum number of names that get a section.
const MAX_SECTIONS: usize = 12;
/// Maximum number of sentences, and maximum number of rows for regions inside, for exits and for causes.
const MAX_ROWS: usize = 20;

/// Makes the page.
///
/// # Errors
/// If the system has no random bytes.
pub fn page(sides: &[Side; 2], comparison: &Comparison, notes: &[String]) -> Result<String> {
    let has_verdict =
        |d: &&Difference| matches!(d.typical.verdict, Verdict::Faster | Verdict::Slower);
    let (changed, same): (Vec<_>, Vec<_>) = comparison.differences.iter().partition(has_verdict);
    let shown: Vec<&Difference> = changed.into_iter().chain(same).take(MAX_SECTIONS).collect();
    let groups: Vec<Value> = shown.iter().map(|difference| curves(difference)).collect();
    let data = JsonInHtml(&json!({ "groups": groups }).to_string()).to_string();
    document(PAGE.mark, "Comparison of two builds", &data, |out| {
        out.push_str("<header><h1>Comparison of two builds</h1>\n");
        for line in text::sides(sides) {
            writeln!(out, "<p class=\"note\">{}</p>", Html(&line))?;
        }
        out.push_str("</header>\n<main>\n<ul>\n");
        for sentence in sentences(comparison).iter().take(MAX_ROWS) {
            writeln!(out, "<li>{}</li>", Html(sentence))?;
        }
        out.push_str("</ul>\n");
        for note in notes {
            writeln!(out, "<p class=\"warning\">{}</p>", Html(note))?;
        }
        for (letter, names) in ["A", "B"].into_iter().zip(&comparison.only) {
            if !names.is_empty() {
                let names: Vec<String> = names.iter().take(MAX_ROWS).map(|n| short(n)).collect();
                writeln!(
                    out,
                    "<p class=\"note\">only in {letter}: {}</p>",
                    Html(&names.join(", "))
                )?;
            }
        }
        if comparison.differences.len() > shown.len() {
            let all = grouped(comparison.differences.len() as u64);
            writeln!(
                out,
                "<p class=\"note\">{all} names, of which {} are below. Choose others with --name.</p>",
                shown.len()
            )?;
        }
        for (index, difference) in shown.iter().enumerate() {
            section(out, index, difference)?;
        }
        out.push_str("</main>\n");
        Ok(())
    })
}

/// Returns the curve of each side: for each time, the share of the side's regions that took at most this
/// time.
fn curves(difference: &Difference) -> Value {
    // The curves begin at the first percentile, because a single minimum says little. A time of 0 becomes 0.5
    // ns, because a logarithmic axis has no 0.
    let sides = difference
        .percentiles_ns
        .each_ref()
        .map(|all| all.iter().skip(1).map(|ns| ns.max(0.5)).collect::<Vec<f64>>());
    let mut x = sides.concat();
    x.sort_by(f64::total_cmp);
    x.dedup();
    let share = |side: &Vec<f64>| {
        let below = |at: &f64| side.partition_point(|ns| ns <= at);
        x.iter().map(|at| below(at) as f64 / 100.0).collect::<Vec<f64>>()
    };
    let ys = sides.each_ref().map(share);
    json!({ "name": short(&difference.name), "x": x, "ys": ys, "sides": ["A", "B"] })
}

fn section(out: &mut String, index: usize, difference: &Difference) -> fmt::Result {
    let change = &difference.typical.change;
    let unit = Unit::of_change(change.a_ns.max(change.b_ns), change.half_width_ns);
    let verdict = match difference.typical.verdict {
        Verdict::Faster => "faster",
        Verdict::Slower => "slower",
        Verdict::NoDifferenceSeen => "no difference seen",
        Verdict::NoVerdict => "no verdict",
    };
    let [a, b] = difference.regions.map(grouped);
    let [runs_a, runs_b] = difference.runs;
    let name = short(&difference.name);
    writeln!(
        out,
        "<section aria-labelledby=\"g{index}\"><h2 id=\"g{index}\">{} <small>{verdict}</small></h2>\n\
         <p class=\"note\">{a} regions of {runs_a} runs in A, {b} of {runs_b} in B. Times are in {}.</p>",
        Html(&name),
        unit.name
    )?;
    out.push_str("<div class=\"columns\"><div><h3>Share of the regions by duration</h3>");
    sides_legend(out)?;
    writeln!(out, "<div data-curve=\"{index}\">{NO_SCRIPT}</div></div><div>")?;
    out.push_str("<h3>Trimmed mean of each run</h3>\n");
    dots(out, unit, difference)?;
    out.push_str("<h3>Trimmed mean by part</h3>\n");
    bars(out, unit, difference)?;
    out.push_str("</div></div>\n<h3>Differences</h3>\n");
    table(out, unit, difference)?;
    out.push_str("</section>\n");
    Ok(())
}

fn sides_legend(out: &mut String) -> fmt::Result {
    out.push_str("<ul class=\"legend\" aria-label=\"Colours of sides\">");
    colour(out, "s0", "A")?;
    colour(out, "s1", "B")?;
    out.push_str("</ul>\n");
    Ok(())
}

/// Writes a point for each run, on one scale for both sides.
fn dots(out: &mut String, unit: Unit, difference: &Difference) -> fmt::Result {
    let all = difference.points_ns.iter().flatten().copied();
    let (least, most) = all.fold((f64::MAX, 0.0_f64), |(l, m), ns| (l.min(ns), m.max(ns)));
    let span = (most - least).max(f64::MIN_POSITIVE);
    out.push_str("<div class=\"bars\">\n");
    for (side, (letter, points)) in ["A", "B"].into_iter().zip(&difference.points_ns).enumerate() {
        let texts: Vec<String> = points.iter().map(|ns| unit.plain(*ns)).collect();
        write!(
            out,
            "<span>{letter}</span><svg class=\"bar dots\" role=\"img\" aria-label=\"{letter}: {} {}\">",
            texts.join(", "),
            unit.name
        )?;
        for (ns, text) in points.iter().zip(&texts) {
            let x = 2.0 + (ns - least) / span * 96.0;
            write!(
                out,
                "<circle class=\"s{side}\" cx=\"{x:.2}%\" cy=\"50%\" r=\"4\"><title>{text} {}</title>\
                 </circle>",
                unit.name
            )?;
        }
        out.push_str("</svg>\n");
    }
    writeln!(
        out,
        "</div>\n<p class=\"note\">From {} to {} {}.</p>",
        unit.plain(least),
        unit.plain(most),
        unit.name
    )
}

/// Writes a bar of the parts of each side.
fn bars(out: &mut String, unit: Unit, difference: &Difference) -> fmt::Result {
    let whole = difference.typical.change.a_ns.max(difference.typical.change.b_ns);
    let known = difference.parts.iter().filter(|(_, c)| c.a_ns + c.b_ns > 0.0);
    let known = Vec::from_iter(known);
    out.push_str("<ul class=\"legend\" aria-label=\"Colours\">");
    for (part, _) in &known {
        colour(out, format_args!("p-{}", part.key()), part.label())?;
    }
    out.push_str("</ul>\n<div class=\"bars\">\n");
    for letter in ["A", "B"] {
        let of = |change: &Change| if letter == "A" { change.a_ns } else { change.b_ns };
        let total = unit.plain(of(&difference.typical.change));
        write!(out, "<span>{letter} <b>{total}</b></span>")?;
        let segments = known.iter().map(|(part, change)| Segment {
            part: *part,
            name: part.label().to_owned(),
            ns: of(change).round() as u64,
        });
        stack(out, &segments.filter(|s| s.ns > 0).collect::<Vec<_>>(), whole.round() as u64)?;
        out.push('\n');
    }
    out.push_str("</div>\n");
    Ok(())
}

/// Writes the same rows as the text, and draws the interval of each difference.
fn table(out: &mut String, unit: Unit, difference: &Difference) -> fmt::Result {
    let typical = &difference.typical.change;
    let changes: Vec<f64> = difference.parts.iter().map(|(_, c)| c.difference_ns).collect();
    let mut rows = vec![(String::from("trimmed mean"), false, *typical)];
    for ((part, change), rounded) in difference.parts.iter().zip(unit.rounded(&changes)) {
        if change.a_ns + change.b_ns > 0.0 {
            let change = Change { difference_ns: rounded, ..*change };
            rows.push((part.label().to_owned(), true, change));
        }
    }
    let named =
        [("in ", &difference.children), ("", &text::exits(difference)), ("", &difference.causes)];
    for (prefix, all) in named {
        for (at, (name, change)) in all.iter().take(MAX_ROWS).enumerate() {
            // The first row has no prefix. Among the rows of inner regions, the first row is `self`.
            let prefix = if at == 0 { "" } else { prefix };
            rows.push((format!("{prefix}{}", short(name)), true, *change));
        }
    }
    let end = |change: &Change| change.difference_ns.abs() + change.half_width_ns.unwrap_or(0.0);
    let most = rows.iter().map(|(.., change)| end(change)).fold(f64::MIN_POSITIVE, f64::max);
    scrolled(out, "Differences", |out| {
        out.push_str(
            "<table class=\"wide\"><thead><tr><th scope=\"col\">mean of runs</th><th scope=\"col\">A</th>\
             <th scope=\"col\">B</th><th scope=\"col\">B &#8722; A</th><th scope=\"col\">&#177;</th>\
             <th scope=\"col\"></th><td></td></tr></thead>\n<tbody>\n",
        );
        for (name, is_inside, change) in &rows {
            cells(out, name, *is_inside, unit, change)?;
            interval(out, change, most)?;
        }
        for (name, change) in [("mean of all", &difference.all), ("p99", &difference.p99)] {
            cells(out, name, false, unit, change)?;
            out.push_str("<td></td></tr>\n");
        }
        out.push_str("</tbody></table>\n");
        Ok(())
    })
}

fn cells(
    out: &mut String,
    name: &str,
    is_inside: bool,
    unit: Unit,
    change: &Change,
) -> fmt::Result {
    let class = if is_inside { " class=\"sub\"" } else { "" };
    let half = change.half_width_ns.map_or(String::new(), |ns| unit.plain(ns));
    let percent = change.relative().map_or(String::new(), |part| signed(part * 100.0, 1) + " %");
    write!(
        out,
        "<tr><th scope=\"row\"{class}>{}</th><td>{}</td><td>{}</td><td>{}</td><td>{half}</td>\
         <td class=\"share\">{percent}</td>",
        Html(name),
        unit.plain(change.a_ns),
        unit.plain(change.b_ns),
        unit.signed(change.difference_ns)
    )
}

/// Writes a difference and its interval, as a point and a line. 0 is in the middle.
fn interval(out: &mut String, change: &Change, most: f64) -> fmt::Result {
    let at = |ns: f64| 50.0 + 48.0 * (ns / most).clamp(-1.0, 1.0);
    let half = change.half_width_ns.unwrap_or(0.0);
    let (from, to) = (at(change.difference_ns - half), at(change.difference_ns + half));
    writeln!(
        out,
        "<td class=\"bar\"><svg class=\"bar\" aria-hidden=\"true\">\
         <line class=\"zero\" x1=\"50%\" x2=\"50%\" y1=\"0\" y2=\"100%\"/>\
         <line class=\"span\" x1=\"{from:.2}%\" x2=\"{to:.2}%\" y1=\"50%\" y2=\"50%\"/>\
         <circle class=\"s1\" cx=\"{:.2}%\" cy=\"50%\" r=\"3.5\"/></svg></td></tr>",
        at(change.difference_ns)
    )
}
