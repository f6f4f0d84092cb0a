//! `hypertrace compare`: what differs between two sides of runs, and what may not be compared.

use crate::html::parse;
use crate::regions_html::check_closed;
use hypertrace_compare::{Exits, FILE, Mean, Named, Percentiles, Region, Run, Typical, VERSION};
use hypertrace_format::origin::Origin;
use hypertrace_test_support::cpus::{ASLEEP, Cpus, HARD, READY};
use hypertrace_test_support::two_kernels::World;
use hypertrace_tests::capability;
use hypertrace_tests::command::{Hypertrace, Ran, run};
use hypertrace_tests::golden::golden;
use hypertrace_tests::linux::static_program;
use hypertrace_tests::namespace::Mount;
use hypertrace_timeline::regions::{Options, PARTS, Part, Regions};
use hypertrace_timeline::{Given, Recording};
use serde_json::Value;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use tempfile::TempDir;

const HYPERTRACE: Hypertrace = Hypertrace(env!("CARGO_BIN_EXE_hypertrace"));

/// Returns typical regions with these parts, in the order of [`Part::ALL`].
fn typical(parts_ns: [f64; PARTS], parse_ns: f64, hog_ns: f64) -> Typical {
    let children = [("parse", (1.0, parse_ns))].into_iter().filter(|_| parse_ns > 0.0);
    let waits = [("runnable by 'hog'", hog_ns)].into_iter().filter(|_| hog_ns > 0.0);
    Typical {
        mean: Mean { regions: 70, parts_ns },
        children: children.collect(),
        exits: Named::default(),
        waits: waits.collect(),
    }
}

fn region(typical: Typical) -> Box<Region> {
    let duration = typical.mean.duration_ns();
    Box::new(Region {
        count: 100,
        not_counted: 0,
        is_program: true,
        all: typical.mean.clone(),
        slowest: typical.mean.clone(),
        typical,
        percentiles_ns: (0..=100)
            .map(|at| (duration * (0.9 + f64::from(at) / 500.0)) as u64)
            .collect(),
    })
}

/// Returns a run in which the program took `program_ns` longer than usual, and waited `hog_ns` longer than
/// usual for a CPU.
fn made(number: u32, program_ns: f64, hog_ns: f64) -> Run {
    // Runs differ a little, each in its own way.
    let luck = f64::from(number * 7919 % 13) * 30.0;
    let parse = typical(
        [
            50_000.0 + luck + program_ns,
            0.0,
            0.0,
            0.0,
            0.0,
            0.0,
            0.0,
            hog_ns,
            0.0,
            0.0,
            0.0,
            0.0,
            0.0,
        ],
        0.0,
        hog_ns,
    );
    let request = typical(
        [
            80_000.0 + luck + program_ns,
            0.0,
            0.0,
            0.0,
            0.0,
            0.0,
            0.0,
            hog_ns,
            0.0,
            0.0,
            0.0,
            0.0,
            0.0,
        ],
        parse.mean.duration_ns(),
        hog_ns,
    );
    let regions = [("parse", parse), ("request", request)];
    Run {
        version: VERSION,
        session: format!("{number:032x}"),
        started_unix_ns: 1_700_000_000_000_000_000 + i64::from(number) * 1_000_000_000,
        origin: None,
        boot_id: None,
        frequency: 2_000_000_000,
        has_kernel: true,
        lost: 0,
        finished: true,
        left_out: 0,
        regions: regions.map(|(name, mean)| (name.to_owned(), region(mean))).into(),
    }
}

/// A folder of runs: `a-01` and so on, `b-01` and so on.
struct Runs(TempDir);

impl Runs {
    fn new() -> Runs {
        Runs(tempfile::tempdir().unwrap())
    }

    fn add(&self, name: &str, run: &Run) {
        let dir = self.0.path().join(name);
        fs::create_dir(&dir).unwrap();
        fs::write(dir.join(FILE), serde_json::to_string(run).unwrap()).unwrap();
    }

    /// Makes runs of both sides. The second side's runs take `program_ns` longer, and wait `hog_ns` longer.
    fn sides(runs: u32, program_ns: f64, hog_ns: f64) -> Runs {
        let made_runs = Runs::new();
        for number in 0..runs {
            made_runs.add(&format!("a-{:02}", number + 1), &made(2 * number, 0.0, 0.0));
            made_runs
                .add(&format!("b-{:02}", number + 1), &made(2 * number + 1, program_ns, hog_ns));
        }
        made_runs
    }

    fn names(&self, side: &str) -> Vec<String> {
        let names = fs::read_dir(self.0.path()).unwrap();
        let names = names.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<String> = names.filter(|name| name.starts_with(side)).collect();
        names.sort();
        names
    }

    fn transcript(&self, options: &str) -> String {
        let (a, b) = (self.names("a-").join(" "), self.names("b-").join(" "));
        HYPERTRACE.transcript_in(self.0.path(), &[&format!("compare {a} --with {b} {options}")])
    }

