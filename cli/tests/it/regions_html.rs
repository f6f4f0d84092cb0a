//! `hypertrace regions --html`: a page that needs no other file, has the numbers of `--json`, and is written
//! whole or not at all.

use crate::html;
use hypertrace_test_support::cpus::{ASLEEP, Cpus, HARD, READY};
use hypertrace_test_support::{made, trace_dat, vcpu};
use hypertrace_timeline::regions::{PARTS, Part};
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

use html::{Element, parse};
use hypertrace::region;
use hypertrace_tests::command::{Hypertrace, Ran, run};
use hypertrace_tests::namespace::Mount;
use hypertrace_tests::{capability, kvm, this_test, traced};
use made::{Made, Packet};
use serde_json::Value;
use trace_dat::KVM_MMIO_ID;
use vcpu::{Vcpu, What};

const HYPERTRACE: Hypertrace = Hypertrace(env!("CARGO_BIN_EXE_hypertrace"));
const BEGINNING: &str = "<!doctype html>\n<!-- hypertrace regions -->\n";
const HOSTILE: &str = "</script><img src=x onerror=alert(1)>\"'&amp;\u{202e}<!--";
/// The text that the page shows for `HOSTILE`.
const SHOWN: &str = "</script><img src=x onerror=alert(1)>\"'&amp;\\u{202e}<!--";

fn regions(dir: &Path, args: &[&str]) -> Ran {
    run(HYPERTRACE.command(["regions"]).arg(dir).args(args))
}

/// Makes a page of a session. Returns its text.
#[track_caller]
fn page(dir: &Path, args: &[&str]) -> String {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("page.html");
    let ran = run(HYPERTRACE.command(["regions"]).arg(dir).args(args).arg("--html").arg(&file));
    assert_eq!((ran.code, &*ran.stdout), (Some(0), ""), "{}", ran.stderr);
    let said = format!("hypertrace: wrote {}: open it in a browser\n", file.display());
    assert_eq!(ran.stderr.matches(&said).count(), 1, "{}", ran.stderr);
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "and no other file");
    fs::read_to_string(file).unwrap()
}

fn session(vcpus: &[Vcpu]) -> Made {
    let made = vcpu::session(vcpus);
    made.kernel(&vcpu::trace(vcpus, |_| true));
    made
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value}"))
}

/// Returns the indices of the charts.
fn data(page: &Element) -> Value {
    let scripts = page.all("script");
    let data = scripts.iter().find(|script| script.get("type") == "application/json").unwrap();
    serde_json::from_str(&data.text()).unwrap()
}

/// Returns the table in an element whose first heading is `first`.
#[track_caller]
fn table<'a>(within: &'a Element, first: &str) -> &'a Element {
    let is = |table: &&&Element| table.all("th").first().is_some_and(|th| th.text() == first);
    within.all("table").iter().find(is).unwrap()
}

/// Returns the nanoseconds in an element.
fn ns(within: &Element) -> Vec<u64> {
    within.all("data").iter().map(|data| data.get("value").parse().unwrap()).collect()
}

