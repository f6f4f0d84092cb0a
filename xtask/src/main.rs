//! The few jobs cargo cannot do: the whole test run, tests at full size, fetching the programs that they need, the C
//! header.

mod apt;
mod fetch;
mod full;
mod header;
mod notes;
mod probe;
mod soak;
mod step;
mod suite;
mod words;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{Parser, Subcommand};

/// The few jobs that cargo cannot do for hypertrace
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Arguments {
    #[command(subcommand)]
    job: Job,
}

#[derive(Subcommand)]
enum Job {
    /// Run every test there is, and say what this machine could not show
    ///
    /// Fetches the programs that are not here into a cache folder ($XDG_CACHE_HOME/hypertrace, ~/.cache/hypertrace);
    /// needs no root and installs nothing. Ends with a table of capabilities: here or not, used by a test or not.
    Test(suite::Options),
    /// Run the tests that kill and those of four threads at full size, and print what became of each
    ///
    /// A hundred kills each; a million events and ten thousand points of each strength in each of four threads, in
    /// Rust and in C, natively and under emulators. Some minutes, some GB below the temporary folder.
    Full(full::Options),
    /// Trace everything at full rate to slow disks for long, and print what became of it
    ///
    /// Fails unless each backend recorded or dropped exactly what was emitted to it, and memory stayed flat.
    Soak(soak::Options),
    /// Make guest-lib/include/hypertrace.h from the C library's source
    Header,
    /// Find words in comments and documents that read badly
    Words,
    /// Fetch the programs that tests run, without installing them, and print where they are
    Fetch {
        /// Which ones; all when none is named
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
        Job::Soak(options) => soak::run(&root()?, &options),
        Job::Header => header::write(&root()?).map(|()| true),
        Job::Words => words::check(&root()?),
        Job::Fetch { programs } => {
            let all = fetch::TOOLS.iter().collect();
            for tool in if programs.is_empty() { all } else { programs } {
                let folder = fetch::fetched(tool)?;
                for (name, ..) in tool.programs {
                    println!("{}", folder.join(name).display());
                }
            }
            Ok(true)
        }
    }
}

/// The root of the source tree. Cargo says at run time where this package stands now.
fn root() -> Result<PathBuf> {
    let package = std::env::var_os("CARGO_MANIFEST_DIR")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
    let root = package.parent().context("the xtask package has no parent folder")?;
    Ok(root.to_path_buf())
}
