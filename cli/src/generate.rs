//! `hypertrace completions` and `hypertrace man`: write what shells and man(1) read about the command line.

use crate::output::print;
use anyhow::{Context, Result};
use clap::Command;
use hypertrace_format::folder::{Folder, Share};
use std::path::PathBuf;

/// Print the completions for a shell
///
/// For bash: hypertrace completions bash >
/// ~/.local/share/bash-completion/completions/hypertrace
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub struct Completions {
    /// The shell
    #[arg(value_name = "SHELL", value_enum)]
    shell: clap_complete::Shell,
}

/// Write the man pages of all commands into a directory
#[derive(Debug, clap::Args)]
pub struct Man {
    /// Directory for the pages. The command creates the directory if it does not exist
    #[arg(value_name = "DIR")]
    dir: PathBuf,
}

/// Prints completions.
pub fn completions(args: &Completions, mut command: Command) -> Result<()> {
    let mut text = Vec::new();
    clap_complete::generate(args.shell, &mut command, "hypertrace", &mut text);
    print(String::from_utf8_lossy(&text))
}

/// Writes man pages.
pub fn man(args: &Man, command: Command) -> Result<()> {
    let failed = || format!("cannot write man pages to {}", args.dir.display());
    let folder = match Folder::open_own(&args.dir, Share::All).with_context(failed)? {
        Some(folder) => folder,
        None => Folder::create_path(&args.dir, Share::All).with_context(failed)?,
    };
    let mut command = command.disable_help_subcommand(true);
    command.build();
    let mut left = vec![command];
    while let Some(command) = left.pop() {
        left.extend(command.get_subcommands().filter(|command| !command.is_hide_set()).cloned());
        let page = clap_mangen::Man::new(command);
        let mut text = Vec::new();
        page.render(&mut text).with_context(failed)?;
        folder.replace(&page.get_filename(), &text).with_context(failed)?;
    }
    Ok(())
}
