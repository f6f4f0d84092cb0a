//! Reads the numbers from which KVM computes the TSC of each vCPU: an offset, and also a ratio if the CPU
//! scales the TSC.
//!
//! KVM shows the offset and the ratio in debugfs only as long as the VM exists, so the recorder reads both
//! numbers repeatedly. Between two readings, the event `kvm:kvm_write_tsc_offset` shows each change of an
//! offset.

use crate::pace::Pace;
use crate::tracefs::Dir;
use hypertrace_abi::clock::ticks;
use hypertrace_format::trace_dat::{MAX_TSCS, MAX_TSCS_OF_VM};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Minimum time between two readings.
const PERIOD: Duration = Duration::from_millis(500);

/// Maximum number of entries that a reading lists in a folder, which is the folder of KVM or of a VM.
const MAX_ENTRIES: usize = 4096;

/// The TSC of a vCPU: guest TSC = (host TSC × ratio >> bits) + offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Tsc {
    offset: i64,
    ratio: u64,
    bits: u32,
}

impl Tsc {
    /// Reads the files of a vCPU. Returns `None` if the VM has ended meanwhile, or if KVM shows no offset.
    fn of(vcpu: &Dir) -> Option<Tsc> {
        let text = |name| vcpu.text(name).ok();
        let offset = text("tsc-offset")?.trim().parse().ok()?;
        // If the CPU cannot scale the TSC, these files do not exist.
        let (ratio, bits) = match text("tsc-scaling-ratio") {
            None => (1, 0),
            Some(ratio) => {
                let bits = text("tsc-scaling-ratio-frac-bits")?;
                (ratio.trim().parse().ok()?, bits.trim().parse().ok()?)
            }
        };
        Some(Tsc { offset, ratio, bits })
    }
}

/// Range of the host's counter in which readings found this TSC in a VM: from the ticks after the first such
/// reading to the ticks before the last such reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Seen {
    from: u64,
    until: u64,
}

/// The TSCs of all VMs, as the readings have found them.
#[derive(Debug)]
pub(crate) struct Tscs {
    /// Folder of KVM in debugfs. `None` if this process may not read the folder, or if the host has no such
    /// folder.
    kvm: Option<Dir>,
    /// Processes whose VMs are noted. An empty list stands for all processes.
    only: Vec<u32>,
    pace: Pace,
    /// Noted TSCs by VM. `None` for a VM that has more TSCs than can be noted.
    seen: BTreeMap<String, Option<BTreeMap<Tsc, Seen>>>,
    /// Number of noted TSCs, plus one for each VM without notes.
    noted: usize,
    /// True if there was no room to note all TSCs. In this case, [`Tscs::finish`] returns no notes, because
    /// incomplete notes prove nothing.
    has_more: bool,
}

impl Default for Tscs {
    fn default() -> Tscs {
        Tscs::of(None, &[])
    }
}

impl Tscs {
    /// Returns a reader of KVM's folder in debugfs. If `only` is not empty, the reader notes only the VMs of
    /// the processes in `only`.
    pub fn of(kvm: Option<Dir>, only: &[u32]) -> Tscs {
        let (pace, seen) = (Pace::new(PERIOD), BTreeMap::new());
        Tscs { kvm, only: only.to_vec(), pace, seen, noted: 0, has_more: false }
    }

    /// Returns the time until the next reading, or `None` if there is nothing to read.
    pub fn period(&self) -> Option<Duration> {
        self.kvm.as_ref().map(|_| self.pace.pause())
    }

    /// Reads the folder, unless the last reading was a moment ago.
    pub fn read(&mut self) {
        if self.pace.is_due() {
            self.read_now();
        }
    }

    fn read_now(&mut self) {
        let Some(kvm) = self.kvm.clone() else { return };
        let begun = Instant::now();
        // The folder's other entries are counters of all VMs together.
        let is_wanted = |pid: u32| self.only.is_empty() || self.only.contains(&pid);
        let is_vm = |name: &str| {
            let number = |text: &str| text.parse::<u32>().ok();
            let parts = name.split_once('-');
            parts
                .is_some_and(|(pid, fd)| number(pid).is_some_and(is_wanted) && number(fd).is_some())
        };
        let vms = names(&kvm);
        self.has_more |= vms.len() == MAX_ENTRIES;
        let vms = Vec::from_iter(vms.into_iter().filter(|name| is_vm(name)));
        for name in vms {
            let Ok(vm) = kvm.dir(&name) else { continue };
            let vcpus = names(&vm);
            self.has_more |= vcpus.len() == MAX_ENTRIES;
            for vcpu in vcpus
                .iter()
                .filter(|vcpu| vcpu.strip_prefix("vcpu").is_some_and(|n| n.parse::<u32>().is_ok()))
            {
                let before = ticks();
                let tsc = vm.dir(vcpu).ok().and_then(|vcpu| Tsc::of(&vcpu));
                if let Some(tsc) = tsc {
                    self.add(&name, tsc, (before, ticks()));
                }
            }
        }
        self.pace.ended(begun);
    }