    fn compare(&self, options: &[&str]) -> Ran {
        let mut compare = HYPERTRACE.command(["compare"]);
        compare.args(self.names("a-")).arg("--with").args(self.names("b-")).args(options);
        run(compare.current_dir(self.0.path()))
    }
}

fn near(a: f64, b: f64) -> bool {
    (a - b).abs() < 1.0
}

#[test]
fn a_slower_child_is_named_and_the_limit_fails() {
    let runs = Runs::sides(6, 2_500.0, 0.0);
    golden("slower", runs.transcript("--fail-on slower:2%"));
    golden("rows", runs.transcript("--csv --name parse"));
    assert_eq!(runs.compare(&["--fail-on", "slower:10%"]).code, Some(0));
}

#[test]
fn two_directories_of_runs_are_two_sides() {
    let runs = Runs::sides(6, 2_500.0, 0.0);
    let listed = runs.compare(&["--json"]).stdout;
    for side in ["a", "b"] {
        let names = runs.names(side);
        let to = runs.0.path().join(side);
        fs::create_dir(&to).unwrap();
        names.iter().for_each(|name| fs::rename(runs.0.path().join(name), to.join(name)).unwrap());
    }
    let compare = |dirs: &[&str]| {
        let mut command = HYPERTRACE.command(["compare", "--json"]);
        run(command.args(dirs).current_dir(runs.0.path()))
    };

    assert_eq!(compare(&["a", "b"]).stdout, listed);
    fs::create_dir(runs.0.path().join("a/crashed")).unwrap();
    fs::create_dir(runs.0.path().join("empty")).unwrap();
    let ran = compare(&["a", "b"]);
    assert_eq!(ran.stdout, listed);
    assert!(ran.stderr.contains("a: 1 directory without a session left out"), "{ran:?}");
    // A directory may be a run itself.
    assert_eq!(compare(&["a/a-01", "b/b-01"]).code, Some(0));
    for name in ["a-09", "b-09"] {
        runs.add(name, &made(9, 0.0, 0.0));
    }
    for (dirs, why) in [
        (&["a", "."][..], ".: runs of two sides: give ./a-* --with ./b-*"),
        (&["a", "./b --bench"], "to run two commands, give --run"),
        (&["a"], "here is 1 without --with"),
        (&["a", "b", "b"], "here are 3 without --with"),
        (&["a", "empty"], "empty: neither a session nor a directory of sessions"),
    ] {
        let ran = compare(dirs);
        assert!(ran.code == Some(2) && ran.stderr.contains(why), "{ran:?}");
    }
}

#[test]
fn a_wait_for_a_cpu_is_named_with_who_had_it_and_acquits_nothing() {
    golden("waits", Runs::sides(6, 0.0, 9_000.0).transcript(""));
}

/// Returns a run of a guest's threads that both kernels recorded. `stolen` is the time in which a host thread
/// had the CPU, and `behind` is the time in which another thread of the guest had the guest's CPU.
fn made_guest_thread(number: u32, [stolen, behind]: [f64; 2]) -> Run {
    let of = |part: Part, more: f64, wait: &str| {
        let mut parts_ns = [0.0; PARTS];
        parts_ns[Part::Guest as usize] = 20_000.0 + f64::from(number * 7919 % 13) * 30.0;
        parts_ns[part as usize] = 1_000.0 + more;
        Typical {
            waits: [(wait, 1_000.0 + more)].into_iter().collect(),
            ..typical(parts_ns, 0.0, 0.0)
        }
    };
    let sync = of(Part::Stolen, stolen, "stolen by 'kworker/1:2'");
    let parse = of(Part::Behind, behind, "behind by 'make'");
    let mut all = made(number, 0.0, 0.0);
    all.regions =
        [("sync", sync), ("parse", parse)].map(|(name, of)| (name.to_owned(), region(of))).into();
    all
}

#[test]
fn time_that_threads_of_host_and_guest_took_is_named_and_acquits_nothing() {
    let runs = Runs::new();
    for number in 0..6 {
        runs.add(&format!("a-0{}", number + 1), &made_guest_thread(2 * number, [0.0; 2]));
        let more = [9_000.0, 8_000.0];
        runs.add(&format!("b-0{}", number + 1), &made_guest_thread(2 * number + 1, more));
    }
    golden("stolen", runs.transcript(""));
    let json: Value = runs.compare(&["--json"]).json();
    for difference in json["differences"].as_array().unwrap() {
        assert_eq!(difference["waits"]["verdict"], "slower", "{difference}");
    }
}

#[test]
fn a_run_has_who_took_time_from_a_guests_threads_by_both_kernels() {
    let made = World::new(3).made();
    let recording = Recording::open(&[Given::new(made.path())]).unwrap();
    let regions = Regions::of(&recording, &Options::default()).unwrap();

    let run = Run::of(&recording.sessions[0].0, &regions);

    let typical = &run.regions["r"].typical;
    let waits = |part: &str| {
        typical
            .waits
            .iter()
            .filter(|(name, _)| name.starts_with(part))
            .map(|(_, ns)| *ns)
            .sum::<f64>()
    };
    for (part, by) in [(Part::Stolen, "stolen by 't9'"), (Part::Behind, "behind by 't")] {
        let ns = typical.mean.parts_ns[part as usize];
        assert!(ns > 0.0 && near(waits(by), ns), "{part:?} {ns}: {:?}", typical.waits);
    }
}