/// Asserts that the tables and charts of a page have the numbers of `--json`.
#[track_caller]
fn check_numbers(page: &Element, json: &Value) {
    let data = data(page);
    let sections = page.all("section");
    let groups: Vec<&Value> =
        json["regions"].as_array().unwrap().iter().filter(|group| group["count"] != 0).collect();
    assert_eq!(sections.len(), groups.len());
    for ((index, section), group) in sections.iter().enumerate().zip(groups) {
        assert_eq!(section.all("h2")[0].text(), group["name"].as_str().unwrap());
        let quantiles = ["min_ns", "p50_ns", "p90_ns", "p99_ns", "max_ns"];
        let quantiles = quantiles.map(|name| number(&group[name]));
        assert_eq!(ns(section.all("p")[0]), quantiles);
        let steps = table(section, "duration").all("tr");
        assert_eq!(steps.len() - 1, group["histogram"].as_array().unwrap().len());
        for (row, step) in steps[1..].iter().zip(group["histogram"].as_array().unwrap()) {
            let count: u64 = row.all("td")[0].text().replace(',', "").parse().unwrap();
            assert_eq!(count, number(&step["count"]));
        }

        let breakdown = &group["breakdown"];
        let columns =
            [&breakdown["median"], &breakdown["p99"], &breakdown["slowest"], &group["total"]];
        let rows = table(section, "part").all("tr");
        let mut seen = [0; 4];
        let mut reasons = BTreeSet::new();
        // The last part, and the sum of the causes below this part.
        let (mut part, mut by_cause) = ([0; 4], None);
        let mut is_of_vmm = false;
        for row in &rows[2..] {
            let head = row.all("th")[0];
            let name = head.text();
            if head.get("class").is_empty() {
                is_of_vmm = name == "VMM";
            }
            if head.get("class") != "sub wait"
                && let Some(sum) = by_cause.take()
            {
                assert_eq!(sum, part, "before {name}");
            }
            for (column, of) in columns.iter().enumerate() {
                let cell = ns(row.all("td")[column * 2]);
                if head.get("class") == "sub wait" {
                    by_cause.get_or_insert([0; 4])[column] += cell.first().unwrap_or(&0);
                } else if head.get("class") == "sub" {
                    reasons.insert(name.clone());
                    let exits = of["exits"].as_array().unwrap();
                    let exit = exits.iter().find(|exit| exit["reason"] == *name);
                    let key = if is_of_vmm { "vmm_ns" } else { "kernel_ns" };
                    let ns = exit.map(|exit| number(&exit[key]));
                    assert_eq!(cell, Vec::from_iter(ns.filter(|ns| *ns > 0)), "{name}");
                } else {
                    let name = name.strip_suffix(" with KVM").unwrap_or(&name);
                    let known = Part::ALL.into_iter().find(|part| part.label() == name).unwrap();
                    assert_eq!(cell, [number(&of["parts"][known.key_ns()])], "{name}");
                    part[column] = cell[0];
                    seen[column] += cell[0];
                }
            }
        }
        assert_eq!(ns(rows[1]), columns.map(|of| number(&of["duration_ns"])));
        assert_eq!(seen.to_vec(), ns(rows[1]), "the parts shown are all");
        let total = group["total"]["exits"].as_array().unwrap();
        assert!(total.iter().all(|exit| reasons.contains(exit["reason"].as_str().unwrap())));

        let chart = &data["groups"][index];
        let (x, y) = (chart["x"].as_array().unwrap(), chart["ys"][0].as_array().unwrap());
        assert_eq!((x.len(), y.last().unwrap().as_f64()), (y.len(), Some(1.0)));
        assert_eq!(x.last().unwrap().as_f64().unwrap() as u64, number(&group["max_ns"]));
        check_lane(&data["parts"], &chart["windows"][0], &breakdown["slowest"]);
        let slowest = section.all("details")[0].all("tr");
        assert!(slowest.len() > 1);
        for row in &slowest[1..] {
            let row = ns(row);
            assert_eq!(row[0], row[1..].iter().sum::<u64>(), "the parts of a region add up");
        }
        assert_eq!(ns(slowest[1])[0], number(&group["max_ns"]));
    }
}

/// Asserts that within the region, the first lane of a window has the same parts of the time as a breakdown.
#[track_caller]
fn check_lane(names: &Value, window: &Value, breakdown: &Value) {
    let length = number(&window["length"]);
    assert_eq!(length, number(&breakdown["duration_ns"]));
    let numbers = window["lanes"][0]["intervals"].as_array().unwrap();
    let numbers: Vec<i64> = numbers.iter().map(|n| n.as_i64().unwrap()).collect();
    let mut at = window["from"].as_i64().unwrap();
    let mut parts = [0; PARTS];
    for interval in numbers.chunks(3) {
        let begin = at + interval[0];
        at = begin + interval[1];
        let within = at.clamp(0, length as i64) - begin.clamp(0, length as i64);
        parts[interval[2] as usize % 16] += within as u64;
    }
    assert!(at <= window["to"].as_i64().unwrap());
    assert_eq!(*names, serde_json::json!(Part::ALL.map(Part::label)));
    for (ns, key) in parts.into_iter().zip(Part::ALL.map(Part::key_ns)) {
        assert_eq!(ns, number(&breakdown["parts"][key]), "{key}: {}", window["label"]);
    }
}

