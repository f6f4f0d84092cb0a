//! The few jobs that cargo cannot do: the whole test run, tests at full size, fetching the programs that
//! tests need, and the C header.

mod apt;
mod book;
mod command;
mod constants;
mod fetch;
mod full;
mod header;
mod install;
mod lines;
mod mutants;
mod notes;
mod package;
mod probe;
#[cfg(test)]
mod registry;
mod step;
mod suite;
mod tree;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{Parser, Subcommand};

/// The few jobs that cargo cannot do for hypertrace
///
/// Before a change: `cargo xtask test -p CRATE`. Before you hand in the change: `cargo xtask test`.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Arguments {
    #[command(subcommand)]
    job: Job,
}

#[derive(Subcommand)]
enum Job {
    /// Run formatting, lints, all tests and the documentation; or the tests of some crates
    ///
    /// Fetches missing programs into a cache folder ($XDG_CACHE_HOME/hypertrace, ~/.cache/hypertrace); needs
    /// no root and installs nothing. At the end, prints a table of the capabilities of this machine that
    /// tests used, a table of the steps, and the failures.
    Test(suite::Options),
    /// Run the checks that take long: kills, storms, failing disks and fuzz targets at full size, Miri,
    /// AddressSanitizer
    ///
    /// If a variable HYPERTRACE_.. is set, then it keeps its value, so that you can choose any size. Takes an
    /// hour or two, and some GB in the temporary folder.
    Full(full::Options),
    /// Remove the defences of docs/threat-model.md one by one, and run the tests that must fail without the
    /// defence
    ///
    /// Works in a copy of the tree, in the target folder. The defences are the `mutants` in
    /// tests/threat-model.toml.
    Mutants(mutants::Options),
    /// Make the files of C that come from Rust: headers in guest-lib/include
    Header,
    /// Make the pages of the book, in target/book-pages; `mdbook build` makes HTML of the pages
    Book,
    /// Count the lines of code of each folder, without comments, blank lines and tests
    Lines,
    /// Build the C library, and install it with its headers and files for pkg-config and CMake
    InstallC(install::Options),
    /// Make the packages for users: Debian's, archives of programs that need no library, a wheel
    Package(package::Options),
    /// Fetch the programs that tests run, without installing them, and print their paths
    Fetch {
        /// Programs to fetch (default: all)
        #[arg(value_parser = fetch::find)]
        programs: Vec<&'static fetch::Tool>,
    },
}

fn main() -> ExitCode {
    match run(Arguments::parse().job) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(job: Job) -> Result<bool> {
    match job {
        Job::Test(options) => suite::run(&root()?, &options),
        Job::Full(options) => full::run(&root()?, &options),
        Job::Mutants(options) => mutants::run(&root()?, &options),
        Job::Header => header::write(&root()?).map(|()| true),
        Job::Book => book::write(&root()?).map(|()| true),
        Job::Lines => lines::print(&root()?).map(|()| true),
        Job::InstallC(options) => install::run(&root()?, &options).map(|()| true),
        Job::Package(options) => package::run(&root()?, &options).map(|()| true),
        Job::Fetch { programs } => {
            let all = fetch::tools().iter().collect();
            let tools = if programs.is_empty() { all } else { programs };
            let mut fetched = fetch::fetch(&tools);
            for tool in tools {
                let Some(folder) = fetched.remove(tool.name.as_str()) else { continue };
                let folder = folder.with_context(|| format!("cannot fetch {}", tool.name))?;
                tool.names().for_each(|name| println!("{}", folder.join(name).display()));
            }
            Ok(true)
        }
    }
}

/// Returns the root of the source tree. At run time, cargo sets `CARGO_MANIFEST_DIR` to the present path of
/// this package.
fn root() -> Result<PathBuf> {
    let package = std::env::var_os("CARGO_MANIFEST_DIR")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
    let root = package.ancestors().nth(2).context("the xtask package is not in tools/xtask")?;
    Ok(root.to_path_buf())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn a_job_of_a_workflow_is_one_line_that_a_contributor_can_type() {
        let workflows = tree::entries(&root().unwrap().join(".github/workflows")).unwrap();
        let mut lines = Vec::new();
        for file in &workflows {
            let text = fs::read_to_string(file).unwrap();
            lines.extend(
                text.lines()
                    .filter_map(|line| line.trim().strip_prefix("- run: "))
                    .map(str::to_owned),
            );
        }
        assert!(lines.len() >= workflows.len(), "{lines:?}");
        for line in &lines {
            let (program, rest) = line.split_once(' ').expect(line);
            assert!(["cargo", "mdbook", "gh"].contains(&program), "{line}");
            if let Some(job) = rest.strip_prefix("xtask ") {
                let words = ["cargo xtask"].into_iter().chain(job.split_whitespace());
                Arguments::try_parse_from(words).unwrap_or_else(|error| panic!("{line}: {error}"));
            }
        }
        // The script `.ci/run` has to run the same job as the workflow.
        let own = fs::read_to_string(root().unwrap().join(".ci/run")).unwrap();
        assert!(lines.iter().any(|line| own.contains(line)), "{own}");
    }
}
