//! A temporary directory in a place with directories of other users.

use anyhow::{Context, Result};
use hypertrace_format::folder::{Folder, Share};
use std::ffi::OsString;
use std::path::Path;

/// A directory with a random name, in a place that is shared with other users. The drop removes the directory
/// and its contents through the directory's descriptor, because by then another directory may have the name.
#[derive(Debug)]
pub struct Temporary {
    above: Folder,
    name: OsString,
    folder: Folder,
    is_kept: bool,
}

impl Temporary {
    /// Makes a directory in `place` whose name begins with `prefix`.
    ///
    /// # Errors
    /// If `place` does not exist, or no directory can be made there.
    pub fn create(place: &Path, prefix: &str) -> Result<Temporary> {
        let failed = || format!("cannot make a temporary directory in {}", place.display());
        let (above, _) = Folder::above(&place.join(prefix), Share::Owner).with_context(failed)?;
        let mut builder = tempfile::Builder::new();
        let made = builder.prefix(prefix).make_in(place, |path| {
            let name = path.file_name().unwrap_or_default();
            Ok((name.to_owned(), above.create(name)?))
        });
        let ((name, folder), path) = made.with_context(failed)?.into_parts();
        // `path` is a `TempPath`, which would remove a file of this name on drop.
        let path = path.keep().context("a temporary name is lost")?;
        Ok(Temporary { above, name, folder: folder.moved(path), is_kept: false })
    }

    /// Returns the directory.
    pub fn folder(&self) -> &Folder {
        &self.folder
    }

    /// Keeps the directory.
    pub fn keep(mut self) {
        self.is_kept = true;
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        if !self.is_kept {
            let _ = self.folder.remove_all();
            let _ = self.above.remove_empty(&self.name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn a_temporary_directory_goes_and_another_one_with_its_name_stays() {
        let place = tempfile::tempdir().unwrap();
        let names = || fs::read_dir(place.path()).unwrap().count();
        let made = Temporary::create(place.path(), "made-").unwrap();
        fs::write(made.folder().path().join("file"), "").unwrap();
        assert_eq!(names(), 1);
        drop(made);
        assert_eq!(names(), 0);

        let made = Temporary::create(place.path(), "made-").unwrap();
        let (path, elsewhere) = (made.folder().path().to_owned(), place.path().join("elsewhere"));
        fs::write(path.join("file"), "").unwrap();
        fs::rename(&path, &elsewhere).unwrap();
        fs::create_dir(&path).unwrap();
        fs::write(path.join("another"), "").unwrap();
        drop(made);
        assert_eq!(fs::read_dir(&elsewhere).unwrap().count(), 0);
        assert!(path.join("another").exists());
    }
}