/// Asserts that a page can load and run nothing but its own style and script.
#[track_caller]
pub fn check_closed(text: &str, page: &Element) {
    let metas = page.all("meta");
    let csp = metas.iter().find(|meta| meta.get("http-equiv") == "Content-Security-Policy");
    let csp = csp.unwrap().get("content");
    let nonce = page.all("style")[0].get("nonce");
    assert_eq!(nonce.len(), 32);
    assert_eq!(
        csp,
        format!(
            "default-src 'none'; style-src 'nonce-{nonce}'; script-src 'nonce-{nonce}'; \
             base-uri 'none'; form-action 'none'"
        )
    );
    // The policy comes before everything that the policy applies to.
    assert!(text.find("Content-Security-Policy") < text.find("<style"));
    for element in page.everything() {
        for (name, value) in &element.attributes {
            let is_own = match &**name {
                "src" | "srcset" | "data" | "action" | "style" | "background" => false,
                "href" => value.starts_with('#'),
                "nonce" => value == nonce && ["style", "script"].contains(&&*element.name),
                name => !name.starts_with("on"),
            };
            assert!(is_own, "{}: {name}={value}", element.name);
        }
        let is_known = [
            "", "html", "head", "meta", "title", "style", "body", "svg", "defs", "pattern", "rect",
            "path", "circle", "line", "header", "main", "section", "h1", "h2", "h3", "small", "p",
            "b", "ul", "li", "div", "span", "table", "caption", "thead", "tbody", "tr", "th", "td",
            "data", "a", "details", "summary", "noscript", "script",
        ];
        assert!(is_known.contains(&&*element.name) || element.name == "title", "{}", element.name);
    }
    assert_eq!(page.all("script").len(), 2);
    assert_eq!(page.all("style").len(), 1);
    // The page has one address, in the comment that says where uPlot is from.
    let addresses: Vec<&str> = text.split("//").skip(1).collect();
    let urls = text.matches("://").count();
    assert_eq!(urls, 1, "{addresses:?}");
    assert!(text.contains("/*! https://github.com/leeoniya/uPlot"));
    assert!(text.contains("Copyright (c) 2022 Leon Sorokin"), "the licence is with it");
    for load in ["@import", "url(", "fetch(", "XMLHttpRequest", "import(", "eval("] {
        let uses = text.matches(load).count();
        let own = text.matches("url(#p").count();
        assert_eq!(uses, if load == "url(" { own } else { 0 }, "{load}");
    }
}

#[test]
fn a_page_has_the_numbers_of_json_and_needs_nothing_else() {
    let vcpus = [Vcpu::rounds(0, 300, 50), Vcpu::rounds(1, 200, 20)];
    let made = session(&vcpus);

    let text = page(made.path(), &[]);

    let parsed = parse(&text, BEGINNING);
    let json: Value = regions(made.path(), &["--json"]).json();
    check_numbers(&parsed, &json);
    check_closed(&text, &parsed);
    let windows = data(&parsed)["groups"][0]["windows"].clone();
    assert_eq!(windows.as_array().unwrap().len(), 5, "3 slowest, p99, median");
    for window in windows.as_array().unwrap() {
        assert_eq!(window["lanes"].as_array().unwrap().len(), 2, "a lane for each thread");
    }
    assert_ne!(text, page(made.path(), &[]), "another nonce");
}

#[test]
fn pictures_have_words() {
    let made = session(&[Vcpu::rounds(0, 60, 20)]);

    let page = parse(&page(made.path(), &[]), BEGINNING);

    assert_eq!(page.all("html")[0].get("lang"), "en");
    for svg in page.all("svg") {
        let is_labelled = svg.get("role") == "img" && !svg.get("aria-label").is_empty();
        assert!(is_labelled || svg.get("aria-hidden") == "true", "{svg:?}");
    }
    let bars = page.all("svg");
    let bar = bars.iter().find(|svg| svg.get("role") == "img").unwrap();
    assert!(bar.get("aria-label").contains("kernel, mmio write"), "{bar:?}");
    for table in page.all("table") {
        assert!(table.all("th").iter().all(|th| ["col", "row"].contains(&th.get("scope"))));
    }
    let ids: Vec<&str> =
        page.everything().iter().map(|e| e.get("id")).filter(|id| !id.is_empty()).collect();
    assert_eq!(ids.len(), BTreeSet::from_iter(&ids).len(), "{ids:?}");
    for section in page.all("section") {
        assert!(ids.contains(&section.get("aria-labelledby")));
    }
    // All colours of the lanes are named.
    let legends: Vec<String> = page.all("ul").iter().map(|ul| ul.text()).collect();
    for part in ["guest with KVM", "kernel", "VMM", "waiting for a CPU", "blocked"] {
        assert!(legends.last().unwrap().contains(part), "{part}: {legends:?}");
    }
    // Where a chart needs a script, the page says so.
    assert_eq!(page.all("noscript").len(), 2);
}

