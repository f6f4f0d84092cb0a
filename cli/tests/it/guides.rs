//! The commands of README.md and of the guides, run unchanged.

use std::fmt::Write;
use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use hypertrace_tests::command::{Ran, run};
use hypertrace_tests::linux::static_program;
use hypertrace_tests::{build, capability, kvm};
use tempfile::TempDir;

/// Folder in which the commands of one page run.
struct Place {
    folder: TempDir,
    /// Folder of this build's programs.
    programs: PathBuf,
}

impl Place {
    fn new() -> Place {
        let programs = Path::new(env!("CARGO_BIN_EXE_hypertrace")).parent().unwrap();
        let place = Place { folder: tempfile::tempdir().unwrap(), programs: programs.to_owned() };
        fs::create_dir(place.path().join("programs")).unwrap();
        place.write("cargo", &cargo(programs));
        place.write("less", "exec cat\n");
        // The commands find this build's programs at `target/release`, as after a release build.
        fs::create_dir(place.path().join("target")).unwrap();
        symlink(programs, place.path().join("target/release")).unwrap();
        symlink(build::root(), place.path().join("hypertrace")).unwrap();
        place
    }

    fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Writes a program that the commands find before other programs of the same name.
    fn write(&self, name: &str, script: &str) {
        let path = self.path().join("programs").join(name);
        fs::write(&path, format!("#!/bin/sh\n{script}")).unwrap();
        fs::set_permissions(path, Permissions::from_mode(0o755)).unwrap();
    }

    /// Runs a script, which must succeed. Returns what the script printed, or reports that this machine has
    /// no scheduling events.
    #[track_caller]
    fn run(&self, script: &str) -> Option<Ran> {
        let mut shell = Command::new("sh");
        shell.args(["-e", "-x", "-c", script]).current_dir(self.path());
        let path = std::env::var("PATH").unwrap();
        let ours =
            [&self.path().join("programs"), &self.programs].map(|path| path.display().to_string());
        shell.env("PATH", format!("{}:{path}", ours.join(":")));
        shell.env("CARGO_NET_OFFLINE", "true").env_remove("CARGO_TARGET_DIR");
        let ran = run(&mut shell);
        if ran.stderr.contains("perf_event_open") {
            capability::missing("perf", ran.stderr);
            return None;
        }
        assert_eq!(ran.code, Some(0), "{ran:?}");
        Some(ran)
    }
}

/// Returns a `cargo` for the commands. This `cargo` installs nothing, because the command is on the path. For
/// builds, this `cargo` uses the tree with the profile and the features of the tests, and keeps the build of
/// a page's own project. Each benchmark runs once, as criterion runs benchmarks in `cargo test`.
fn cargo(programs: &Path) -> String {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".into());
    let profile = match programs.file_name().unwrap().to_str().unwrap() {
        "debug" => "dev",
        profile => profile,
    };
    let (root, target) = (build::root().display(), build::target_folder());
    let options = format!(
        "--quiet --locked --all-features --profile {profile} --target-dir '{}'",
        target.display()
    );
    format!(
        "case \"$*\" in
        'install --path cli') exit 0 ;;
        'build --release -p hypertrace --example lookups' | 'build --quiet --release -p hypertrace --example lookups')
            cd '{root}'; exec '{cargo}' build {options} -p hypertrace --example lookups ;;
        'build --quiet --release -p hypertrace-c' | 'build --quiet --locked --release --package hypertrace-c '*)
            cd '{root}'; exec '{cargo}' build --quiet --locked --release -p hypertrace-c --target-dir '{target}' ;;
        'bench -p hypertrace-benchmark '*) shift 3; cd '{root}'; exec '{cargo}' test {options} --workspace \"$@\" ;;
        'new --quiet program' | 'add --quiet '*) exec '{cargo}' \"$@\" ;;
        'build --quiet') mkdir -p '{target}/guides'; ln -s '{target}/guides' target; exec '{cargo}' build --quiet ;;
        *) exit 99 ;;
        esac\n",
        target = target.display()
    )
}