/// Returns a run of a guest whose VMM handles loads slower by `more` ns.
fn made_guest(number: u32, more: f64) -> Run {
    let luck = f64::from(number * 7919 % 13) * 30.0;
    let exits = |kernel_ns, vmm_ns| Exits { count: 1.0, kernel_ns, vmm_ns, waits_ns: 0.0 };
    let (read, write) = (exits(9_000.0 + luck, 900.0 + more), exits(8_000.0, 1_100.0 + luck));
    let vmm = read.vmm_ns + write.vmm_ns;
    let kernel = read.kernel_ns + write.kernel_ns;
    let batch = Typical {
        exits: [("mmio read", read), ("mmio write", write)].into_iter().collect(),
        ..typical(
            [0.0, 20_000.0 + luck, 0.0, kernel, vmm, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0],
            0.0,
            0.0,
        )
    };
    let mut all = made(number, 0.0, 0.0);
    all.regions = [("batch".into(), region(batch))].into();
    all.regions.values_mut().for_each(|region| region.is_program = false);
    all
}

#[test]
fn the_exit_whose_handler_is_slower_is_named() {
    let runs = Runs::new();
    for number in 0..12 {
        let (side, more) = [("a", 0.0), ("b", 5_000.0)][number as usize % 2];
        runs.add(&format!("{side}-{number:02}"), &made_guest(number, more));
    }
    golden("slower_exit", runs.transcript(""));
    let json: Value = runs.compare(&["--json"]).json();
    let batch = &json["differences"][0];
    for (part, of) in [("kernel", None), ("vmm", Some("vmm"))] {
        let ns = |change: &Value| change["difference_ns"].as_f64().unwrap();
        let exits = batch["exits"].as_array().unwrap().iter();
        let sum: f64 = exits.map(|exits| ns(of.map_or(exits, |of| &exits[of]))).sum();
        let parts = batch["parts"].as_array().unwrap();
        assert!(near(sum, ns(parts.iter().find(|p| p["name"] == part).unwrap())), "{batch}");
    }
}

#[test]
fn equal_builds_are_the_same_and_few_runs_have_no_verdict() {
    golden("same", Runs::sides(6, 0.0, 0.0).transcript("--name request"));
    golden("few", Runs::sides(4, 2_500.0, 0.0).transcript("--name request"));
    // 5 runs a side suffice to compare regions of one name, but not to compare regions of two names.
    let verdict = |json: Value, at: usize| json["differences"][at]["typical"]["verdict"].clone();
    let runs = Runs::sides(5, 0.0, 0.0);
    assert_eq!(verdict(runs.compare(&["--json"]).json(), 1), "no_verdict");
    let one = runs.compare(&["--json", "--name", "request"]).json();
    assert_eq!(verdict(one, 0), "no_difference_seen");
    let said = runs.compare(&[]).stdout;
    assert!(said.ends_with("5 and 5 runs of 2 names, and 6 a side are needed\n"), "{said}");
}

#[test]
fn time_on_a_cpu_that_is_proven_longer_is_said_beside_waits_that_vary() {
    let runs = Runs::new();
    for number in 0..24 {
        let waits = f64::from(number / 2 * 5 % 12) * 9_000.0;
        let (side, program) = [("a", 0.0), ("b", 4_000.0)][number as usize % 2];
        runs.add(&format!("{side}-{:02}", number / 2), &made(number, program, waits));
    }

    let said = runs.compare(&["--name", "request"]).stdout;

    let answer = said.lines().rev().take(3).collect::<Vec<_>>();
    let answer = answer.into_iter().rev().map(str::trim).collect::<Vec<_>>().join(" ");
    let start = "request: its time on a CPU is 5.0 % longer (+4.0";
    let end = "its duration shows no difference, because waits vary more";
    assert!(answer.contains(start) && answer.ends_with(end), "{said}");
    let row = said.lines().find(|line| line.starts_with("  trimmed mean")).unwrap();
    assert!(row.ends_with(" ~"), "{said}");
    assert!(said.contains("\n~ no difference is proven for this name\n"), "{said}");
}

#[test]
fn a_tail_that_moves_and_the_runs_that_a_small_difference_needs_are_said() {
    let runs = Runs::new();
    for number in 0..12 {
        let mut run = made(number, f64::from(number * 5 % 12) * 2_000.0, 0.0);
        let request = run.regions.get_mut("request").unwrap();
        if number % 2 == 1 {
            request.all.parts_ns[0] += 90_000.0;
        }
        runs.add(&format!("{}-{number:02}", ["a", "b"][number as usize % 2]), &run);
    }

    let said = runs.compare(&["--name", "request"]).stdout.replace("\n  ", " ");

    assert!(said.contains("request: no difference seen; these runs would show"), "{said}");
    assert!(said.contains("runs a side one of 5 %; mean of all +9"), "{said}");
    assert!(said.trim_end().ends_with(", without a verdict"), "{said}");
}