#[test]
fn names_of_guests_and_files_are_text() {
    // The hostile texts are the name of a thread of the VMM, the value of a field, and the path of the
    // session's directory.
    let mut vcpu = Vcpu::rounds(0, 60, 20);
    vcpu.name = HOSTILE.into();
    let made = session(&[vcpu]);
    let events = r#"[
        {"id":16,"schema":"read_begin(id:u64,file:str)","reference_point":false},
        {"id":17,"schema":"read_end(id:u64)","reference_point":false}]"#;
    let guest = (0..10).fold(Packet::guest(0), |guest, id| {
        let begin = 20_000 + id * 1_000;
        guest.event_str(begin, 16, &[id], HOSTILE.as_bytes()).event(begin + 500, 17, &[id])
    });
    let other = Made::with_json(&made::json(&made::clocks(), events, "[]"))
        .stream("guest-000-0000", &[Packet::guest(0), guest]);
    // The command line in the session's description is a hostile text, too.
    let path = other.path().join("session.json");
    let mut json: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    json["origin"] = serde_json::json!({ "command": HOSTILE, "host": "here" });
    fs::write(path, json.to_string()).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("<img src=x onerror=alert(1)>&");
    symlink(made.path(), &dir).unwrap();

    let threads = page(&dir, &["--by", "vcpu"]);
    let values = page(other.path(), &["--by", "file"]);

    for text in [&threads, &values] {
        let page = parse(text, BEGINNING);
        check_closed(text, &page);
        assert!(page.all("h2")[0].text().ends_with(SHOWN), "{}", page.all("h2")[0].text());
        assert!(!text.contains("<img") && !text.contains('\u{202e}'));
        assert_eq!(text.matches("</script").count(), 2);
    }
    let page = parse(&threads, BEGINNING);
    let notes = parse(&values, BEGINNING).all("p").iter().map(|p| p.text()).collect::<Vec<_>>();
    let origin =
        format!("recorded 2023-11-14T22:13:20Z, by hypertrace  on here (Linux , ): {SHOWN}");
    assert!(notes.iter().any(|note| note.ends_with(&origin)), "{notes:?}");
    assert!(page.all("title")[0].text().ends_with("<img src=x onerror=alert(1)>&"));
    let lane = &data(&page)["groups"][0]["windows"][0]["lanes"][0]["name"];
    assert_eq!(lane.as_str().unwrap(), format!("vmm/{HOSTILE} (100)"));
}

#[test]
fn regions_of_several_sessions_have_the_sessions_name() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("page.html");
    let made = [0, 1].map(|_| session(&[Vcpu::rounds(0, 3, 50)]));
    let mut command = HYPERTRACE.command(["regions"]);
    command.args(made.iter().map(|made| made.path())).arg("--html").arg(&file);
    assert_eq!(run(&mut command).code, Some(0));

    let page = parse(&fs::read_to_string(file).unwrap(), BEGINNING);

    let expected = made.map(|made| format!("{}:batch", made.path().file_name().unwrap().display()));
    let expected = BTreeSet::from(expected);
    let rows = page.all("table")[0].all("a").iter().map(|a| a.text()).collect::<BTreeSet<_>>();
    let headings = page.all("h2").iter().map(|h2| h2.text()).collect::<BTreeSet<_>>();
    let charts = data(&page)["groups"].as_array().unwrap().clone();
    let charts = charts.iter().map(|chart| chart["name"].as_str().unwrap().to_owned());
    assert_eq!((rows, headings, charts.collect()), (expected.clone(), expected.clone(), expected));
}