/// Returns the blocks of a page in these languages, each with its section.
fn blocks<'a>(page: &'a str, languages: &[&str]) -> Vec<(&'a str, &'a str, String)> {
    let (mut section, mut language, mut blocks) = ("", None, Vec::new());
    for line in page.lines() {
        match (line.strip_prefix("```"), language) {
            (Some(next), None) => {
                language = Some(next);
                blocks.push((section, next, String::new()));
            }
            (Some(_), Some(_)) => language = None,
            (None, Some(_)) => writeln!(blocks.last_mut().unwrap().2, "{line}").unwrap(),
            (None, None) => section = line.strip_prefix("## ").unwrap_or(section),
        }
    }
    blocks.retain(|(_, language, _)| languages.contains(language));
    blocks
}

fn page(name: &str) -> String {
    fs::read_to_string(build::root().join(name)).unwrap()
}

/// Returns the commands of a page as one script.
fn commands(name: &str) -> String {
    blocks(&page(name), &["sh"]).into_iter().map(|(.., commands)| commands).collect()
}

#[test]
fn the_commands_of_the_front_page_work() {
    let place = Place::new();

    let Some(ran) = place.run(&commands("README.md")) else { return };

    assert!(ran.stdout.contains("look_up: 4,000 regions\n"), "{ran:?}");
    assert!(place.path().join("batch.html").exists(), "{ran:?}");
}

#[test]
fn the_commands_of_the_tutorial_work() {
    let place = Place::new();

    let Some(ran) = place.run(&commands("docs/tutorial.md")) else { return };

    assert!(ran.stdout.contains("look_up: 4,000 regions\n"), "{ran:?}");
    assert!(ran.stdout.contains(" load_begin "), "{ran:?}");
    // The page shows the lines of the program itself.
    let program = page("guest-lib/examples/lookups.rs");
    for (.., code) in blocks(&page("docs/tutorial.md"), &["rust"]) {
        assert!(program.contains(&code), "{code}");
    }
}

#[test]
fn the_program_of_the_guide_for_rust_is_traced() {
    let place = Place::new();
    let guide = page("docs/rust.md");
    let as_script = |(_, language, block): (&str, &str, String)| match language {
        "rust" => format!("cat >src/main.rs <<'END'\n{block}END\n"),
        _ => block,
    };
    let script: String = blocks(&guide, &["sh", "rust"]).into_iter().map(as_script).collect();

    let Some(ran) = place.run(&script) else { return };

    assert!(ran.stdout.contains("read: 1,000 regions\n"), "{ran:?}");
}

/// Returns a folder beside a clone of this tree. The clone's `target` is the folder that the tests use.
fn beside_a_clone(place: &Place) -> &'static str {
    let clone = place.path().join("hypertrace");
    fs::remove_file(&clone).unwrap();
    fs::create_dir(&clone).unwrap();
    for entry in fs::read_dir(build::root()).unwrap().map(Result::unwrap) {
        if entry.file_name() != "target" {
            symlink(entry.path(), clone.join(entry.file_name())).unwrap();
        }
    }
    symlink(build::target_folder(), clone.join("target")).unwrap();
    fs::create_dir(place.path().join("project")).unwrap();
    "project"
}

