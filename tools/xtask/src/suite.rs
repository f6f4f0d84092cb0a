//! `cargo xtask test`: all steps of the test run or the steps of some crates, and the table of capabilities.

use std::path::Path;
use std::thread;

use anyhow::{Result, anyhow};

use crate::notes::{Notes, Required};
use crate::probe::{self, Machine};
use crate::step::{Limit, OK, Steps};

/// Options of the test run
#[derive(clap::Args)]
pub struct Options {
    /// Run only the tests and the lints of this crate (can be repeated)
    #[arg(short, long = "package", value_name = "CRATE")]
    packages: Vec<String>,

    /// Run only the tests of these crates whose names contain this text
    #[arg(requires = "packages")]
    test: Option<String>,

    /// Fail unless these capabilities were found and used by tests; `found`: all that were found
    #[arg(long, value_name = "NAME,..", value_delimiter = ',', value_parser = Required::parse)]
    require: Vec<Required>,

    #[command(flatten)]
    limit: Limit,
}

/// Clippy with the profile of the tests, so that the lints use the crates that the tests build.
const CLIPPY: &str = "cargo clippy --profile checked";

/// All tests, except for the model checks.
const TESTS: &str = "cargo test --profile checked --workspace --all-features";

/// Capabilities that an ordinary user may lack although the machine has them. The programs of some of these
/// capabilities are in sbin.
const PRIVILEGES: [&str; 6] =
    ["kvm", "tracefs", "bpftrace", "second-user", "pid-namespace", "dpkg"];

/// Modules with many slow tests that need none of these capabilities.
const SLOW: [&str; 4] = ["bench", "follow", "guides", "packages"];

/// Capabilities that the lints need.
const TOOLCHAIN: [&str; 3] = ["rustfmt", "clippy", "cargo-deny"];

/// Model checks of the ring. The model checks have their own target folder, because cargo builds all crates
/// anew for these checks.
pub const LOOM: &str = "RUSTFLAGS=--cfg=hypertrace_loom CARGO_TARGET_DIR=target/loom \
                        cargo test --profile checked -p hypertrace-abi-loom --test ring";

/// Runs all steps, even after a failure. Returns false if a step failed or a required capability was not
/// used.
///
/// # Errors
/// If the machine cannot run commands; a failed test is not an error.
pub fn run(root: &Path, options: &Options) -> Result<bool> {
    let some = !options.packages.is_empty();
    let names = match some {
        true => probe::named_in(root, &options.packages)?,
        false => probe::names().collect(),
    };
    let is_required = |name: &str| options.require.contains(&Required::Named(name.into()));
    let names = names.into_iter().filter(|name| !probe::is_of_full(name) || is_required(name));
    // The lints run while the programs for the tests are fetched, because the lints need no other
    // capabilities.
    let (toolchain, others) = names.partition::<Vec<_>, _>(|name| TOOLCHAIN.contains(name));
    let steps = Steps::begin(root, Machine::probe(&toolchain), options.limit)?;
    let mut suite = Suite { notes: Notes::default(), steps };
    thread::scope(|scope| {
        let others = scope.spawn(|| Machine::probe(&others));
        let linted = if some { Ok(()) } else { suite.lints() };
        let others = others.join().map_err(|_| anyhow!("the search for programs has panicked"))?;
        suite.steps.machine.join(others);
        linted
    })?;
    if some {
        let packages: String = options.packages.iter().map(|name| format!(" -p {name}")).collect();
        let test = options.test.as_deref().unwrap_or_default();
        suite.tests(&format!("cargo test --profile checked --all-features{packages} {test}"))?;
        let lints = format!("{CLIPPY} --all-targets --all-features{packages} -- -D warnings");
        suite.steps.check(&lints)?;
    } else {
        suite.tests(TESTS)?;
        suite.as_ordinary_user()?;
        suite.tests(LOOM)?;
        // Only libraries are documented, because the guest library and the program have the same name, and
        // would have the same pages. The C library is excluded for the same reason; the header is the C
        // library's documentation.
        let doc = "RUSTDOCFLAGS=-Dwarnings cargo doc --profile checked --workspace --no-deps \
                   --all-features --lib --exclude hypertrace-c";
        suite.steps.check(doc)?;
    }
    let Suite { notes, mut steps } = suite;
    let table = notes.table(&steps.machine.capabilities, some);
    if !table.is_empty() {
        println!("\n{table}");
    }
    notes.print_missing();
    let violations = notes.violations(&steps.machine.capabilities, &options.require);
    violations.into_iter().for_each(|violation| steps.fail(violation));
    Ok(steps.conclude())
}

struct Suite<'a> {
    notes: Notes,
    steps: Steps<'a>,
}

impl Suite<'_> {
    fn lints(&mut self) -> Result<()> {
        let [rustfmt, clippy, deny] = TOOLCHAIN;
        self.with(rustfmt, "cargo fmt --all --check")?;
        let all = format!("{CLIPPY} --workspace --all-targets --all-features -- -D warnings");
        self.with(clippy, &all)?;
        // These crates are checked separately and without `std`, as for a guest without an operating system.
        // Otherwise, cargo would turn on features that other crates need, and these features might hide
        // errors.
        let no_std = "--no-default-features -p hypertrace-abi -p hypertrace -- -D warnings";
        self.with(clippy, &format!("{CLIPPY} {no_std}"))?;
        // These crates are checked without default features, as in a VMM that has no declared events.
        let no_events =
            "--no-default-features -p hypertrace-trace -p vmm-shapes --tests -- -D warnings";
        self.with(clippy, &format!("{CLIPPY} {no_events}"))?;
        // Advisories are left out, because advisories change independently of this tree.
        self.with(deny, "cargo deny check bans licenses sources")
    }

    /// Runs a step that needs a part of the toolchain that may be missing.
    fn with(&mut self, capability: &str, line: &str) -> Result<()> {
        if let Err(why) = self.steps.machine.found(capability) {
            self.steps.skip(line, &why);
        } else if self.steps.check(line)? {
            self.notes.used_by_step(capability, line);
        }
        Ok(())
    }

    /// Runs some tests a second time, as an ordinary user: the tests of capabilities that an ordinary user
    /// lacks. Does nothing if this user is an ordinary user. Runs whole modules, because some tests use KVM
    /// without a report. Such a test is usually in a module with tests that do report their use of KVM.
    fn as_ordinary_user(&mut self) -> Result<()> {
        let is_found = |name| self.steps.machine.found(name).is_ok();
        if !rustix::process::geteuid().is_root() && !is_found("kvm") && !is_found("tracefs") {
            return Ok(());
        }
        let filters = Vec::from_iter(self.notes.filters(&PRIVILEGES, &SLOW));
        if filters.is_empty() {
            return Ok(());
        }
        let line = format!("{TESTS} --tests -- {}", filters.join(" "));
        let name = "tests of KVM, tracefs and root, as a user without these and sbin";
        match self.steps.machine.of_ordinary_user() {
            Err(why) => self.steps.skip(name, &format!("{why:#}")),
            Ok(machine) => {
                let machine = std::mem::replace(&mut self.steps.machine, machine);
                let ran = self.steps.test(name, &line)?;
                self.steps.machine = machine;
                let verdict = ran.verdict();
                self.steps.row(name, &ran, verdict, verdict == OK);
            }
        }
        Ok(())
    }

    fn tests(&mut self, line: &str) -> Result<()> {
        let mut ran = self.steps.test(line, line)?;
        self.notes.add(std::mem::take(&mut ran.notes));
        let verdict = ran.verdict();
        self.steps.row(line, &ran, verdict, verdict == OK);
        Ok(())
    }
}
