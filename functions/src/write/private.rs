// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Folders and files of one user alone, whatever the umask is: they have what a guest executed, and its addresses.

use std::fs::{self, DirBuilder, File, Permissions};
use std::io;
use std::os::unix::fs::{
    DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _,
};
use std::path::Path;

use crate::{Error, Result};

const FOLDER: u32 = 0o700;
const FILE: u32 = 0o600;

/// Creates a folder, or takes an empty one of this user.
pub fn folder(path: &Path) -> Result<()> {
    match DirBuilder::new().mode(FOLDER).create(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => check(path)?,
        result => result.map_err(Error::io("create", path))?,
    }
    fs::set_permissions(path, Permissions::from_mode(FOLDER)).map_err(Error::io("write", path))
}

/// Checks that a folder is empty, and this user's, as a link that leads there has to be.
fn check(path: &Path) -> Result<()> {
    let read = || Error::io("read", path);
    let mut entries = fs::read_dir(path).map_err(read())?;
    if entries.next().is_some() {
        let why = "not empty: give the path of a new or an empty directory";
        return Err(Error::unsuitable(path, why));
    }
    let owner = fs::metadata(path).map_err(read())?.uid();
    let others = || {
        let why = "of another user, who could exchange its files: give a directory of your own";
        Error::unsuitable(path, why)
    };
    if fs::symlink_metadata(path).map_err(read())?.uid() != owner {
        return Err(others());
    }
    let probe = path.join(".new");
    let made =
        file(&probe).and_then(|file| file.metadata()).map_err(Error::io("create", &probe))?;
    fs::remove_file(&probe).map_err(Error::io("write", &probe))?;
    if made.uid() == owner { Ok(()) } else { Err(others()) }
}

/// Creates a file. One with this name is an error.
pub fn file(path: &Path) -> io::Result<File> {
    let file = File::options().write(true).create_new(true).mode(FILE).open(path)?;
    file.set_permissions(Permissions::from_mode(FILE))?;
    Ok(file)
}

/// Creates a file in the place of one with this name.
pub fn another_file(path: &Path) -> io::Result<File> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => file(path),
    }
}
