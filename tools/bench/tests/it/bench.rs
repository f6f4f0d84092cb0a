//! Tests of the form of the output. Times are not tested.

use std::ffi::OsStr;
use std::process::Command;

use hypertrace_tests::capability;
use hypertrace_tests::linux::Linux;
use hypertrace_tests::linux_module::Module;
use serde_json::Value;

/// Rows that every machine can run.
const ROWS: [&str; 46] = [
    "tsc",
    "ring_floor",
    "write_floor",
    "write_new_pages",
    "ring_emit",
    "ring_emit_two_ids",
    "ring_emit_cold",
    "ring_emit_disabled",
    "ring_emit_2threads",
    "event_instructions",
    "event_instructions_off",
    "tracing_span",
    "tracing_span_fmt",
    "ring_drain",
    "ring_drain_file",
    "drain_hostile",
    "device_reference_point",
    "vfio_user_null",
    "vfio_user_point",
    "restore",
    "idle_cpu",
    "trace_disabled",
    "trace_session_burst",
    "trace_simple_burst",
    "trace_session_sustained",
    "trace_simple_sustained",
    "session_create",
    "trace_2threads",
    "trigger_match",
    "trigger_miss",
    "user_commit",
    "handshake_floor",
    "user_acknowledged",
    "handshake_asleep_floor",
    "user_acknowledged_asleep",
    "poll_floor",
    "user_idle_cpu",
    "user_busy_cpu",
    "sigsegv_2016",
    "regions",
    "regions_whom",
    "regions_path",
    "compare_false_alarms",
    "compare_false_alarms_at_5",
    "compare_coverage",
    "compare_power",
];
/// Rows that need root and the kernel's tracing, another tracer, KVM or an emulator.
const OTHERS: [(&str, &str); 25] = [
    ("trace_session_lttng", "lttng-ust"),
    ("trace_simple_lttng", "lttng-ust"),
    ("lttng_ust", "lttng-ust"),
    ("trace_marker_floor", "tracefs"),
    ("trace_ftrace", "tracefs"),
    ("uprobe", "tracefs"),
    ("sdt_bpftrace", "bpftrace"),
    ("uftrace_pg", "uftrace"),
    ("kvm_exit_null", "kvm"),
    ("kvm_reference_point", "kvm"),
    ("kvm_reference_point_2vcpu", "kvm"),
    ("record_cost", "kvm"),
    ("record_switch", "tracefs"),
    ("report_trace_dat", "trace-cmd"),
    ("bar_move", "kvm"),
    ("kvm_ring_emit", "kvm"),
    ("qemu_plugin_floor", QEMU),
    ("qemu_marked_store", QEMU),
    ("qemu_marked_store_2016", QEMU),
    ("qemu_reference_point", QEMU),
    ("qemu_bystander", QEMU),
    ("c_emit", "cc"),
    ("c_disabled", "cc"),
    ("c_function_call", "cc"),
    ("c_function_call_off", "cc"),
];
const QEMU: &str = "qemu-x86_64";
/// Rows in a Linux guest.
const LINUX: [&str; 6] = [
    "linux_ring_emit_sysfs",
    "linux_ring_emit_ivshmem",
    "linux_socket_messages",
    "shared_file_point",
    "shared_file_point_idle",
    "shared_file_point_awake",
];
/// Rows of function traces that need a kernel.
const BOOTS: [(&str, &str); 3] = [
    ("functions_boot_x86", "needs --linux-guest KERNEL"),
    ("functions_off", "needs --linux-guest KERNEL"),
    ("functions_boot_aarch64", "needs --aarch64-guest KERNEL"),
];
/// A row of function traces that needs qemu-user.
const FUNCTIONS_USER: &str = "functions_user";
/// A row in a Linux guest with the kernel module.
const LINUX_MODULE: &str = "linux_ring_emit_module";

/// Rows that need the command beside this program.
const EXPORTS: [&str; 5] = [
    "export_json",
    "export_json_bytes",
    "export_perfetto",
    "export_perfetto_bytes",
    "perfetto_event",
];