#[test]
fn what_moves_from_one_part_to_another_is_not_hidden() {
    let runs = Runs::new();
    for number in 0..12 {
        // Some runs lack switches, so some of the program's time is unknown.
        let unknown = f64::from(number * 5 % 12) * 300.0;
        let more = f64::from(number % 2) * 2_000.0;
        let mean = typical(
            [
                50_000.0 + more - unknown,
                0.0,
                0.0,
                0.0,
                0.0,
                0.0,
                0.0,
                0.0,
                0.0,
                0.0,
                0.0,
                0.0,
                unknown,
            ],
            0.0,
            0.0,
        );
        let mut all = made(number, 0.0, 0.0);
        all.regions = [("parse".to_owned(), region(mean))].into();
        runs.add(&format!("{}-{number:02}", ["a", "b"][number as usize % 2]), &all);
    }
    let json: Value = runs.compare(&["--json"]).json();
    let answer = json["answer"][0].as_str().unwrap();
    assert!(answer.starts_with("parse is 4.0 % slower (+2.00 +- 0.00 us): on-CPU +"), "{answer}");
    assert!(answer.contains("unknown") && answer.contains("+-"), "{answer}");
}

#[test]
fn the_numbers_of_the_json_add_up() {
    let json: Value = Runs::sides(6, 2_500.0, 4_000.0).compare(&["--json"]).json();
    let differences = json["differences"].as_array().unwrap();
    assert_eq!(differences.len(), 2);
    for difference in differences {
        let ns = |change: &Value| change["difference_ns"].as_f64().unwrap();
        let sum = |all: &Value| all.as_array().unwrap().iter().map(ns).sum::<f64>();
        let total = ns(&difference["typical"]);
        assert!(near(sum(&difference["parts"]), total), "{difference}");
        assert!(near(ns(&difference["own"]) + ns(&difference["waits"]), total), "{difference}");
        if difference["name"] == "request" {
            assert!(near(sum(&difference["children"]), total), "{difference}");
        }
    }
    assert!(json["answer"][0].as_str().unwrap().starts_with("parse is "), "{json}");
}

#[test]
fn the_json_has_the_members_of_its_page() {
    let runs = Runs::sides(5, 2_500.0, 4_000.0);
    let mut other = made(99, 2_500.0, 4_000.0);
    let parse = other.regions.get_mut("parse").unwrap();
    let exits = Exits { count: 1.0, kernel_ns: 500.0, vmm_ns: 250.0, waits_ns: 0.0 };
    parse.typical.exits = [("mmio write", exits)].into_iter().collect();
    // A guest chooses names: a line break, a quote, and what a browser or a terminal would obey.
    other.regions.insert("</script>\"\n\x1b[2J".into(), region(typical([1.0; PARTS], 0.0, 0.0)));
    other.finished = false;
    runs.add("b-99", &other);
    golden("json", runs.transcript("--json"));
}

#[test]
fn the_page_has_the_sentences_first_and_names_are_text() {
    let runs = Runs::sides(6, 2_500.0, 4_000.0);
    let hostile = "</script><img src=x onerror=alert(1)>\"'&amp;\u{202e}<!--";
    for name in ["a-77", "b-77"] {
        let mut other = made(if name == "a-77" { 77 } else { 78 }, 2_500.0, 0.0);
        other.regions.insert(hostile.into(), region(typical([1_000.0; PARTS], 0.0, 0.0)));
        runs.add(name, &other);
    }

    let ran = runs.compare(&["--html", "page.html"]);

    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(ran.stderr.contains("wrote page.html: open it in a browser"), "{ran:?}");
    let text = fs::read_to_string(runs.0.path().join("page.html")).unwrap();
    let page = parse(&text, "<!doctype html>\n<!-- hypertrace compare -->\n");
    check_closed(&text, &page);
    assert!(!text.contains("<img") && !text.contains('\u{202e}'));
    assert_eq!(text.matches("</script").count(), 2);
    let json: Value = runs.compare(&["--json"]).json();
    let first = page.all("li").iter().map(|li| li.text()).find(|text| text.contains(" slower "));
    assert_eq!(first.as_deref(), json["answer"][0].as_str());
    assert_eq!(page.all("h2").len(), 3);
    // A dot for each run and each interval, and two curves that end at all regions.
    assert_eq!(
        page.all("section")[0].all("circle").iter().filter(|c| c.get("r") == "4").count(),
        14
    );
    let scripts = page.all("script");
    let data = scripts.iter().find(|script| script.get("type") == "application/json").unwrap();
    let data: Value = serde_json::from_str(&data.text()).unwrap();
    for group in data["groups"].as_array().unwrap() {
        let x = group["x"].as_array().unwrap();
        for y in group["ys"].as_array().unwrap().iter().map(|y| y.as_array().unwrap()) {
            assert_eq!((y.len(), y.last().unwrap().as_f64()), (x.len(), Some(1.0)));
        }
    }
    for svg in page.all("svg") {
        let is_labelled = svg.get("role") == "img" && !svg.get("aria-label").is_empty();
        assert!(is_labelled || svg.get("aria-hidden") == "true", "{svg:?}");
    }
    // `--html` replaces an older page, but refuses to replace a file that is no page.
    assert_eq!(runs.compare(&["--html", "page.html"]).code, Some(0));
    assert_eq!(runs.compare(&["--html", "a-01/run.json"]).code, Some(2));
}