/// Returns a section's blocks as a script: the files that a line before a block names, and the commands.
fn files_and_commands(name: &str, of: &str) -> String {
    let page = page(name);
    let (mut section, mut file, mut inside, mut script) = ("", None, None, String::new());
    for line in page.lines() {
        match (line.strip_prefix("```"), inside) {
            (Some(language), None) => {
                inside = Some(match (language, file.take()) {
                    _ if section != of => None,
                    ("sh", _) => Some(""),
                    (_, Some(file)) => {
                        writeln!(script, "cat >{file} <<'END'").unwrap();
                        Some("END\n")
                    }
                    _ => None,
                });
            }
            (Some(_), Some(end)) => {
                script += end.unwrap_or_default();
                inside = None;
            }
            (None, Some(Some(_))) => writeln!(script, "{line}").unwrap(),
            (None, Some(None)) => {}
            (None, None) => {
                section = line.strip_prefix("## ").unwrap_or(section);
                let named = line.strip_prefix('`').and_then(|line| line.strip_suffix("`:"));
                file = named.or(file.filter(|_| line.is_empty()));
            }
        }
    }
    script
}

#[test]
fn the_programs_of_the_guide_for_c_and_cxx_are_traced() {
    let place = Place::new();
    let project = beside_a_clone(&place);
    let run =
        |section| place.run(&format!("cd {project}\n{}", files_and_commands("docs/c.md", section)));
    if capability::program("gcc").is_some() {
        let Some(ran) = run("") else { return };
        assert!(ran.stdout.contains("\nread_disk: 1,000 regions\n"), "{ran:?}");
        // The second script traces the same program function by function.
        let Some(traced) = run("Function traces") else { return };
        assert!(traced.stdout.contains("       1000  read_disk\n"), "{traced:?}");
        assert!(place.path().join("project/U/info").exists(), "{traced:?}");
        assert!(ran.stdout.contains(" sectors  ") && ran.stdout.contains(" len=4096"), "{ran:?}");
        capability::used("gcc");
    }
    if ["cmake", "g++"].map(capability::program).iter().all(Option::is_some) {
        let Some(ran) = run("C++ and CMake") else { return };
        assert!(ran.stdout.contains("\nparse: 1,000 regions\n"), "{ran:?}");
        capability::used("cmake");
    }
}

#[test]
fn the_program_of_the_guide_for_python_is_traced() {
    let Some(_) = capability::program("python3") else { return };
    let place = Place::new();
    let project = beside_a_clone(&place);
    // pip would fetch build tools and build the package, which `python::pip_installs_the_folder` tests.
    place.write("pip", "[ -e \"$3/pyproject.toml\" ]");
    let bindings = build::root().join("bindings/python");
    let script = format!(
        "cd {project}
        export PYTHONPATH={} PYTHONDONTWRITEBYTECODE=1
        {}",
        bindings.display(),
        files_and_commands("docs/python.md", "")
    );

    let Some(ran) = place.run(&script) else { return };

    assert!(ran.stdout.contains("\nrequest: 100 regions\n"), "{ran:?}");
    assert!(ran.stdout.contains(" fetched ") && ran.stdout.contains(" path=\"/index\""), "{ran:?}");
    capability::used("python3");
}

#[test]
fn the_programs_of_the_guide_for_other_languages_are_traced() {
    let says = |program: &str, arguments: &[&str]| {
        let found = capability::on_path(program).and_then(|program| {
            let output = Command::new(program).args(arguments).output().ok()?;
            output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
        });
        found.ok_or_else(|| format!("`{program} {}` does not succeed", arguments.join(" ")))
    };
    let is_22 = |text: String| {
        let major = text.split([' ', '.']).nth(1).and_then(|major| major.parse().ok());
        if major >= Some(22) { Ok(text) } else { Err(format!("older than 22: {text}")) }
    };
    let languages = [
        ("Go", "go", says("go", &["version"])),
        ("Java", "java-22", says("java", &["--version"]).and_then(is_22)),
        ("Node", "node-koffi", says("node", &["-e", "require('koffi')"])),
    ];
    for (section, name, found) in languages {
        if let Err(why) = found {
            capability::missing(name, why);
            continue;
        }
        let place = Place::new();
        let project = beside_a_clone(&place);
        let page = "docs/languages.md";
        let script = files_and_commands(page, "") + &files_and_commands(page, section);
        let Some(ran) = place.run(&format!("cd {project}\n{script}")) else { return };
        assert!(
            ran.stdout.contains("\nload: 1,000 regions\n")
                || ran.stdout.starts_with("load: 1,000 regions\n"),
            "{ran:?}"
        );
        capability::used(name);
    }
}

