//! Cores and caches that CPUs share, as sysfs describes them.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// Returns the closest unit that two of this process's CPUs share: `core`, a cache (`L3 cache`), `nothing`,
/// or `not known`. If different pairs of CPUs share different units, lists all these units.
pub fn shared_by_two() -> String {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let allowed = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    shared(Path::new("/sys/devices/system/cpu"), &list(allowed.unwrap_or_default()))
}

fn shared(sysfs: &Path, cpus: &[usize]) -> String {
    let mut found = BTreeSet::new();
    for (at, cpu) in cpus.iter().enumerate() {
        let groups = groups(&sysfs.join(format!("cpu{cpu}")));
        for other in &cpus[at + 1..] {
            found.insert(match &groups {
                Some(groups) => groups
                    .iter()
                    .find(|(_, cpus)| cpus.contains(other))
                    .map_or("nothing", |(name, _)| name)
                    .to_owned(),
                None => "not known".to_owned(),
            });
        }
    }
    if found.is_empty() { "nothing".to_owned() } else { Vec::from_iter(found).join(" or ") }
}

/// Returns the CPUs that share a CPU's core, then the CPUs that share its caches, the closest cache first.
/// Returns `None` if sysfs does not describe the core and the caches.
fn groups(cpu: &Path) -> Option<Vec<(String, Vec<usize>)>> {
    let read = |path: &str| fs::read_to_string(cpu.join(path)).ok();
    let core = read("topology/core_cpus_list").or_else(|| read("topology/thread_siblings_list"))?;
    let mut caches: Vec<_> = (0..)
        .map_while(|n| {
            let level = read(&format!("cache/index{n}/level"))?;
            let cpus = read(&format!("cache/index{n}/shared_cpu_list"))?;
            Some((format!("L{} cache", level.trim()), list(&cpus)))
        })
        .collect();
    caches.sort();
    if caches.is_empty() {
        return None;
    }
    caches.insert(0, ("core".to_owned(), list(&core)));
    Some(caches)
}

/// Parses a list of CPUs such as `0-3,8`.
fn list(text: &str) -> Vec<usize> {
    let ranges = text.trim().split(',').filter_map(|range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        Some(first.parse().ok()?..=last.parse().ok()?)
    });
    ranges.flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpus_share_a_core_a_cache_or_nothing() {
        let sysfs = tempfile::tempdir().unwrap();
        let describe = |cpu: u32, core: &str, l2: &str, l3: &str| {
            let files = [
                ("topology/core_cpus_list", core),
                ("cache/index0/level", "2"),
                ("cache/index0/shared_cpu_list", l2),
                ("cache/index1/level", "3"),
                ("cache/index1/shared_cpu_list", l3),
            ];
            for (name, text) in files {
                let path = sysfs.path().join(format!("cpu{cpu}")).join(name);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, format!("{text}\n")).unwrap();
            }
        };
        describe(0, "0-1", "0-1", "0-3");
        describe(1, "0-1", "0-1", "0-3");
        describe(2, "2", "2,3", "0-3");
        describe(3, "3", "2,3", "0-3");
        describe(4, "4", "4", "4");
        fs::create_dir(sysfs.path().join("cpu5")).unwrap();

        for (cpus, expected) in [
            (&[0, 1][..], "core"),
            (&[0, 2], "L3 cache"),
            (&[2, 3], "L2 cache"),
            (&[0, 4], "nothing"),
            (&[5, 6], "not known"),
            (&[0, 1, 2], "L3 cache or core"),
            (&[0], "nothing"),
        ] {
            assert_eq!(shared(sysfs.path(), cpus), expected, "{cpus:?}");
        }
    }

    #[test]
    fn lists_of_cpus_are_parsed() {
        assert_eq!(list("0-2,5\n"), [0, 1, 2, 5]);
        assert!(list("").is_empty());
    }
}