    /// Notes a TSC. The reading of this TSC began at the ticks `before` and ended at the ticks `after`.
    fn add(&mut self, vm: &str, tsc: Tsc, (before, after): (u64, u64)) {
        if self.has_more {
            return;
        }
        let of_vm = self.seen.entry(vm.to_owned()).or_insert_with(|| Some(BTreeMap::new()));
        let Some(noted) = of_vm else { return };
        if let Some(seen) = noted.get_mut(&tsc) {
            seen.until = seen.until.max(before);
        } else if noted.len() == MAX_TSCS_OF_VM {
            // A guest may write its TSC all the time. Without notes on this VM, the notes have room for the
            // TSCs of other VMs.
            self.noted -= noted.len() - 1;
            *of_vm = None;
        } else if self.noted < MAX_TSCS {
            noted.insert(tsc, Seen { from: after, until: after });
            self.noted += 1;
        } else {
            self.has_more = true;
        }
    }

    /// Reads the folder for the last time. Returns `PID-FD:OFFSET:RATIO:BITS:FROM:UNTIL` for each TSC of a
    /// VM, separated by commas. If there was no room to note all TSCs, returns an empty text.
    pub fn finish(&mut self) -> String {
        self.read_now();
        if self.has_more {
            return String::new();
        }
        let of_vms = self.seen.iter().filter_map(|(vm, of)| Some((vm, of.as_ref()?)));
        let all = of_vms.flat_map(|(vm, of)| of.iter().map(move |seen| (vm, seen)));
        let all = all.map(|(vm, (Tsc { offset, ratio, bits }, Seen { from, until }))| {
            format!("{vm}:{offset}:{ratio}:{bits}:{from}:{until}")
        });
        all.collect::<Vec<_>>().join(",")
    }
}

fn names(folder: &Dir) -> Vec<String> {
    folder.names(MAX_ENTRIES).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::path::Path;

    fn write(vcpu: &Path, offset: &str, ratio: Option<(&str, &str)>) {
        fs::create_dir_all(vcpu).unwrap();
        fs::write(vcpu.join("tsc-offset"), offset).unwrap();
        if let Some((ratio, bits)) = ratio {
            fs::write(vcpu.join("tsc-scaling-ratio"), ratio).unwrap();
            fs::write(vcpu.join("tsc-scaling-ratio-frac-bits"), bits).unwrap();
        }
    }

    #[test]
    fn the_tscs_of_all_vms_are_noted_with_the_times_at_which_they_were_seen() {
        let kvm = tempfile::tempdir().unwrap();
        let kvm = kvm.path();
        write(&kvm.join("31-9/vcpu0"), "-4000\n", None);
        write(&kvm.join("31-9/vcpu1"), "-4000\n", None);
        write(&kvm.join("77-12/vcpu0"), "18\n", Some(("4294967297\n", "32\n")));
        // The reader must skip these entries: a folder that is no vCPU, a folder that is no VM, and a vCPU
        // without files.
        write(&kvm.join("31-9/other"), "1", None);
        write(&kvm.join("nested/vcpu0"), "2", None);
        fs::create_dir_all(kvm.join("78-1/vcpu0")).unwrap();
        let mut tscs = Tscs::of(Some(Dir::open_path(kvm).unwrap()), &[]);
        let start = ticks();
        tscs.read();
        write(&kvm.join("31-9/vcpu1"), "-9\n", None);
        // `read` does nothing here, because the last reading was a moment ago.
        tscs.read();
        let middle = ticks();
        let said = tscs.finish();
        let end = ticks();

        let found: Vec<Vec<&str>> = said.split(',').map(|of| of.split(':').collect()).collect();
        let named = found.iter().map(|of| of[..4].join(":"));
        assert_eq!(
            Vec::from_iter(named),
            ["31-9:-4000:1:0", "31-9:-9:1:0", "77-12:18:4294967297:32"]
        );
        let times = |at: usize| [4, 5].map(|n: usize| found[at][n].parse::<u64>().unwrap());
        let [first, changed, other] = [0, 1, 2].map(times);
        for [from, until] in [first, other] {
            assert!(start <= from && from <= middle && middle <= until && until <= end, "{said}");
        }
        // If only one reading found a TSC, its `FROM` and its `UNTIL` are equal.
        assert!(middle <= changed[0] && changed[0] == changed[1] && changed[1] <= end, "{said}");

        let said = Tscs::of(Some(Dir::open_path(kvm).unwrap()), &[77, 78]).finish();
        assert!(said.starts_with("77-12:") && !said.contains(','), "{said}");
    }

    #[test]
    fn more_than_can_be_noted_says_nothing() {
        let mut tscs = Tscs::default();
        let tsc = |offset| Tsc { offset, ratio: 1, bits: 0 };
        let vms = MAX_TSCS / MAX_TSCS_OF_VM;
        for vm in 0..vms {
            let name = format!("{vm}-1");
            (0..MAX_TSCS_OF_VM as i64).for_each(|n| tscs.add(&name, tsc(n), (1, 2)));
        }
        assert_eq!(tscs.finish().split(',').count(), MAX_TSCS);
        tscs.add("1-9", tsc(-1), (1, 2));
        assert_eq!(tscs.finish(), "");
    }

    #[test]
    fn a_vm_with_more_than_can_be_noted_takes_none_from_others() {
        let mut tscs = Tscs::default();
        let tsc = |offset| Tsc { offset, ratio: 1, bits: 0 };
        tscs.add("31-1", tsc(-4), (1, 2));
        (0..2 * MAX_TSCS as i64).for_each(|n| tscs.add("1-1", tsc(n), (1, 2)));
        assert_eq!(tscs.finish(), "31-1:-4:1:0:2:2");
    }

    #[test]
    fn without_kvm_there_is_nothing_to_see() {
        let mut tscs = Tscs::of(None, &[]);
        assert_eq!((tscs.period(), tscs.finish()), (None, String::new()));
    }
}
