//! First file system of a Linux guest, with programs of this machine.

use std::collections::BTreeSet;
use std::io::{Error, Result};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Returns the libraries of a program of this machine, with their paths in a guest.
///
/// # Errors
/// If the program cannot be read, or is linked statically.
pub fn libraries_of(program: &Path) -> Result<Vec<(String, PathBuf)>> {
    let listed = Command::new("ldd").arg(program).output()?;
    if !listed.status.success() {
        return Err(Error::other(format!("ldd: {}", String::from_utf8_lossy(&listed.stderr))));
    }
    let text = String::from_utf8_lossy(&listed.stdout);
    // `NAME => PATH (ADDRESS)`, and the loader `PATH (ADDRESS)`.
    let paths =
        text.lines().filter_map(|line| line.split_whitespace().find(|w| w.starts_with('/')));
    Ok(paths.map(|path| (path.trim_start_matches('/').to_owned(), path.into())).collect())
}

/// A cpio archive of the form `newc`, which the kernel unpacks as its first file system.
#[derive(Debug, Default)]
pub struct Initramfs {
    bytes: Vec<u8>,
    entries: u32,
    folders: BTreeSet<String>,
}

impl Initramfs {
    /// Adds a folder, unless the archive has it.
    pub fn folder(&mut self, name: &str) {
        if self.folders.insert(name.to_owned()) {
            self.entry(name, 0o040_755, &[]);
        }
    }

    /// Adds a file, and the folders that contain it.
    pub fn file(&mut self, name: &str, contents: &[u8]) {
        for (slash, _) in name.match_indices('/') {
            self.folder(&name[..slash]);
        }
        self.entry(name, 0o100_755, contents);
    }

    /// Returns the archive.
    pub fn end(mut self) -> Vec<u8> {
        self.entry("TRAILER!!!", 0, &[]);
        self.bytes
    }

    fn entry(&mut self, name: &str, mode: u32, contents: &[u8]) {
        self.entries += 1;
        let length = contents.len() as u32;
        let name_length = name.len() as u32 + 1;
        // The numbers are those of the archive's header: number, mode, user, group, links, time, length, four
        // numbers of devices, length of the name, sum.
        let numbers = [self.entries, mode, 0, 0, 1, 0, length, 0, 0, 0, 0, name_length, 0];
        self.bytes.extend_from_slice(b"070701");
        for number in numbers {
            self.bytes.extend_from_slice(format!("{number:08x}").as_bytes());
        }
        self.bytes.extend_from_slice(name.as_bytes());
        self.bytes.push(0);
        self.align();
        self.bytes.extend_from_slice(contents);
        self.align();
    }

    fn align(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}
