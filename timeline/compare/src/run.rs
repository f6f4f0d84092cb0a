// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The data that a comparison keeps of a run: sums over the regions of the run's session, by name.

use crate::compact::{Named, Percentiles};
use hypertrace_format::origin::Origin;
use hypertrace_timeline::Session;
use hypertrace_timeline::regions::{self, Cause, PARTS, Part, Regions, Sums, Unknown};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Version of [`Run`] in a file.
pub const VERSION: u32 = 4;
/// Oldest version of a file that can be read: see [`Run::upgraded`].
pub const OLDEST_VERSION: u32 = 2;
/// Name of the file that holds a run whose session is not kept.
pub const FILE: &str = "run.json";
/// Maximum number of names of regions.
pub const MAX_NAMES: usize = 10_000;

/// Quantiles of the durations in a run. The *typical* regions of the run lie between these two quantiles.
pub const TYPICAL: (f64, f64) = (0.05, 0.75);
/// Quantile of the durations in a run. The slowest regions of the run lie above this quantile.
pub const SLOWEST: f64 = 0.99;
/// Number of quantiles of the durations that are kept, from 0 to 100 %.
const QUANTILES: u16 = 101;

/// A run, which is one execution of what is compared.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Run {
    /// Version of the form in which this run is stored.
    pub version: u32,
    /// UUID of the session.
    pub session: String,
    /// Unix time at which the run started, in nanoseconds.
    pub started_unix_ns: i64,
    /// Process and machine that recorded the run.
    pub origin: Option<Origin>,
    /// ID of the machine's boot.
    pub boot_id: Option<String>,
    /// Frequency of the host's counter in Hz.
    pub frequency: u64,
    /// Whether the kernel's events say what threads did.
    pub has_kernel: bool,
    /// Number of events that were lost.
    pub lost: u64,
    /// Whether the session had ended.
    pub finished: bool,
    /// Number of regions that are missing because their names come after the first [`MAX_NAMES`] names.
    pub left_out: u64,
    /// Regions of the run, by name.
    pub regions: BTreeMap<String, Box<Region>>,
}

/// The regions with one name in a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Region {
    /// Number of regions.
    pub count: u64,
    /// Number of regions that could not be counted.
    pub not_counted: u64,
    /// Whether the regions are of a program of the host.
    pub is_program: bool,
    /// Typical regions: the regions from the 5th to the 75th percentile of this run.
    pub typical: Typical,
    /// Mean of all regions.
    pub all: Mean,
    /// Mean of the slowest 1 % of the regions.
    pub slowest: Mean,
    /// Percentiles of the durations from 0 to 100, in nanoseconds.
    pub percentiles_ns: Percentiles,
}

/// Mean of a set of regions, such as the typical regions of a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Mean {
    /// Number of these regions.
    pub regions: u64,
    /// Mean time in each of [`Part::ALL`] in nanoseconds. The times add up to the mean duration.
    #[serde(with = "by_part")]
    pub parts_ns: [f64; PARTS],
}

/// Mean of the typical regions, divided among inner regions, exits and waits. All times are in nanoseconds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Typical {
    /// Mean time in each part.
    #[serde(flatten)]
    pub mean: Mean,
    /// Number and time of the inner regions, by name. These times and `self`, the time outside of all inner
    /// regions, add up to the duration.
    pub children: Named<(f64, f64)>,
    /// Exits of a guest by reason. If the details of all regions are known, the times in the kernel add up to
    /// the part *kernel*, and the times in the VMM add up to the part *VMM*.
    pub exits: Named<Exits>,
    /// Waits by part and cause. The waits add up to their parts, if the details of all regions are known.
    pub waits: Named<f64>,
}

/// Exits of a guest for one reason. Each exit lasts until the guest runs again. All times are in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Exits {
    /// Number of exits per region.
    pub count: f64,
    /// Time in the kernel for these exits.
    pub kernel_ns: f64,
    /// Time in the VMM for these exits.
    pub vmm_ns: f64,
    /// Time in which the thread waited during these exits.
    pub waits_ns: f64,
}

impl Exits {
    fn of(exits: &regions::Exit, of: u64) -> Exits {
        Exits {
            count: if of == 0 { 0.0 } else { exits.count / of as f64 },
            kernel_ns: mean(exits.kernel_ns, of),
            vmm_ns: mean(exits.vmm_ns, of),
            waits_ns: mean(exits.waits_ns, of),
        }
    }
}

impl Mean {
    /// Returns the duration in nanoseconds.
    pub fn duration_ns(&self) -> f64 {
        self.parts_ns.iter().sum()
    }

    /// Returns the time in which the thread had a CPU, in nanoseconds.
    pub fn own_ns(&self) -> f64 {
        self.sum(Part::is_on_cpu)
    }