#[test]
fn the_marks_of_the_guide_for_scripts_are_recorded() {
    let place = Place::new();
    symlink(static_program("hypertrace-mark"), place.path().join("programs/hypertrace-mark"))
        .unwrap();
    fs::write(place.path().join("script"), commands("docs/shell.md")).unwrap();
    let guide = page("docs/shell.md");
    let (.., then) = &blocks(&guide, &["console"])[0];

    let ran = place.run(&then.replace("$ ", "")).unwrap();

    assert!(ran.stdout.contains(" mounted  "), "{ran:?}");
    assert!(ran.stdout.contains("\nnetwork: 1 region\n"), "{ran:?}");
    assert!(ran.stdout.contains("boot_done to mounted: 1 region\n"), "{ran:?}");
}

#[test]
fn the_commands_of_the_guide_for_services_work() {
    let place = Place::new();
    let mark = static_program("hypertrace-mark").display().to_string();
    place.write("service", &format!("'{mark}' --begin job\n'{mark}' --end job\n"));
    symlink("programs/service", place.path().join("service")).unwrap();
    // Each run of this test uses its own segment.
    let segment = place.path().join("web.ht").display().to_string();
    let script = commands("docs/services.md").replace("/dev/shm/web.ht", &segment);

    let ran = place.run(&script).unwrap();

    assert!(ran.stdout.contains("job: 1 region\n"), "{ran:?}");
}

#[test]
fn the_commands_of_the_guide_for_benchmarks_work() {
    let place = Place::new();
    let guide = page("docs/benchmarking.md");
    let has_kvm = kvm::is_usable();
    let blocks = blocks(&guide, &["sh"]);
    assert!(blocks.len() > 2, "{blocks:?}");
    for (section, _, commands) in blocks {
        if section == "In a guest" && !has_kvm {
            continue;
        }
        let Some(ran) = place.run(&commands) else { return };
        let shown = commands.contains("hypertrace regions") && !commands.contains(" > ");
        assert!(!shown || ran.stdout.contains(": 1 region\n"), "{commands}: {ran:?}");
    }
    if has_kvm {
        capability::used("kvm");
    }
}

#[test]
fn the_commands_of_the_guide_for_comparisons_work() {
    let place = Place::new();

    let Some(ran) = place.run(&commands("docs/compare.md")) else { return };

    // The page compares the sessions right after their recording, and then once more from the directory that
    // keeps them.
    assert_eq!(
        ran.stdout.matches("\n  24,000 regions of 6 runs, 24,000 of 6\n").count(),
        2,
        "{ran:?}"
    );
}

#[test]
fn the_commands_of_the_guide_for_many_sessions_work() {
    let Some(python) = capability::program("python3-duckdb") else { return };
    let place = Place::new();
    place.write("pip", "");
    // The page starts `python3`, which may be another Python than `python`.
    let path = std::env::var("PATH").unwrap();
    place.write("python3", &format!("PATH='{path}' exec '{}' \"$@\"\n", python.display()));

    let Some(ran) = place.run(&commands("examples/fleet/README.md")) else { return };

    // All answers come once from CSV and once from Parquet.
    let answers: Vec<&str> = ran.stdout.split("name,host,build,regions,p50_ns,p99_ns\n").collect();
    assert_eq!(answers.len(), 3, "{ran:?}");
    assert!(answers[1].contains(",1.0,4000,"), "two sessions: {ran:?}");
    assert!(answers[1].contains("host,runnable\n"), "{ran:?}");
    assert!(answers[1].starts_with(answers[2]), "{ran:?}");
    capability::used("python3-duckdb");
}