/// Runs each of these rows once. `rows` may also contain options.
fn report(bench: &mut Command, rows: &[impl AsRef<OsStr>]) -> Value {
    let output = bench.args(["--runs", "1", "--json"]).args(rows).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

fn row<'r>(report: &'r Value, name: &str) -> &'r Value {
    let rows = report["rows"].as_array().unwrap();
    rows.iter().find(|row| row["name"] == name).unwrap()
}

fn is_measured(row: &Value) -> bool {
    if row["ns"].is_null() {
        return false;
    }
    assert!(row["ns"].as_f64().is_some(), "{row}");
    assert_eq!(row["runs"], 1, "{row}");
    let compared = row["floor"].is_string();
    assert_eq!(row["ratio"].is_number(), compared, "{row}");
    assert_eq!(row["met"].is_boolean(), row["target"].is_string(), "{row}");
    true
}

fn is_missing(row: &Value) -> bool {
    let why = row["note"].as_str().unwrap().strip_prefix("not measured: ");
    ["ns", "ratio", "iqr", "met"].iter().all(|field| row[field].is_null())
        && why.is_some_and(|why| !why.is_empty())
}

#[test]
fn rows_have_times_ratios_and_verdicts() {
    let report = report(&mut Command::new(env!("CARGO_BIN_EXE_hypertrace-bench")), &ROWS);

    assert!(report["machine"]["cpus"].as_u64().unwrap() > 0);
    assert!(!report["machine"]["cpus_share"].as_str().unwrap().is_empty());
    for name in ROWS {
        assert!(is_measured(row(&report, name)), "{report}");
    }
}

#[test]
fn a_row_that_the_machine_cannot_run_gives_the_reason() {
    let names = OTHERS.map(|(name, _)| name);
    let mut bench = Command::new(env!("CARGO_BIN_EXE_hypertrace-bench"));
    let report = report(&mut bench, &names);

    for (name, needed) in OTHERS {
        let row = row(&report, name);
        if is_measured(row) {
            capability::used(needed);
        } else {
            assert!(is_missing(row), "{row}");
            // These rows need nothing but the emulator.
            assert!(needed != QEMU || capability::on_path(QEMU).is_none(), "{row}");
            capability::missing(needed, row["note"].as_str().unwrap());
        }
    }
}

#[test]
fn without_other_programs_their_rows_are_not_measured() {
    let mut bench = Command::new(env!("CARGO_BIN_EXE_hypertrace-bench"));

    // These rows need the kernel alone.
    let is_alone = |name: &str, needed: &str| needed == "kvm" || name == "record_switch";
    let others = OTHERS.iter().filter(|(name, needed)| !is_alone(name, needed));
    let names: Vec<&str> = others.map(|(name, _)| *name).collect();
    let report = report(bench.env("PATH", "/nowhere"), &names);

    for name in names {
        assert!(is_missing(row(&report, name)), "{report}");
    }
}

#[test]
fn rows_in_a_linux_guest_are_measured_with_a_kernel() {
    let Some(linux) = Linux::find() else { return };
    let module = Module::build(&linux);
    let files = module.as_ref().map(Module::files);
    let mut args = Vec::from(LINUX.map(OsStr::new));
    args.extend(["--qemu".as_ref(), linux.qemu.as_os_str()]);
    args.extend(["--linux-guest".as_ref(), linux.kernel.as_os_str()]);
    if let Some([(_, file), _]) = &files {
        args.extend([LINUX_MODULE, "--linux-module"].map(OsStr::new));
        args.push(file.as_os_str());
    }
    let report = report(&mut Command::new(env!("CARGO_BIN_EXE_hypertrace-bench")), &args);

    for name in LINUX {
        assert!(is_measured(row(&report, name)), "{report}");
    }
    Linux::used();
    if let Some(module) = module {
        assert!(is_measured(row(&report, LINUX_MODULE)), "{report}");
        module.used();
    }
}

