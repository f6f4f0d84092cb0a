//! Releases of QEMU, and the plugin for each.

use crate::Error;
use std::fmt;

/// A release of QEMU: major, minor and micro number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Release([u32; 3]);

/// Plugins, each with the first release of QEMU that is too new for the plugin. A micro number of 50 or more
/// means a version under development: 11.0.50 is the development of 11.1, in which plugin API 7 began.
const PLUGINS: [(&str, Release); 2] = [
    ("libhypertrace_qemu_plugin.so", Release([11, 0, 50])),
    ("libhypertrace_qemu_plugin_7.so", Release([11, 1, 50])),
];
/// The first release with plugin API 1.
const FIRST: Release = Release([6, 0, 0]);

impl Release {
    /// Parses what `--version` prints: `qemu-x86_64 version 7.2.22 (Debian ..)`.
    pub fn parse(printed: &str) -> Option<Release> {
        let (_, rest) = printed.lines().next()?.split_once(" version ")?;
        let end = rest.find(|c: char| c != '.' && !c.is_ascii_digit()).unwrap_or(rest.len());
        let mut numbers = rest[..end].split('.').map(|number| number.parse().ok());
        let (major, minor) = (numbers.next()??, numbers.next()??);
        let micro = numbers.next().flatten().unwrap_or(0);
        Some(Release([major, minor, micro]))
    }

    /// Returns the file name of the plugin for this release.
    ///
    /// # Errors
    /// If there is no plugin for this release.
    pub fn plugin(self) -> Result<&'static str, Error> {
        let found = PLUGINS.iter().find(|(_, end)| FIRST <= self && self < *end);
        found.map(|(plugin, _)| *plugin).ok_or_else(|| Error::Unknown(self.to_string()))
    }
}

impl fmt::Display for Release {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [major, minor, micro] = self.0;
        write!(f, "{major}.{minor}.{micro}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_emulators_print_is_parsed() {
        for (printed, release) in [
            ("qemu-x86_64 version 7.2.22 (Debian 1:7.2+dfsg-7+deb12u18+b3)\nCopyright", [7, 2, 22]),
            ("QEMU emulator version 10.0.13 (Debian 1:10.0.13+ds-0+deb13u1)\n", [10, 0, 13]),
            ("qemu-aarch64 version 11.0.91 (v11.1.0-rc1-5-g0123456)", [11, 0, 91]),
            ("qemu-x86_64 version 9.2", [9, 2, 0]),
        ] {
            assert_eq!(Release::parse(printed), Some(Release(release)), "{printed}");
        }
    }

    #[test]
    fn other_text_is_no_release() {
        for printed in [
            "",
            "usage: qemu-x86_64",
            "qemu-x86_64 version ",
            "qemu-x86_64 version 11",
            "qemu-x86_64 version unknown",
            "qemu-x86_64 version 99999999999.1.0",
            "first line\nqemu-x86_64 version 7.2.0",
        ] {
            assert_eq!(Release::parse(printed), None, "{printed}");
        }
    }

    #[test]
    fn each_release_has_the_plugin_of_its_api() {
        let [to_6, from_7] = PLUGINS.map(|(plugin, _)| Some(plugin));
        for (release, plugin) in [
            ([2, 12, 0], None),
            ([5, 2, 0], None),
            ([6, 0, 0], to_6),
            ([7, 2, 22], to_6),
            ([10, 0, 13], to_6),
            ([10, 2, 1], to_6),
            ([11, 0, 3], to_6),
            // A release candidate of 11.1.
            ([11, 0, 90], from_7),
            ([11, 1, 0], from_7),
            ([11, 1, 3], from_7),
            ([11, 1, 50], None),
            ([11, 2, 0], None),
            ([12, 0, 0], None),
        ] {
            assert_eq!(Release(release).plugin().ok(), plugin, "{release:?}");
        }
    }

    #[test]
    fn a_release_without_a_plugin_is_named() {
        let why = Release([12, 0, 1]).plugin().unwrap_err();
        assert_eq!(
            why.to_string(),
            "it is QEMU 12.0.1, and there are plugins for QEMU 6.0 to 11.1"
        );
    }
}