#[test]
fn names_of_a_kernels_trace_are_text() {
    let vcpus = [Vcpu::rounds(0, 60, 20)];
    let made = vcpu::session(&vcpus);
    let kernel = vcpus[0].events.iter().filter_map(|(_, what)| match what {
        What::Kernel(id, _) => Some(*id),
        _ => None,
    });
    let kernel: Vec<u16> = kernel.collect();
    // Without the accesses, an exit's reason is the name that the kernel's file gives to a number.
    let mut trace = vcpu::trace(&vcpus, |number| kernel[number] != KVM_MMIO_ID).version_7();
    let name = b"\"KVM_EXIT_\" \"MMIO\"";
    let at = trace.windows(name.len()).position(|bytes| bytes == name).unwrap();
    trace[at..at + name.len()].copy_from_slice(b"\"<img src=x>&'...\"");
    fs::write(made.path().join("kernel.dat"), trace).unwrap();

    let text = page(made.path(), &[]);

    let page = parse(&text, BEGINNING);
    check_closed(&text, &page);
    let rows = table(&page, "part").all("th");
    assert!(rows.iter().any(|th| th.text() == "<img src=x>&'..."), "{rows:?}");
    let bars = page.all("svg");
    assert!(bars.iter().any(|bar| bar.get("aria-label").contains("kernel, <img src=x>&'...")));
    let data = data(&page);
    let mut reasons = data["reasons"].as_array().unwrap().iter();
    assert!(reasons.any(|reason| reason == "<img src=x>&'..."), "{data}");
}

#[test]
fn regions_outside_of_the_kernels_recording_have_a_note() {
    let vcpus = [Vcpu::rounds(0, 40, 5)];
    let made = vcpu::session(&vcpus);
    let half = vcpu::kernel_events(&vcpus) / 2;
    made.kernel(&vcpu::trace(&vcpus, |number| number >= half));

    let page = parse(&page(made.path(), &[]), BEGINNING);

    let notes: Vec<String> = page.all("p").iter().map(|note| note.text()).collect();
    assert!(notes.iter().any(|note| note.contains("Start `hypertrace record`")), "{notes:?}");
}

#[test]
fn without_a_kernels_trace_there_are_no_lanes() {
    let made = vcpu::session(&[Vcpu::rounds(0, 20, 5)]);

    let text = page(made.path(), &[]);

    let page = parse(&text, BEGINNING);
    check_closed(&text, &page);
    let warnings = page.all("p");
    let warning = warnings.iter().find(|p| p.get("class") == "warning").unwrap();
    assert!(warning.text().contains("no kernel.dat"), "{}", warning.text());
    assert!(!page.everything().iter().any(|e| e.attributes.contains_key("data-lanes")));
    assert!(page.everything().iter().any(|e| e.attributes.contains_key("data-curve")));
}

#[test]
fn the_size_does_not_depend_on_the_number_of_regions_and_groups() {
    let made = session(&[Vcpu::rounds(0, 2_000, 2), Vcpu::rounds(1, 2_000, 2)]);

    let one = page(made.path(), &[]);
    let many = page(made.path(), &["--by", "id"]);

    assert!(one.len() < 200_000, "{}", one.len());
    assert!(many.len() < 1_000_000, "{}", many.len());
    let many = parse(&many, BEGINNING);
    assert_eq!(many.all("section").len(), 12);
    assert!(many.text().contains("2,000 groups; the first 200 are in this table"));
}

#[test]
fn only_an_older_page_is_replaced() {
    let made = vcpu::session(&[Vcpu::rounds(0, 20, 5)]);
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let write = |name: &str| {
        run(HYPERTRACE.command(["regions"]).arg(made.path()).arg("--html").arg(path(name)))
    };

    assert_eq!(write("page").code, Some(0));
    assert_eq!(fs::metadata(path("page")).unwrap().permissions().mode() & 0o777, 0o600);
    let first = fs::read_to_string(path("page")).unwrap();
    assert_eq!(write("page").code, Some(0));
    assert_ne!(fs::read_to_string(path("page")).unwrap(), first);

    fs::write(path("notes"), "mine").unwrap();
    fs::create_dir(path("folder")).unwrap();
    symlink(path("page"), path("link")).unwrap();
    for (name, why) in [
        ("notes", "exists and is not a page"),
        ("folder", "is not a file"),
        ("link", "is not a file"),
        ("missing/page", "missing does not exist"),
    ] {
        let said = write(name).failed(2);
        let (first, _) = name.split_once('/').unwrap_or((name, ""));
        assert!(said.contains(why) && said.contains(first), "{said}");
    }
    assert_eq!(fs::read_to_string(path("notes")).unwrap(), "mine");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 4, "and no other file");
}