#[test]
fn rows_in_a_linux_guest_name_the_options_that_they_need() {
    let mut bench = Command::new(env!("CARGO_BIN_EXE_hypertrace-bench"));

    let report = report(&mut bench, &["linux_", "shared_file_"]);

    for name in LINUX.into_iter().chain([LINUX_MODULE]) {
        let row = row(&report, name);
        assert!(is_missing(row), "{row}");
        assert!(row["note"].as_str().unwrap().contains("needs --linux-guest KERNEL"), "{row}");
    }
}

#[test]
fn rows_of_boots_name_the_options_that_they_need() {
    let mut bench = Command::new(env!("CARGO_BIN_EXE_hypertrace-bench"));

    let report = report(&mut bench, &BOOTS.map(|(name, _)| name));

    for (name, needed) in BOOTS {
        let row = row(&report, name);
        assert!(is_missing(row) && row["note"].as_str().unwrap().contains(needed), "{row}");
    }
}

#[test]
fn a_boot_with_a_function_trace_is_measured_and_names_qemu_and_the_kernel() {
    let Some(linux) = Linux::find() else { return };
    let name = BOOTS[0].0;
    let mut args = vec![OsStr::new(name), "--qemu".as_ref(), linux.qemu.as_os_str()];
    args.extend(["--linux-guest".as_ref(), linux.kernel.as_os_str()]);

    let report = report(&mut Command::new(env!("CARGO_BIN_EXE_hypertrace-bench")), &args);

    let row = row(&report, name);
    assert!(is_measured(row), "{row}");
    let note = row["note"].as_str().unwrap();
    assert!(note.contains("; QEMU 1") && note.contains(", vmlinuz-"), "{row}");
    Linux::used();
}

#[test]
fn a_program_with_a_function_trace_is_measured_or_gives_the_reason() {
    let report =
        report(&mut Command::new(env!("CARGO_BIN_EXE_hypertrace-bench")), &[FUNCTIONS_USER]);

    let row = row(&report, FUNCTIONS_USER);
    if is_measured(row) {
        assert!(row["note"].as_str().unwrap().contains("; QEMU "), "{row}");
        capability::used(QEMU);
    } else {
        assert!(is_missing(row) && capability::on_path(QEMU).is_none(), "{row}");
        capability::missing(QEMU, row["note"].as_str().unwrap());
    }
}

#[test]
fn exports_are_measured_or_name_the_command_that_they_need() {
    let mut bench = Command::new(env!("CARGO_BIN_EXE_hypertrace-bench"));

    let report = report(bench.args(["--export-events", "2000"]), &EXPORTS);

    for name in EXPORTS {
        let row = row(&report, name);
        let is_missing =
            || is_missing(row) && row["note"].as_str().unwrap().contains("-p hypertrace-cli");
        assert!(is_measured(row) || is_missing(), "{row}");
    }
}

#[test]
fn every_row_is_tested() {
    let mut bench = Command::new(env!("CARGO_BIN_EXE_hypertrace-bench"));
    let output = bench.arg("--list").output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();

    let entries = text.lines().filter(|line| !line.starts_with([' ', '#']));
    let mut known: Vec<&str> = entries.map(|line| line.split(' ').next().unwrap()).collect();
    let others = OTHERS.map(|(name, _)| name);
    let boots = BOOTS.map(|(name, _)| name);
    let mut tested =
        [&ROWS[..], &EXPORTS, &others, &LINUX, &boots, &[FUNCTIONS_USER, LINUX_MODULE]].concat();

    known.sort_unstable();
    tested.sort_unstable();
    assert_eq!(known, tested);
}

#[test]
fn an_unknown_row_is_wrong_usage() {
    let output =
        Command::new(env!("CARGO_BIN_EXE_hypertrace-bench")).arg("nosuch").output().unwrap();

    assert_eq!(output.status.code(), Some(2));
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(text.contains("no row \"nosuch\": --list prints all"), "{text}");
}
