//! The time of the demo on a host CPU that another program uses at the same time.

use super::{HYPERTRACE, json};
use hypertrace_tests::machine::Machine;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// Returns, for each thread name, how long all regions waited for a CPU while a thread of this name had the
/// CPU. Asserts that the times in `regions --json` add up.
#[track_caller]
fn behind(file: &Path) -> BTreeMap<String, u64> {
    let regions = json(file);
    let batch = &regions["regions"][0];
    assert_eq!((&batch["name"], &batch["count"]), (&"batch".into(), &1_000.into()));
    for of in ["median", "p99", "slowest"]
        .map(|name| &batch["breakdown"][name])
        .into_iter()
        .chain([&batch["total"]])
    {
        let parts: BTreeMap<String, u64> = serde_json::from_value(of["parts"].clone()).unwrap();
        assert_eq!(parts.values().sum::<u64>(), of["duration_ns"].as_u64().unwrap(), "{of}");
        assert_eq!(parts["unknown_ns"], 0, "{of}");
        let waits = of["waits"].as_array().unwrap().iter();
        let runnable = waits.filter(|wait| wait["part"] == "runnable");
        let behind = runnable.map(|wait| wait["ns"].as_u64().unwrap()).sum::<u64>();
        // The time of each cause is rounded.
        assert!(behind.abs_diff(parts["runnable_ns"]) <= 64, "{of}");
    }
    let mut behind = BTreeMap::new();
    for wait in batch["total"]["waits"].as_array().unwrap() {
        if wait["part"] == "runnable" && wait["cause"] == "thread" {
            let name = wait["name"].as_str().unwrap().to_owned();
            *behind.entry(name).or_default() += wait["ns"].as_u64().unwrap();
        }
    }
    behind
}

#[test]
#[ignore = "cargo xtask full --only machine"]
fn a_program_that_takes_a_vcpus_cpu_is_named_with_the_time_that_it_took() {
    let Some(machine) = Machine::find() else { return };
    let script = format!(
        "H='{}'; cp /bin/sh hog
        demo() {{ taskset -c 0 \"$H\" demo --vcpus 1 -o $1 --kernel >$1.said 2>&1 || {{ cat $1.said; exit 7; }}
            grep 'none lost' $1.said || {{ cat $1.said; exit 6; }}
            \"$H\" regions $1 --json >$shared/$1 && \"$H\" regions $1 --intervals >$shared/$1.intervals; }}
        demo alone
        taskset -c 0 ./hog -c 'while :; do :; done' & hog=$!
        cat /proc/$hog/schedstat >$shared/before; demo beside; cat /proc/$hog/schedstat >$shared/after
        kill $hog",
        HYPERTRACE.0
    );

    let (ran, shared) = machine.run(&script);

    assert_eq!(ran.code, 0, "{ran:?}");
    let alone = behind(&shared.join("alone"));
    assert!(!alone.contains_key("hog"), "{alone:?}");
    let beside = behind(&shared.join("beside"));
    let of_hog = beside.get("hog").copied().unwrap_or_default();
    let others = beside.iter().filter(|(name, _)| *name != "hog").map(|(_, ns)| ns).sum::<u64>();
    assert!(of_hog > others, "{beside:?}");
    // CPU time that the kernel counted for the hog meanwhile.
    let ran = ["before", "after"].map(|name| {
        let text = fs::read_to_string(shared.join(name)).unwrap();
        text.split(' ').next().unwrap().parse::<u64>().unwrap()
    });
    assert!(of_hog < ran[1] - ran[0], "{beside:?} {ran:?}");
    let intervals = |name: &str| {
        let text = fs::read_to_string(shared.join(name)).unwrap();
        let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        lines
            .filter(|line| line["wait"]["name"] == "hog")
            .map(|line| line["part"].clone())
            .collect()
    };
    let (alone, beside): (Vec<Value>, Vec<Value>) =
        (intervals("alone.intervals"), intervals("beside.intervals"));
    assert_eq!(alone, Vec::<Value>::new());
    assert!(beside.iter().any(|part| part == "runnable"), "{beside:?}");
}
