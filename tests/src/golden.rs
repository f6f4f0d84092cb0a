//! Golden files with everything that commands print.

use std::fmt::Write;
use std::os::unix::fs::symlink;
use std::panic::Location;
use std::path::Path;

use snapbox::assert::DEFAULT_ACTION_ENV;
use snapbox::{Assert, Data};

use crate::build::root;
use crate::command::{Hypertrace, run};

impl Hypertrace {
    /// Runs commands in a folder and returns everything that they print, with `$` before a command, `!`
    /// before a line of stderr, and the exit code if it is not 0.
    #[track_caller]
    pub fn transcript_in(&self, folder: &Path, commands: &[&str]) -> String {
        let mut text = String::new();
        for command in commands {
            let mut ran = self.command(command.split_whitespace());
            // These variables set the width and colours of a terminal.
            let ran = ran.current_dir(folder).env_remove("COLUMNS").env_remove("CLICOLOR_FORCE");
            let ran = run(ran);
            writeln!(text, "$ hypertrace {}", command.escape_debug()).unwrap();
            text += &ran.stdout;
            ran.stderr.lines().for_each(|line| writeln!(text, "! {line}").unwrap());
            if let Some(code @ 1..) = ran.code {
                writeln!(text, "exit code {code}").unwrap();
            }
            assert!(ran.code.is_some(), "{ran:?}");
        }
        text
    }

    /// Runs commands as [`Hypertrace::transcript_in`] does, in a folder in which these directories are `S`,
    /// `T` and `U`.
    #[track_caller]
    pub fn transcript<P: AsRef<Path>>(&self, dirs: &[P], commands: &[&str]) -> String {
        let folder = tempfile::tempdir().unwrap();
        for (dir, name) in dirs.iter().zip(["S", "T", "U"]) {
            symlink(dir, folder.path().join(name)).unwrap();
        }
        self.transcript_in(folder.path(), commands)
    }
}

/// Compares a text with the golden file `tests/golden/MODULE/NAME.txt` in the crate of the calling test. In
/// this file, `[..]` stands for any text. With `SNAPSHOTS=overwrite` in the environment, writes the file
/// instead.
#[track_caller]
pub fn golden(name: &str, text: String) {
    let test = root().join(Location::caller().file());
    let module = test.file_stem().unwrap();
    let folder = test.parent().unwrap().with_file_name("golden").join(module);
    let file = folder.join(name).with_extension("txt");
    let assert = Assert::new().action_env(DEFAULT_ACTION_ENV).normalize_paths(false);
    assert.eq(text, Data::read_from(&file, None));
}