#[test]
fn what_may_not_be_compared_is_refused_or_said() {
    let refused = |change: &dyn Fn(&mut Run), part: &str| {
        let runs = Runs::sides(5, 0.0, 0.0);
        let mut other = made(99, 0.0, 0.0);
        change(&mut other);
        runs.add("b-99", &other);
        let ran = runs.compare(&[]);
        assert_eq!(ran.code, Some(2), "{ran:?}");
        assert!(ran.stderr.contains(part), "{ran:?}");
    };
    refused(&|run| run.has_kernel = false, "10 of 11 runs have the kernel's events");
    refused(&|run| run.session = format!("{:032x}", 2), "is on both sides");
    // The run is a copy of a run of the same side.
    refused(&|run| run.session = format!("{:032x}", 3), "is given twice");
    let parts = |run: &mut Run, ns: f64| {
        run.regions.values_mut().for_each(|region| region.all.parts_ns = [ns; PARTS]);
    };
    refused(&|run| parts(run, -1.0), "b-99/run.json: a time or a number in it is not possible");
    refused(&|run| parts(run, 1e308), "b-99/run.json: a time or a number in it is not possible");
    let no_percentiles = |run: &mut Run| {
        run.regions.values_mut().for_each(|region| region.percentiles_ns = Percentiles::default());
    };
    refused(&no_percentiles, "b-99/run.json: a time or a number in it is not possible");
    let impossible = "b-99/run.json: a time or a number in it is not possible";
    let all = |run: &mut Run, change: &dyn Fn(&mut Region)| {
        run.regions.values_mut().for_each(|region| change(region));
    };
    refused(
        &|run| all(run, &|region| region.percentiles_ns = (0..=100).rev().collect()),
        impossible,
    );
    refused(&|run| all(run, &|region| region.all.regions = region.count + 1), impossible);
    let wait = || [("blocked by timer", 1e12)].into_iter().collect();
    refused(&|run| all(run, &|region| region.typical.waits = wait()), impossible);
    refused(&|run| run.version = 7, "b-99/run.json: version 7; this program reads 2 to 4");

    let said = |change: &dyn Fn(&mut Run), part: &str| {
        let runs = Runs::sides(5, 0.0, 0.0);
        let mut other = made(99, 0.0, 0.0);
        change(&mut other);
        runs.add("b-99", &other);
        let ran = runs.compare(&[]);
        assert_eq!(ran.code, Some(0), "{ran:?}");
        assert!((ran.stdout.clone() + &ran.stderr).contains(part), "{ran:?}");
    };
    said(&|run| run.lost = 12, "1 of 11 runs lost events, 12 together");
    said(&|run| run.finished = false, "1 run did not end properly");
    said(&|run| run.frequency = 3_000_000_000, "2 frequencies of the counter");
    // The made runs have the rate `rate`.
    let rate = made(99, 0.0, 0.0).frequency;
    for (frequency, notes) in [(rate - rate / 2_000, 0), (rate - rate / 200, 1)] {
        let runs = Runs::sides(5, 0.0, 0.0);
        runs.add("b-99", &Run { frequency, ..made(99, 0.0, 0.0) });
        let ran = runs.compare(&[]);
        let said = ran.stdout + &ran.stderr;
        assert_eq!(said.matches("frequencies of the counter").count(), notes, "{said}");
    }
    said(
        &|run| _ = run.regions.insert("new\x1b".into(), region(typical([1.0; PARTS], 0.0, 0.0))),
        "only in B: new\\x1b",
    );
}

#[test]
fn a_text_in_a_run_makes_no_line_of_a_message() {
    let runs = Runs::sides(6, 0.0, 0.0);
    for number in 0..12_u32 {
        let dir = runs.0.path().join(format!(
            "{}-{:02}",
            ["a", "b"][number as usize % 2],
            number / 2 + 1
        ));
        let mut run = made(number, if number % 2 == 0 { 0.0 } else { 5_000.0 }, 0.0);
        let parse = run.regions.remove("parse").unwrap();
        run.regions.insert("parse\nhypertrace: faster".into(), parse);
        let host = format!("host {}\nhypertrace: none lost", number % 2);
        run.origin = Some(Origin { host, ..Origin::default() });
        fs::write(dir.join(FILE), serde_json::to_string(&run).unwrap()).unwrap();
    }
    let ran = runs.compare(&["--fail-on", "slower:2%"]);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(ran.stderr.contains("slower by more than 2 %: parse\\nhypertrace: faster"), "{ran:?}");
    assert!(ran.stderr.contains("2 machines (host 0\\nhypertrace: none lost"), "{ran:?}");
    assert_eq!(ran.stderr.lines().count(), 2, "{ran:?}");

    let mut one = made(98, 0.0, 0.0);
    one.session = "1\nhypertrace: 2".into();
    runs.add("a-98", &one);
    runs.add("b-98", &one);
    let ran = runs.compare(&[]);
    assert_eq!((ran.code, ran.stderr.lines().count()), (Some(2), 1), "{ran:?}");
}