    /// Returns the time in which the thread waited, for a CPU or for anything else, in nanoseconds.
    pub fn waits_ns(&self) -> f64 {
        self.sum(Part::is_wait)
    }

    fn sum(&self, is_wanted: impl Fn(Part) -> bool) -> f64 {
        let all = Part::ALL.into_iter().zip(self.parts_ns);
        all.filter(|(part, _)| is_wanted(*part)).map(|(_, ns)| ns).sum()
    }

    fn of(sums: &Sums) -> Mean {
        let regions::Breakdown { regions, times, .. } = sums.total;
        Mean { regions, parts_ns: times.0.map(|ns| mean(ns, regions)) }
    }
}

impl Typical {
    /// Returns the time outside of all inner regions in nanoseconds.
    pub fn self_ns(&self) -> f64 {
        self.mean.duration_ns() - self.children.iter().map(|(_, (_, ns))| ns).sum::<f64>()
    }

    fn of(sums: &Sums) -> Typical {
        let total = &sums.total;
        let mut children: BTreeMap<&str, (f64, f64)> = BTreeMap::new();
        for child in &sums.children {
            let entry = children.entry(child.name.as_deref().unwrap_or(OTHER_NAMES)).or_default();
            entry.0 += mean(child.count, total.regions);
            entry.1 += mean(child.duration_ns, total.regions);
        }
        let exits = total.exits.iter();
        let exits = exits.map(|exit| (&*exit.reason, Exits::of(exit, total.exits_of)));
        let mut waits: BTreeMap<String, f64> = BTreeMap::new();
        for regions::Wait { part, cause, ns, .. } in &total.waits {
            let name = format!("{}{BY}{}", part.key(), cause_name(cause));
            *waits.entry(name).or_default() += mean(*ns, total.exits_of);
        }
        Typical {
            mean: Mean::of(sums),
            children: children.into_iter().collect(),
            exits: exits.collect(),
            waits: waits.into_iter().collect(),
        }
    }
}

fn mean(sum: u64, of: u64) -> f64 {
    if of == 0 { 0.0 } else { sum as f64 / of as f64 }
}

/// Times by the keys of parts.
mod by_part {
    use super::{BTreeMap, PARTS, Part};
    use serde::{Deserialize, Deserializer, Serializer};

    /// Order of the parts in files before version 4, where the times are a list without keys.
    const LISTED: [Part; 7] = [
        Part::Guest,
        Part::Kernel,
        Part::Vmm,
        Part::Runnable,
        Part::Blocked,
        Part::OffCpu,
        Part::Unknown,
    ];

    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Form {
        Named(BTreeMap<String, f64>),
        Listed([f64; LISTED.len()]),
    }

    pub fn serialize<S: Serializer>(all: &[f64; PARTS], serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(Part::ALL.iter().map(|part| part.key()).zip(all))
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<[f64; PARTS], D::Error> {
        let mut all = [0.0; PARTS];
        match Form::deserialize(from)? {
            Form::Listed(listed) => {
                LISTED.iter().zip(listed).for_each(|(part, ns)| all[*part as usize] = ns);
            }
            Form::Named(named) => {
                all = Part::ALL.map(|part| named.get(part.key()).copied().unwrap_or(0.0));
            }
        }
        Ok(all)
    }
}

/// Words between the part and the cause in the name of a wait.
const BY: &str = " by ";
/// Name for all inner regions whose own names are not kept, because there are too many names. No region has
/// this name, because names of regions contain no space.
const OTHER_NAMES: &str = "other names";
const UNNAMED: &str = "a thread without a name";
const NOT_RECORDED: &str = "what was not recorded";
const NOT_KNOWN: &str = "what is not known";

/// Returns a name of a cause. The name is the same in each run, so the name does not contain a thread id. A
/// thread's name is in quotes, because a program can call its threads `timer` or `others`.
fn cause_name(cause: &Cause) -> String {
    match cause {
        Cause::Thread { name: Some(name), .. } => quoted(name),
        Cause::Thread { .. } => UNNAMED.into(),
        Cause::Unknown(Unknown::NotRecorded) => NOT_RECORDED.into(),
        Cause::Unknown(_) => NOT_KNOWN.into(),
        other => other.to_string(),
    }
}

fn quoted(name: &str) -> String {
    format!("'{name}'")
}

/// Returns the present name of a wait from a file of version 2. Such a file has names of threads without
/// quotes. If the name is also the name of a kind of causes, the function assumes the kind and not a thread.
fn upgraded(wait: &str) -> String {
    let Some((part, cause)) = wait.split_once(BY) else { return wait.into() };
    let kinds =
        [Cause::Idle, Cause::Timer, Cause::Interrupt(None), Cause::Softirq(None), Cause::Others];
    let is_kind = kinds.iter().any(|kind| kind.to_string() == cause)
        || [UNNAMED, NOT_RECORDED, NOT_KNOWN].contains(&cause)
        || cause.starts_with("interrupt ")
        || cause.starts_with("softirq ");
    if is_kind { wait.into() } else { format!("{part}{BY}{}", quoted(cause)) }
}

impl Run {
    /// Returns the run in the form of the present version.
    pub fn upgraded(mut self) -> Run {
        let is_of_version_2 = self.version < 3;
        let is_old = std::mem::replace(&mut self.version, VERSION) < VERSION;
        for region in self.regions.values_mut().filter(|_| is_old) {
            let Region { is_program, typical, all, slowest, .. } = &mut **region;
            if is_of_version_2 {
                let waits = typical.waits.iter();
                typical.waits = waits.map(|(wait, ns)| (upgraded(wait), *ns)).collect();
            }
            // Files before version 4 keep a program's time on a CPU in the place of the guest's time.
            for mean in [&mut typical.mean, all, slowest].into_iter().filter(|_| *is_program) {
                mean.parts_ns.swap(Part::OnCpu as usize, Part::Guest as usize);
            }
        }
        self
    }

