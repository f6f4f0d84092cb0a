//! Private mounts in the mount namespace of a child process. The kernel removes the mounts when the child
//! ends.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::capability;

const NAME: &str = "mount-namespace";

/// Options of unshare(1) for a namespace: as root, or as another user if the kernel allows this.
const WAYS: [&[&str]; 2] = [&["--mount"], &["--mount", "--user", "--map-root-user"]];

fn unshare(way: &[&str], script: &str) -> Command {
    let mut command = Command::new("unshare");
    command.args(way).args(["--propagation", "private", "sh", "-ec", script, "sh"]);
    command
}

/// File system that is reachable by this value's path only.
#[derive(Debug)]
pub struct Mount {
    path: PathBuf,
    holder: Child,
}

impl Mount {
    /// Mounts a file system of this type with these options. Returns `None`, with a report, if the file
    /// system cannot be mounted.
    pub fn new(kind: &str, options: &str) -> Option<Mount> {
        let tried = WAYS.map(|way| Mount::try_new(way, kind, options));
        let mut why = String::new();
        for tried in tried {
            match tried {
                Ok(mount) => {
                    capability::used(NAME);
                    return Some(mount);
                }
                Err(error) => why = error,
            }
        }
        capability::missing(NAME, format!("cannot mount a {kind} for a test alone: {why}"));
        None
    }

    fn try_new(way: &[&str], kind: &str, options: &str) -> Result<Mount, String> {
        // The holder lives until its stdin is closed; the kernel also closes the holder's stdin when a test
        // is killed.
        let script = r#"mount -t "$1" -o "$2" none /mnt && echo mounted && exec cat"#;
        let mut holder = unshare(way, script)
            .args([kind, options])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|error| format!("cannot start unshare: {error}"))?;
        let mut said = String::new();
        if let Some(stdout) = holder.stdout.take() {
            // A read error leaves the line empty.
            let _ = BufReader::new(stdout).read_line(&mut said);
        }
        if said.trim() == "mounted" {
            let path = format!("/proc/{}/root/mnt", holder.id()).into();
            return Ok(Mount { path, holder });
        }
        let out = holder.wait_with_output().map_err(|error| error.to_string())?;
        Err(String::from_utf8_lossy(&out.stderr).into_owned())
    }

    /// Returns the path by which any process of this user reaches the mount.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        drop(self.holder.stdin.take());
        // The holder ends, because its stdin is closed.
        let _ = self.holder.wait();
    }
}

/// Returns a command that runs the shell commands `mounts` and then `command` in a mount namespace. Returns
/// `None`, with a report, if one of the mounts fails: otherwise `command` would change the machine's own
/// files.
pub fn inside(mounts: &str, command: &Command) -> Option<Command> {
    let Some(way) = way_of(mounts) else {
        capability::missing(NAME, format!("cannot: {mounts}"));
        return None;
    };
    let mut behind = unshare(way, &format!("{mounts}\nexec \"$@\""));
    behind.arg(command.get_program()).args(command.get_args());
    capability::used(NAME);
    Some(behind)
}

/// Returns the first of [`WAYS`] with which this user may run all of the shell commands `mounts`.
fn way_of(mounts: &str) -> Option<&'static [&'static str]> {
    WAYS.into_iter().find(|way| {
        let tried = unshare(way, mounts).output();
        tried.is_ok_and(|out| out.status.success())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_runs_inside_if_one_of_the_mounts_fails() {
        assert_eq!(way_of("mount --bind /nonexistent /mnt\ntrue"), None);
    }
}