#[test]
fn a_thread_with_the_name_of_a_kind_of_causes_is_no_such_cause() {
    let mut machine = Cpus::new(1, &[(200, "own")]);
    machine.switch(0, READY, (200, "own"));
    let thieves = [(300, "idle CPU"), (301, "timer"), (302, "others")];
    for _ in 0..20 {
        let now = machine.now;
        machine.at(now + 100).begin(200, 0);
        for thief in thieves {
            let now = machine.now;
            machine.at(now + 100).switch(0, READY, thief);
        }
        let now = machine.now;
        machine.at(now + 100).switch(0, READY, (200, "own")).at(now + 150);
        machine.switch(0, ASLEEP, (0, "swapper")).at(now + 250).timer(0, HARD, (200, "own"));
        machine.at(now + 300).switch(0, READY, (200, "own")).at(now + 400).end(200, 0);
    }
    let now = machine.now;
    machine.at(now + 100).switch(0, READY, (7, "last"));
    let made = machine.made();
    let recording = Recording::open(&[Given::new(made.path())]).unwrap();
    let regions = Regions::of(&recording, &Options::default()).unwrap();
    let run = Run::of(&recording.sessions[0].0, &regions);
    let causes = Vec::from_iter(run.regions["r0"].typical.waits.iter().map(|(name, _)| name));
    let expected = [
        "blocked by timer",
        "runnable by 'idle CPU'",
        "runnable by 'others'",
        "runnable by 'timer'",
        "runnable by idle CPU",
    ];
    assert_eq!(causes, expected);
}

/// Converts the parts to the list of versions before 4, in which a program's own time stands in place of the
/// guest's time.
fn listed(value: &mut Value) {
    let Value::Object(members) = value else { return };
    if let Some(parts @ Value::Object(_)) = members.get_mut("parts_ns") {
        let keys = ["on_cpu", "kernel", "vmm", "runnable", "blocked", "off_cpu", "unknown"];
        *parts = keys.iter().map(|key| parts[key].clone()).collect();
    }
    members.values_mut().for_each(listed);
}

#[test]
fn a_run_of_an_older_version_is_read_with_its_threads_and_parts() {
    let runs = Runs::sides(6, 0.0, 9_000.0);
    let newer = runs.compare(&["--json"]).stdout;
    for version in [3, 2] {
        for name in [runs.names("a-"), runs.names("b-")].concat() {
            let file = runs.0.path().join(name).join(FILE);
            let mut run: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
            listed(&mut run);
            run["version"] = version.into();
            let text = run.to_string();
            let text = if version == 2 { text.replace("'hog'", "hog") } else { text };
            fs::write(&file, text).unwrap();
        }
        assert_eq!(runs.compare(&["--json"]).stdout, newer, "version {version}");
    }
    assert!(newer.contains("runnable by 'hog'"), "{newer}");
}

#[test]
fn of_long_texts_in_a_run_a_message_has_the_beginning() {
    let runs = Runs::sides(5, 0.0, 0.0);
    for (number, letter) in [(98, "x"), (99, "y")] {
        let mut other = made(number, 0.0, 0.0);
        let origin = Origin { host: letter.repeat(5_000), ..Origin::default() };
        other.origin = Some(origin);
        runs.add(&format!("b-{number}"), &other);
    }
    let ran = runs.compare(&[]);
    assert!(ran.stderr.contains("the runs come from 2 machines (xxx"), "{ran:?}");
    assert!(ran.stderr.len() < 1_000, "{} bytes", ran.stderr.len());
}

#[test]
fn input_that_is_no_run_is_refused() {
    let runs = Runs::sides(1, 0.0, 0.0);
    let ran = |args: &[&str]| run(HYPERTRACE.command(args).current_dir(runs.0.path()));
    for (args, part) in [
        (&["compare", "a-01"][..], "--with"),
        (&["compare", "a-01", "--with", "gone"], "gone: no such directory"),
        (&["compare", "--run", "true"], "--run takes two commands, not 1"),
        (&["compare", "a-01", "b-01", "--run"], "not directories: compare a-01 --with b-01"),
        (
            &["compare", "a-01", "--with", "b-01", "--name", "nothing"],
            "no region is named nothing: there are parse, request",
        ),
        (&["compare", "a-01", "--with", "b-01", "--fail-on", "5"], "expected slower:5%"),
        // With so few runs, the exit code would say nothing.
        (
            &["compare", "a-01", "--with", "b-01", "--fail-on", "slower:5%"],
            "--fail-on needs 5 runs a side, and there are 1",
        ),
    ] {
        let ran = ran(args);
        assert_eq!(ran.code, Some(2), "{ran:?}");
        assert!(ran.stderr.contains(part), "{ran:?}");
    }
    let said = ran(&["regions", "a-01"]);
    assert_eq!(said.code, Some(2), "{said:?}");
    assert!(said.stderr.contains("`hypertrace compare` reads it"), "{said:?}");
    fs::write(runs.0.path().join("b-01").join(FILE), "{\"version\":2,").unwrap();
    assert_eq!(runs.compare(&[]).code, Some(2));
}