    /// Returns whether the numbers of this run are possible. Times must not be negative or need more than 64
    /// bits as nanoseconds, and percentiles must ascend. The waits of a region must not be longer than the
    /// region, and a mean must not count more regions than the run has. The run has at most [`MAX_NAMES`]
    /// names.
    pub fn is_sound(&self) -> bool {
        let is_time = |ns: &f64| (0.0..=u64::MAX as f64).contains(ns);
        let is_mean = |mean: &Mean| mean.parts_ns.iter().chain([&mean.duration_ns()]).all(is_time);
        let is_region = |region: &Region| {
            let Typical { mean, children, exits, waits } = &region.typical;
            let children = children.iter().flat_map(|(_, (count, ns))| [count, ns]);
            let exits = exits.iter();
            let exits = exits.flat_map(|(_, e)| [&e.count, &e.kernel_ns, &e.vmm_ns, &e.waits_ns]);
            let waits = Vec::from_iter(waits.iter().map(|(_, ns)| ns));
            // The waits are a part of the duration, so their sum can exceed the duration only because of
            // rounding errors.
            let most = mean.duration_ns() * (1.0 + 1e-9) + 1.0;
            let percentiles = || region.percentiles_ns.iter();
            [mean, &region.all, &region.slowest]
                .into_iter()
                .all(|mean| is_mean(mean) && mean.regions <= region.count)
                && waits.iter().copied().sum::<f64>() <= most
                && children.chain(exits).chain(waits).all(is_time)
                && (region.count == 0
                    || percentiles().count() == usize::from(QUANTILES) && percentiles().is_sorted())
        };
        self.regions.len() <= MAX_NAMES && self.regions.values().all(|region| is_region(region))
    }

    /// Returns the run of a session with these regions.
    pub fn of(session: &Session, regions: &Regions) -> Run {
        let json = session.json();
        let [typical, all, slowest] = [TYPICAL, (0.0, 1.0), (SLOWEST, 1.0)]
            .map(|(from, to)| regions.sums(from..=to).into_iter());
        let mut run = Run {
            version: VERSION,
            session: format!("{:032x}", u128::from_be_bytes(json.uuid)),
            started_unix_ns: json.started_unix_ns,
            origin: json.origin.clone(),
            boot_id: json.boot_id.map(|id| format!("{id:032x}")),
            frequency: json.clocks.first().map_or(0, |clock| clock.host_frequency),
            has_kernel: regions.has_kernel,
            lost: json
                .streams
                .iter()
                .fold(json.lost_unattached, |sum, s| sum.saturating_add(s.lost())),
            finished: json.finished,
            left_out: 0,
            regions: BTreeMap::new(),
        };
        for (((group, typical), all), slowest) in
            regions.groups.iter().zip(typical).zip(all).zip(slowest)
        {
            let not_counted = group.not_counted.iter().sum();
            if group.count == 0 && not_counted == 0 {
                continue;
            }
            if run.regions.len() >= MAX_NAMES {
                run.left_out += group.count;
                continue;
            }
            let at = |percent: u16| group.quantile_ns(f64::from(percent) / 100.0);
            let region = Region {
                count: group.count,
                not_counted,
                is_program: group.is_program,
                typical: Typical::of(&typical),
                all: Mean::of(&all),
                slowest: Mean::of(&slowest),
                percentiles_ns: (0..QUANTILES).map(at).collect(),
            };
            run.regions.insert(group.name.clone(), Box::new(region));
        }
        run
    }
}
