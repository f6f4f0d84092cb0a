//! Rows that need the kernel's tracing, in a private instance of tracefs.

use super::child::{Child, TURNS};
use super::row::{Context, Floor, Row, row};
use super::serve::probed;
use anyhow::{Context as _, Result, ensure};
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

const MARKER: Floor = ("trace_marker_floor", marker);

pub const ROWS: &[Row] = &[
    row("trace_marker_floor", marker, "`write(2)` of an event's text, 29 bytes, to `trace_marker`")
        .note("Of a private instance of tracefs."),
    row(
        "trace_ftrace",
        ftrace,
        "an event of the ftrace backend, which writes the bytes of `trace_marker_floor`",
    )
    .over(MARKER, "<= 1.15 x trace_marker_floor"),
    row(
        "uprobe",
        uprobe,
        "a call of a function with a uprobe, by `uprobe_events`, into an instance of \
         tracefs",
    )
    .note(
        "The function begins with a `push`, which the kernel emulates: the best case. \
         Each call must be in the instance's buffer.",
    ),
];

/// Script that mounts tracefs privately and makes an instance with the given name. When the script's stdin
/// ends, the script removes the mount and the instance. The stdin also ends if the benchmark is killed.
const HOLD: &str = r#"
mount -t tracefs none /mnt || exit
cd /mnt && mkdir "instances/$1" || exit
echo ready
cat > /dev/null
for try in 1 2 3 4 5 6 7 8 9 10; do
    rmdir "instances/$1" && break
    sleep 0.1
done
if grep -q "$1/" uprobe_events; then
    echo "-:$1/probed" >> uprobe_events
fi
"#;

/// Instance of tracefs, and a child that writes to it.
struct Instance {
    // The child is dropped first, because its open files keep the instance.
    child: Child,
    dir: PathBuf,
    name: String,
    probed: bool,
    holder: Child,
}

impl Instance {
    fn new() -> Result<Instance> {
        // The name of a group of probes must be an identifier.
        let name = format!("hypertrace_bench_{}", std::process::id());
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation", "private", "sh", "-c", HOLD, "sh", &name]);
        let holder = Child::start(&mut command).context("no instance of tracefs")?;
        let dir = format!("/proc/{}/root/mnt/instances/{name}", holder.id()).into();
        Ok(Instance { child: Child::of_this_program()?, dir, name, probed: false, holder })
    }

    /// Asks the child to measure a part in this instance.
    fn ns(&mut self, part: &str) -> Result<f64> {
        self.child.ns(&format!("{part} {}", self.dir.display()))
    }

    /// Puts a uprobe on [`probed`], in all processes of this program.
    fn probe(&mut self) -> Result<()> {
        if self.probed {
            return Ok(());
        }
        let (name, program) = (&self.name, std::env::current_exe()?);
        let offset = file_offset(probed as fn(u64) as usize)
            .context("cannot find the probed function in this program's file")?;
        let path = format!("/proc/{}/root/mnt/uprobe_events", self.holder.id());
        OpenOptions::new()
            .append(true)
            .open(&path)
            .and_then(|mut file| {
                let probe = format!("p:{name}/probed {}:{offset:#x}\n", program.display());
                file.write_all(probe.as_bytes())
            })
            .context("the kernel makes no uprobe")?;
        let enable = self.dir.join("events").join(name).join("probed/enable");
        fs::write(&enable, "1").with_context(|| format!("write {}", enable.display()))?;
        self.probed = true;
        Ok(())
    }

    /// Counts the events in the instance's buffers, including overwritten events.
    fn events(&self) -> Result<u64> {
        let mut events = 0;
        for cpu in fs::read_dir(self.dir.join("per_cpu"))? {
            let stats = fs::read_to_string(cpu?.path().join("stats"))?;
            let lines = stats.lines().filter_map(|line| line.split_once(": "));
            let counts = lines.filter(|(name, _)| ["entries", "overrun"].contains(name));
            events += counts.filter_map(|(_, n)| n.parse::<u64>().ok()).sum::<u64>();
        }
        Ok(events)
    }
}

/// Returns the file offset of an address in this program.
fn file_offset(address: usize) -> Option<usize> {
    let maps = fs::read_to_string(Path::new("/proc/self/maps")).ok()?;
    maps.lines().find_map(|line| {
        let mut fields = line.split_whitespace();
        let (start, end) = fields.next()?.split_once('-')?;
        let number = |text| usize::from_str_radix(text, 16).ok();
        let (start, end, offset) = (number(start)?, number(end)?, number(fields.nth(1)?)?);
        (start..end).contains(&address).then(|| address - start + offset)
    })
}

/// Measures a bare write of an event's text.
pub fn marker(context: &mut Context) -> Result<f64> {
    context.resource(Instance::new)?.ns("marker")
}

/// Measures the event with the ftrace backend.
pub fn ftrace(context: &mut Context) -> Result<f64> {
    context.resource(Instance::new)?.ns("ftrace")
}

/// Measures a call of a function with a uprobe.
pub fn uprobe(context: &mut Context) -> Result<f64> {
    let instance = context.resource(Instance::new)?;
    instance.probe()?;
    fs::write(instance.dir.join("trace"), "")?;
    let ns = instance.ns("uprobe")?;
    let events = instance.events()?;
    ensure!(events == TURNS, "{events} of {TURNS} calls are in the trace");
    Ok(ns)
}