#[test]
fn one_region_a_run_is_compared() {
    let runs = Runs::new();
    for number in 0..12 {
        let mut one = made(number, if number % 2 == 0 { 0.0 } else { 5_000.0 }, 0.0);
        for region in one.regions.values_mut() {
            region.count = 1;
            let means = [&mut region.typical.mean, &mut region.all, &mut region.slowest];
            means.into_iter().for_each(|mean| mean.regions = 1);
        }
        runs.add(&format!("{}-{number:02}", ["a", "b"][number as usize % 2]), &one);
    }
    let json: Value = runs.compare(&["--json"]).json();
    assert_eq!(json["differences"][0]["regions"], serde_json::json!([6, 6]));
    assert_eq!(json["differences"][0]["typical"]["verdict"], "slower");
}

#[test]
fn runs_with_extreme_numbers_are_compared() {
    let runs = Runs::new();
    for number in 0..10 {
        let mut all = made(number, 0.0, 0.0);
        let names = (0..1000).map(|name| {
            (format!("r{name}"), region(typical([f64::from(number % 2); PARTS], 0.0, 0.0)))
        });
        all.regions.extend(names);
        all.regions.insert("equal".into(), region(typical([5.0; PARTS], 0.0, 0.0)));
        all.regions.insert("long".into(), region(typical([1e18; PARTS], 0.0, 0.0)));
        all.regions.insert("empty".into(), Box::default());
        let many = Region {
            count: u64::MAX,
            not_counted: u64::MAX,
            ..*region(typical([5.0; PARTS], 0.0, 0.0))
        };
        all.regions.insert("many".into(), many.into());
        (all.lost, all.left_out) = (u64::MAX, u64::MAX);
        runs.add(&format!("{}-{number:02}", ["a", "b"][number as usize % 2]), &all);
    }
    let ran = runs.compare(&["--json"]);
    assert!(
        ran.stderr.contains("lost events, 18,446,744,073,709,551,615 together"),
        "{}",
        ran.stderr
    );
    let json: Value = serde_json::from_str(&ran.stdout).unwrap();
    let differences = json["differences"].as_array().unwrap();
    let of = |name: &str| differences.iter().find(|d| d["name"] == name);
    // 5 runs a side cannot show a change of one name among so many.
    assert_eq!(of("equal").unwrap()["typical"]["verdict"], "no_verdict");
    assert_eq!(of("long").unwrap()["typical"]["verdict"], "no_verdict");
    assert_eq!(of("r7").unwrap()["typical"]["verdict"], "slower");
    assert!(of("empty").is_none());
    assert_eq!(of("many").unwrap()["regions"][0], u64::MAX.to_string());
}

/// Compares two commands of the shell, each in a region `work`.
fn recorded(out: &Path, a: &str, b: &str, options: &[&str]) -> Ran {
    let command = |work: &str| format!("\"$MARK\" --begin work; {work}; \"$MARK\" --end work");
    let mut compare = HYPERTRACE.command(["compare", "--run", "-o"]);
    compare.arg(out).args(options).args([command(a), command(b)]);
    run(compare.env("MARK", static_program("hypertrace-mark")))
}

#[test]
fn two_commands_are_run_in_turn_and_compared() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("R");
    let ran = recorded(
        &out,
        "sleep 0.02",
        "sleep 0.06",
        &["--kernel", "-n", "5", "--keep", "samples", "--json"],
    );
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let json: Value = serde_json::from_str(&ran.stdout).unwrap();
    let work = &json["differences"][0];
    assert_eq!((&work["name"], &work["runs"]), (&"work".into(), &serde_json::json!([5, 5])));

    // The runs that are kept give the same result.
    let kept = out.join("a-01");
    assert_eq!(entries(&kept), [FILE]);
    for private in [&kept, &kept.join(FILE)] {
        assert_eq!(fs::metadata(private).unwrap().permissions().mode() & 0o077, 0);
    }
    let names =
        |side: &str| (1..=5).map(|n| out.join(format!("{side}-{n:02}"))).collect::<Vec<_>>();
    let runs = [names("a"), names("b")].concat();
    let size = |run: &std::path::PathBuf| fs::metadata(run.join(FILE)).unwrap().len() as f64;
    let (all, expected) = (runs.iter().map(size).sum::<f64>(), expected_bytes(&ran.stderr));
    assert!((all / 2.0..all * 2.0).contains(&expected), "{expected} of {all}: {ran:?}");
    let mut again = HYPERTRACE.command(["compare", "--json"]);
    let again = run(again.args(names("a")).arg("--with").args(names("b")));
    assert_eq!(again.json::<Value>(), json);
    let mut record = HYPERTRACE.command(["record", "--kernel", "-o"]);
    let kernel = run(record.arg(dir.path().join("S")).arg("true")).stderr;
    if json["notes"].to_string().contains("no run has the kernel's events")
        || kernel.contains("by perf")
    {
        capability::missing("tracefs", "why threads of the runs waited is not known");
    } else {
        capability::used("tracefs");
        // Other load on the machine may change the rest of the time as much as the sleep does, so only this
        // part is compared.
        let part = |name: &str| {
            let parts = work["parts"].as_array().unwrap();
            parts.iter().find(|part| part["name"] == name).unwrap()["difference_ns"]
                .as_f64()
                .unwrap()
        };
        assert!(part("blocked") > 25e6, "{work}");
    }
}

