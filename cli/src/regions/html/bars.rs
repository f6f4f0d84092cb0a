//! Stacked bars of parts, as SVG without a script. The colours of the bars are in the page's style.

use super::super::rows::Shown;
use super::super::text::time;
use super::charts::WHO;
use hypertrace_export::escape::Html;
use hypertrace_timeline::regions::{Group, Part, Times};
use std::fmt::{self, Write as _};

/// Parts that are drawn with a pattern. The second value is the SVG path of the pattern in a tile of 8 x 8.
const PATTERNS: [(Part, &str); 3] = [
    (Part::Runnable, "M-2 10L10 -2M-2 2L2 -2M6 10L10 6"),
    (Part::OffCpu, "M-2 -2L10 10M6 -2L10 2M-2 6L2 10"),
    (Part::Unknown, "M0 4H8"),
];

/// Segment of a bar.
#[derive(Debug)]
pub struct Segment {
    /// Part that decides the colour.
    pub part: Part,
    /// Name of the segment.
    pub name: String,
    /// Length of the segment in nanoseconds.
    pub ns: u64,
}

/// Writes the patterns that bars use.
pub fn patterns(out: &mut String) -> fmt::Result {
    out.push_str("<svg class=\"defs\" aria-hidden=\"true\"><defs>");
    for (part, path) in PATTERNS {
        let part = part.key();
        write!(
            out,
            "<pattern id=\"p-{part}\" width=\"8\" height=\"8\" patternUnits=\"userSpaceOnUse\">\
             <rect class=\"c-{part}\" width=\"8\" height=\"8\"/><path class=\"hatch\" d=\"{path}\"/>\
             </pattern>"
        )?;
    }
    out.push_str("</defs></svg>\n");
    Ok(())
}

/// Writes the names of the shown parts, with their colours.
pub fn legend(out: &mut String, group: &Group, is_shown: impl Fn(Part) -> bool) -> fmt::Result {
    out.push_str("<ul class=\"legend\" aria-label=\"Colours\">");
    for part in Part::ALL.into_iter().filter(|part| is_shown(*part)) {
        colour(out, format_args!("p-{}", part.key()), group.label(part))?;
    }
    out.push_str("</ul>\n");
    Ok(())
}

/// Writes who had the CPUs of lanes: the names and their colours.
pub fn owner_legend(out: &mut String, are_shown: &[bool; WHO.len()]) -> fmt::Result {
    if !are_shown.contains(&true) {
        return Ok(());
    }
    out.push_str("<ul class=\"legend\" aria-label=\"Colours of CPUs\"><li>Who had the CPU:</li>");
    for (who, name) in WHO.into_iter().enumerate().filter(|(who, _)| are_shown[*who]) {
        colour(out, format_args!("w{who}"), name)?;
    }
    out.push_str("</ul>\n");
    Ok(())
}

/// Writes a colour and its name.
pub fn colour(out: &mut String, class: impl fmt::Display, name: &str) -> fmt::Result {
    write!(
        out,
        "<li><svg aria-hidden=\"true\"><rect class=\"{class}\" width=\"100%\" height=\"100%\"/>\
         </svg>{name}</li>"
    )
}

/// Writes a bar. The length of the bar is the share of `times` in `whole`. If the reasons of exits are known,
/// the kernel's part is divided by reason.
pub fn bar(
    out: &mut String,
    shown: &Shown<'_>,
    group: &Group,
    times: &Times,
    exits: &[(u8, u64)],
    whole: u64,
) -> fmt::Result {
    stack(out, &segments(shown, group, times, exits), whole)
}

/// Writes a bar of segments. The length of each segment is the segment's share in `whole`.
pub fn stack(out: &mut String, segments: &[Segment], whole: u64) -> fmt::Result {
    let texts = segments.iter().map(|s| format!("{} {}", s.name, time(s.ns)));
    let label = texts.collect::<Vec<_>>().join(", ");
    write!(out, "<svg class=\"bar\" role=\"img\" aria-label=\"{}\">", Html(&label))?;
    let percent = |ns: u64| ns as f64 * 100.0 / whole.max(1) as f64;
    let mut at = 0;
    let mut before = None;
    for Segment { part, name, ns } in segments {
        let (x, width) = (percent(at), percent(*ns));
        write!(
            out,
            "<rect class=\"p-{}\" x=\"{x:.2}%\" width=\"{width:.2}%\" height=\"100%\"><title>{} {}\
             </title></rect>",
            part.key(),
            Html(name),
            time(*ns),
        )?;
        if before == Some(*part) {
            // A gap divides two reasons of the same part.
            write!(out, "<rect class=\"gap\" x=\"{x:.2}%\" width=\"1\" height=\"100%\"/>")?;
        }
        before = Some(*part);
        at += ns;
    }
    out.push_str("</svg>");
    Ok(())
}

fn segments(shown: &Shown<'_>, group: &Group, times: &Times, exits: &[(u8, u64)]) -> Vec<Segment> {
    let mut segments = Vec::new();
    for (part, mut left) in times.iter() {
        let name = group.label(part);
        if part == Part::Kernel {
            for (reason, ns) in exits {
                let ns = left.min(*ns);
                left -= ns;
                let name = format!("{name}, {}", super::short(shown.regions.reason(*reason)));
                segments.push(Segment { part, name, ns });
            }
        }
        segments.push(Segment { part, name: name.to_owned(), ns: left });
    }
    segments.retain(|segment| segment.ns > 0);
    segments
}

#[cfg(test)]
mod tests {
    use super::super::STYLE;
    use super::*;

    #[test]
    fn each_part_has_a_colour() {
        for part in Part::ALL.map(Part::key) {
            let has = |end: &str| STYLE.contains(&format!(".p-{part}{end}"));
            assert!((has(" {") || has(", ")) && STYLE.contains(&format!("--{part}: ")), "{part}");
        }
    }
}
