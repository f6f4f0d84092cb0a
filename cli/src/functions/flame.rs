//! Flame graphs, each as one file for a browser.

use super::name;
use crate::output::{Faults, grouped, say};
use crate::page::PageFile;
use anyhow::{Context, Result, bail};
use hypertrace_export::escape::Escaped;
use hypertrace_export::uftrace::Counts;
use hypertrace_functions::read::{Flame, Frame, Trace};
use inferno::flamegraph::{Options, TextTruncateDirection, from_lines};
use std::collections::HashMap;
use std::fmt::Write as _;
use std::path::Path;

/// File of the flame graph.
pub const PAGE: PageFile = PageFile {
    mark: "<?xml version=\"1.0\" standalone=\"no\"?>\n<!-- hypertrace functions -->\n",
    option: "--flame",
    prefix: ".flame-",
};

/// Maximum number of characters of a name. The rest is left out.
const MAX_CHARACTERS: usize = 200;
/// Maximum size of all stacks as text, in bytes. 20,000 stacks of ordinary depth have 10 MB.
const MAX_BYTES: usize = 256 << 20;

/// Writes the flame graph of a trace. `made` counts the calls that are not in the trace.
pub fn write(
    path: &Path,
    trace: &Trace,
    mut flame: Flame,
    made: &Counts,
    mut faults: Faults,
) -> Result<()> {
    flame.damage.drain(..).for_each(|why| faults.add(why));
    if !made.left_out().is_empty() {
        say(format_args!("left out: {}", made.left_out()));
    }
    if flame.beyond > 0 {
        let beyond = grouped(flame.beyond);
        say(format_args!(
            "{beyond} times there were too many stacks: the time counts for the caller"
        ));
    }
    let (lines, left_out) = lines(trace, &flame);
    if left_out > 0 {
        say(format_args!("{} stacks are left out: they are too deep", grouped(left_out)));
    }
    if lines.is_empty() {
        faults.end()?;
        bail!("no function took time: there is nothing to show");
    }
    PAGE.save(path, &svg(&lines, trace.path())?)?;
    say(format_args!("wrote {}: open it in a browser", path.display()));
    faults.end()
}

/// Returns a line for each stack, with its frames separated by semicolons and its time, and the number of
/// stacks left out.
fn lines(trace: &Trace, flame: &Flame) -> (Vec<String>, u64) {
    let (mut lines, mut bytes, mut left_out) = (Vec::new(), 0, 0);
    // Names are made once for each function, because a function is in many stacks.
    let mut names = HashMap::new();
    for (frames, time) in flame.stacks() {
        let mut line = String::new();
        for frame in frames {
            let name = names.entry(frame).or_insert_with(|| text(trace, frame));
            line.push_str(if line.is_empty() { "" } else { ";" });
            line.push_str(name);
        }
        let _ = write!(line, " {time}");
        if bytes + line.len() > MAX_BYTES {
            left_out += 1;
            continue;
        }
        bytes += line.len();
        lines.push(line);
    }
    (lines, left_out)
}

/// Returns a frame's name in a form that inferno reads as one name.
fn text(trace: &Trace, frame: Frame) -> String {
    let name = match frame {
        Frame::Function(address) => name(trace, address),
        Frame::Track(tid) => {
            let task = trace.tasks().iter().find(|task| task.tid == tid);
            let name = task.map(|task| task.name.clone()).filter(|name| !name.is_empty());
            name.unwrap_or_else(|| tid.to_string())
        }
    };
    let name: String = name.chars().take(MAX_CHARACTERS).collect();
    // inferno would take a number after a blank as the time of another trace.
    Escaped(name.as_bytes()).to_string().replace(';', ":").replace(' ', "\u{a0}")
}

fn svg(lines: &[String], dir: &Path) -> Result<String> {
    let mut options = Options::default();
    options.title = format!("Functions of {}", Escaped(dir.as_os_str().as_encoded_bytes()));
    // Long names lose their ends, because the beginning of a name says more.
    options.text_truncate_direction = TextTruncateDirection::Right;
    options.count_name = "ns".into();
    options.name_type = "Function:".into();
    // The same names have the same colours in each graph.
    options.deterministic = true;
    let mut svg = Vec::new();
    from_lines(&mut options, lines.iter().map(String::as_str), &mut svg)
        .context("cannot make the flame graph")?;
    let svg = String::from_utf8(svg).context("the flame graph is no text")?;
    // The XML declaration before `<svg` is left out, because `PAGE.mark` begins with the same declaration.
    let start = svg.find("<svg").context("the flame graph has no beginning")?;
    Ok(format!("{}{}", PAGE.mark, &svg[start..]))
}