#[test]
fn on_a_full_disk_the_older_page_stays() {
    let made = vcpu::session(&[Vcpu::rounds(0, 20, 5)]);
    let Some(disk) = Mount::new("tmpfs", "size=64k") else { return };
    let file = disk.path().join("page.html");
    let old = format!("{BEGINNING}old");
    fs::write(&file, &old).unwrap();

    let ran = run(HYPERTRACE.command(["regions"]).arg(made.path()).arg("--html").arg(&file));

    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(ran.stderr.contains("cannot write") && ran.stderr.contains("page.html"), "{ran:?}");
    assert!(!ran.stderr.contains(".regions-"), "the name of a temporary file: {ran:?}");
    assert_eq!(fs::read_to_string(&file).unwrap(), old);
    assert_eq!(fs::read_dir(disk.path()).unwrap().count(), 1);
}

#[test]
fn a_limit_of_a_files_size_is_an_error() {
    let made = vcpu::session(&[Vcpu::rounds(0, 20, 5)]);
    let folder = tempfile::tempdir().unwrap();
    let mut command = std::process::Command::new("sh");
    command.args(["-c", "ulimit -f 8; exec \"$0\" regions \"$1\" --html \"$2/page\""]);
    command.args([Path::new(HYPERTRACE.0), made.path(), folder.path()]);

    let ran = run(&mut command);

    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(ran.stderr.contains("RLIMIT_FSIZE"), "{ran:?}");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn a_program_has_a_page() {
    if traced::argument().is_some() {
        for id in 0..20u64 {
            let _region = region!("nap", id, path = "/a b");
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("S");
    let mut command = HYPERTRACE.command(["record", "--kernel", "-o"]);
    command.arg(&out);
    traced::program(&mut command, this_test!(), "nap");
    let ran = run(&mut command);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    if !ran.stderr.contains("(by tracefs)") {
        capability::missing("tracefs", ran.stderr);
        return;
    }
    capability::used("tracefs");

    let text = page(&out, &["--name", "nap"]);

    let parsed = parse(&text, BEGINNING);
    check_closed(&text, &parsed);
    let json: Value = regions(&out, &["--name", "nap", "--json"]).beside_missing_switches().json();
    check_numbers(&parsed, &json);
    assert_eq!(data(&parsed)["parts"][0], "on-CPU");
    // Among the slowest regions, each region is shown with its thread and its fields.
    let has_threads = |table: &&&Element| table.all("th").iter().any(|th| th.text() == "thread");
    let tables = parsed.all("table");
    let slowest = tables.iter().find(has_threads).unwrap();
    let cells: Vec<String> = slowest.all("td").iter().map(|cell| cell.text()).collect();
    assert_eq!(cells.iter().filter(|cell| *cell == "path=\"/a b\"").count(), 20, "{cells:?}");
    let (name, tid) = cells[1].rsplit_once('-').unwrap();
    assert!(!name.is_empty() && tid.parse::<u32>().is_ok(), "{cells:?}");
}

#[test]
fn the_demo_with_the_kernels_events_has_a_page() {
    if !kvm::is_usable() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("S");
    let ran = run(HYPERTRACE.demo(&out, 2).arg("--kernel"));
    if !ran.stderr.contains("(by tracefs)") {
        capability::missing("tracefs", ran.stderr);
        return;
    }
    capability::used("kvm");

    let text = page(&out, &[]);

    let parsed = parse(&text, BEGINNING);
    let json: Value = regions(&out, &["--json"]).beside_missing_switches().json();
    check_closed(&text, &parsed);
    check_numbers(&parsed, &json);
    assert!(text.len() < 300_000, "{}", text.len());
}

#[test]
fn what_a_thread_waited_for_is_in_the_table_and_in_its_lane() {
    let (own, hog, timer) = ((200, "own"), (300, "<b>hog</b>"), (0, "swapper"));
    let mut machine = Cpus::new(1, &[own]);
    machine.at(1_000).switch(0, READY, own).at(1_100).begin(own.0, 0);
    machine.at(2_000).switch(0, READY, hog).at(2_600).switch(0, READY, own);
    machine.at(3_000).switch(0, ASLEEP, timer).at(3_500).timer(0, HARD, own);
    machine.at(3_700).switch(0, READY, own).at(4_000).end(own.0, 0);
    machine.at(5_000).switch(0, READY, hog);

    let text = page(machine.made().path(), &[]);

    let page = parse(&text, BEGINNING);
    check_closed(&text, &page);
    let rows = table(&page, "part").all("th");
    assert!(rows.iter().any(|th| th.text() == "<b>hog</b>-300"), "{rows:?}");
    let data = data(&page);
    let causes =
        Vec::from_iter(data["causes"].as_array().unwrap().iter().map(|c| c.as_str().unwrap()));
    let lane = &data["groups"][0]["windows"][0]["lanes"][0]["intervals"];
    let codes = lane.as_array().unwrap().chunks(3).map(|interval| interval[2].as_u64().unwrap());
    let waits = codes.filter(|code| [7, 9].contains(&(code % 16)));
    let waits = waits.map(|code| (code % 16, causes[code as usize / 16 - 1]));
    // The thread waited while the hog had the CPU, then for a timer, and then for an idle CPU to wake.
    let expected = [(7, "<b>hog</b>-300"), (9, "timer"), (7, "idle CPU")];
    assert_eq!(Vec::from_iter(waits), expected);
    // The lane shows the same waits as turns of the CPU. Colour 2 is a turn of a thread outside of the
    // session, and colour 3 is a turn of no thread.
    let turns = data["groups"][0]["windows"][0]["lanes"][0]["turns"].as_array().unwrap();
    let turns = turns.iter().map(|number| number.as_i64().unwrap());
    let turns = Vec::from_iter(turns);
    let turns = turns.chunks(4).map(|turn| match turn[3] {
        0 => (turn[1], turn[2], "own", 0),
        n => (turn[1], turn[2], causes[n as usize - 1], number(&data["who"][n as usize - 1])),
    });
    let expected = [
        (1_000, 0, "own", 0),
        (600, 0, "<b>hog</b>-300", 2),
        (400, 0, "own", 0),
        (195, 0, "idle CPU", 3),
        (1_300, 0, "own", 0),
    ];
    assert_eq!(Vec::from_iter(turns), expected);
    let legend = page.all("ul").last().unwrap().text();
    assert_eq!(legend, "Who had the CPU:this threadany other threadnone: idle");
}

#[test]
fn without_the_events_of_other_threads_there_is_no_lane_of_a_cpu() {
    let (own, hog) = ((200, "own"), (300, "hog"));
    let mut machine = Cpus::new(1, &[own]);
    machine.at(1_000).switch(0, READY, own).at(1_100).begin(own.0, 0);
    machine.at(2_000).switch(0, READY, hog).at(2_600).switch(0, READY, own);
    machine.at(4_000).end(own.0, 0).at(5_000).switch(0, READY, hog);
    let made = machine.session();
    let mut trace = machine.trace();
    trace.all = Vec::new();
    trace.options = vec![trace_dat::recorded_with_threads(made::BOOT, &machine.threads())];
    made.kernel(&trace);

    let page = parse(&page(made.path(), &[]), BEGINNING);

    let data = data(&page);
    let window = &data["groups"][0]["windows"][0];
    assert_eq!(window["lanes"][0]["turns"], Value::Null);
    let note = window["note"].as_str().unwrap();
    assert!(note.contains("`hypertrace record --kernel` as root, without --own-only"), "{note}");
    assert_eq!(data["causes"][0], "not known: only the session's threads were recorded");
    assert!(!page.text().contains("Who had the CPU:"));
}

#[test]
fn a_page_of_many_turns_has_less_than_2_mb() {
    let (own, hogs) = ((200, "own"), [(300, "hog-of-15-bytes"), (301, "pig-of-15-bytes")]);
    let mut machine = Cpus::new(1, &[own]);
    machine.at(1_000).switch(0, READY, own);
    for name in (0..12).flat_map(|name| [name; 5]) {
        machine.now += 1_000;
        machine.begin(own.0, name);
        for at in 0..300 {
            machine.now += 1_000_000 + at * 1_000;
            machine.switch(0, READY, hogs[at as usize % 2]).now += 1_000_000;
            machine.switch(0, READY, own);
        }
        machine.now += 1_000;
        machine.end(own.0, name);
    }
    machine.now += 1_000;
    machine.switch(0, READY, hogs[0]);

    let text = page(machine.made().path(), &[]);

    assert!(text.len() < 2_000_000, "{}", text.len());
    let data = data(&parse(&text, BEGINNING));
    let windows = data["groups"].as_array().unwrap().iter();
    let mut windows = windows.flat_map(|group| group["windows"].as_array().unwrap());
    let turns = |window: &Value| window["lanes"][0]["turns"].as_array().unwrap().len() / 4;
    assert!(windows.all(|window| (200..=1_000).contains(&turns(window))));
}