/// Returns the size of all runs in bytes that a message expects: `about 12.5 KiB in DIR`.
fn expected_bytes(said: &str) -> f64 {
    let (_, rest) = said.split_once(": about ").unwrap();
    let mut words = rest.split_whitespace();
    let number: f64 = words.next().unwrap().parse().unwrap();
    let unit = ["B", "KiB", "MiB"].into_iter().position(|unit| words.clone().next() == Some(unit));
    number * 1024_f64.powi(unit.unwrap() as i32)
}

/// Returns the names in a directory.
fn entries(dir: &Path) -> Vec<String> {
    let names = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name());
    let mut names: Vec<String> = names.map(|name| name.into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn whole_runs_stay_usable_after_one_that_failed() {
    let dir = tempfile::tempdir().unwrap();
    let (out, turns) = (dir.path().join("R"), dir.path().join("turns"));
    // The command fails at its fifth start, in the fourth of its runs, because the first start is the
    // warm-up.
    let fails = format!("echo >>{0}; test $(wc -l <{0}) -lt 5 || kill -9 $$", turns.display());

    let ran = recorded(&out, &fails, "true", &["-n", "9"]);

    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(ran.stderr.contains("3 and 4 runs are whole"), "{ran:?}");
    assert_eq!(entries(&out), ["a-01", "a-02", "a-03", "b-01", "b-02", "b-03", "b-04"]);
    let names = |side: &str| {
        let names = entries(&out).into_iter().filter(|name| name.starts_with(side));
        names.map(|name| out.join(name)).collect::<Vec<_>>()
    };
    let mut again = HYPERTRACE.command(["compare", "--json"]);
    let again = run(again.args(names("a")).arg("--with").args(names("b")));
    let json: Value = serde_json::from_str(&again.stdout).unwrap();
    assert_eq!(json["differences"][0]["runs"], serde_json::json!([3, 4]));
}

#[test]
fn a_full_disk_is_named_and_whole_runs_stay() {
    let Some(disk) = Mount::new("tmpfs", "size=8m") else { return };
    let (out, turns) = (disk.path().join("R"), disk.path().join("turns"));
    let fills = format!(
        "echo >>{0}; test $(wc -l <{0}) -lt 4 || dd if=/dev/zero of={0} bs=64k 2>&1",
        turns.display()
    );

    let ran = recorded(&out, "true", &fills, &["-n", "4"]);

    assert_eq!((ran.code, &*ran.stdout), (Some(1), ""), "{ran:?}");
    assert!(ran.stderr.contains("no space is left for the run"), "{ran:?}");
    assert_eq!(entries(&out), ["a-01", "a-02", "a-03", "b-01", "b-02"]);
}

#[test]
fn whole_runs_stay_usable_after_a_signal() {
    let dir = tempfile::tempdir().unwrap();
    let (out, turns) = (dir.path().join("R"), dir.path().join("turns"));
    // The comparison is the parent of the recorder, and the recorder is the parent of the shell.
    let signals = format!(
        "echo >>{0}; test $(wc -l <{0}) -lt 3 || {{ kill $(cut -d ' ' -f 4 /proc/$PPID/stat); sleep 60; }}",
        turns.display()
    );

    let ran = recorded(&out, "true", &signals, &["-n", "9"]);

    assert_eq!((ran.code, &*ran.stdout), (None, ""), "{ran:?}");
    assert!(ran.stderr.contains("interrupted\nnothing is compared; 1 and 1 runs"), "{ran:?}");
    assert_eq!(entries(&out), ["a-01", "b-01"]);
}

#[test]
fn a_command_that_fails_is_said_with_its_output_and_nothing_is_compared() {
    let dir = tempfile::tempdir().unwrap();
    let ran = recorded(&dir.path().join("R"), "true", "echo no luck; exit 3", &["-n", "2"]);
    assert_eq!((ran.code, &*ran.stdout), (Some(1), ""), "{ran:?}");
    assert!(ran.stderr.contains("exit status: 3\nno luck"), "{ran:?}");

    assert_eq!(entries(&dir.path().join("R")), [""; 0]);

    let ran = recorded(&dir.path().join("S"), "true", "true", &["-n", "1"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let ran = recorded(&dir.path().join("S"), "true", "true", &["-n", "1"]);
    assert_eq!(ran.code, Some(2), "{ran:?}");
    assert!(ran.stderr.contains("is not empty: give another directory with -o"), "{ran:?}");
}
