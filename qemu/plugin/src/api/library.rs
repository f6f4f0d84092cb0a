//! The libraries that QEMU loads, and what a library does when QEMU loads, installs and unloads the library.
//!
//! The code is unsafe because QEMU and the dynamic loader call the libraries from C, with pointers.
#![allow(unsafe_code)]

use super::symbol::Symbol;
use super::{Id, Info, Qemu};
use crate::{say, with_causes};
use std::error::Error;
use std::ffi::{CStr, c_char, c_int};
use std::fmt;
use std::panic::catch_unwind;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Function that installs a plugin in a QEMU. The second argument is the plugin's options on QEMU's command
/// line.
pub type Install = fn(&Qemu, &[&[u8]]) -> Result<(), Box<dyn Error>>;

/// The library does not know the newest version of the API that this QEMU serves.
#[derive(Debug, thiserror::Error)]
#[error("this QEMU has plugin API {0}; {1}")]
struct UnknownVersion(c_int, Library);

/// A shared object with the plugin. Any QEMU can load the shared object if that QEMU serves one of these
/// versions of the API.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Library {
    /// File name.
    pub file: &'static str,
    /// Oldest version of the API that the library knows.
    pub first: c_int,
    /// Newest version of the API that the library knows.
    pub last: c_int,
    /// Versions of QEMU that have these versions of the API.
    pub emulators: &'static str,
}

/// API 1 to 6.
pub const TO_6: Library =
    Library { file: "libhypertrace_qemu_plugin.so", first: 1, last: 6, emulators: "6.0 to 11.0" };

/// API 7.
pub const FROM_7: Library =
    Library { file: "libhypertrace_qemu_plugin_7.so", first: 7, last: 7, emulators: "11.1" };

/// Function of API 2 and later.
static SCOREBOARD_NEW: Symbol = Symbol::new(c"qemu_plugin_scoreboard_new");

/// Whether QEMU has called `qemu_plugin_install`.
static ASKED: AtomicBool = AtomicBool::new(false);

impl Library {
    /// Returns true if the library knows this version of the API.
    pub fn knows(&self, version: c_int) -> bool {
        (self.first..=self.last).contains(&version)
    }

    /// Returns the version that the library asks for. QEMU reads this version when QEMU loads the library,
    /// before QEMU calls any function of the library. If QEMU does not serve the version, then QEMU refuses
    /// the library.
    pub fn asks_for(&self) -> c_int {
        if self.first > 1 {
            return self.first;
        }
        // API 2 came with scoreboards. No QEMU serves both API 1 and API 2. Each QEMU that serves API 3, 4, 5
        // or 6 also serves API 2.
        if SCOREBOARD_NEW.find().is_none() { 1 } else { 2 }
    }

    /// Checks the version and installs the plugin, for `qemu_plugin_install`. Returns the value that
    /// `qemu_plugin_install` is to return. Reports an error on stderr.
    ///
    /// # Safety
    /// The last four arguments are the arguments of the running call of `qemu_plugin_install`.
    pub unsafe fn install(
        &self,
        plugin: Install,
        id: Id,
        info: *const Info,
        argc: c_int,
        argv: *const *const c_char,
    ) -> c_int {
        ASKED.store(true, Relaxed);
        let installed = catch_unwind(|| {
            // SAFETY: by the caller's promise, these are the arguments of the running call of
            // `qemu_plugin_install`.
            let (qemu, options) = unsafe {
                let count = usize::try_from(argc).unwrap_or(0);
                let options = (0..count).map(|i| CStr::from_ptr(*argv.add(i)).to_bytes());
                (Qemu::new(id, info), options.collect::<Vec<_>>())
            };
            self.check(qemu.version)?;
            plugin(&qemu, &options)
        });
        match installed {
            Ok(Ok(())) => 0,
            Ok(Err(why)) => {
                say(format_args!("hypertrace plugin: {}", with_causes(&*why)));
                1
            }
            // The panic handler has reported the panic already.
            Err(_) => 1,
        }
    }

    fn check(&self, version: c_int) -> Result<(), UnknownVersion> {
        if self.knows(version) { Ok(()) } else { Err(UnknownVersion(version, *self)) }
    }

    /// Reports a refusal if QEMU unloads the library, and has not called `qemu_plugin_install`. Such a QEMU
    /// does not serve the version that the library asks for. The report is needed, because QEMU's own message
    /// only names versions of an API, and does not say what to do.
    pub fn unloaded(&self) {
        if !ASKED.load(Relaxed) {
            say(format_args!("hypertrace plugin: {}", Refused(self)));
        }
    }

    /// Returns the library for the other releases of QEMU.
    fn other(&self) -> Library {
        if *self == FROM_7 { TO_6 } else { FROM_7 }
    }
}

/// Formats as `FILE is for QEMU ..`.
impl fmt::Display for Library {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is for {}", self.file, Emulators(self))
    }
}

/// Formats the list of the emulators for which a library is made.
struct Emulators<'a>(&'a Library);

impl fmt::Display for Emulators<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Library { first, last, emulators, .. } = self.0;
        write!(f, "QEMU {emulators} (plugin API {first}")?;
        if first != last {
            write!(f, " to {last}")?;
        }
        f.write_str(")")
    }
}

/// Message that this QEMU refuses a library. The message names the library that this QEMU needs.
struct Refused<'a>(&'a Library);

impl fmt::Display for Refused<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Refused(library) = self;
        let (file, emulators, other) = (library.file, Emulators(library), library.other());
        write!(f, "this QEMU refuses {file}, which is for {emulators}; {other}")
    }
}

/// Defines what QEMU and the dynamic loader need in a shared object: the version that the shared object asks
/// for, the function that QEMU calls to install the plugin, and the functions that the loader calls.
///
/// The macro's first argument is the shared object's [`Library`], and the second argument is an [`Install`].
/// The crate that uses the macro has to allow unsafe code.
#[macro_export]
macro_rules! library {
    ($library:expr, $install:path) => {
        /// The version of the API that this library asks for.
        #[unsafe(no_mangle)]
        #[allow(non_upper_case_globals)]
        pub static qemu_plugin_version: std::sync::atomic::AtomicI32 =
            std::sync::atomic::AtomicI32::new(0);

        /// Function that the dynamic loader runs before QEMU looks at `qemu_plugin_version`.
        #[used]
        #[unsafe(link_section = ".init_array")]
        static LOADED: extern "C" fn() = {
            extern "C" fn loaded() {
                let version = $library.asks_for();
                qemu_plugin_version.store(version, std::sync::atomic::Ordering::Relaxed);
            }
            loaded
        };

        /// Function that the dynamic loader runs when the library is unloaded or the process ends.
        #[used]
        #[unsafe(link_section = ".fini_array")]
        static UNLOADED: extern "C" fn() = {
            extern "C" fn unloaded() {
                $library.unloaded();
            }
            unloaded
        };

        /// Installs the plugin. QEMU calls this function first.
        ///
        /// # Safety
        /// Only QEMU may call this function, with the arguments that QEMU's API describes.
        #[unsafe(no_mangle)]
        unsafe extern "C" fn qemu_plugin_install(
            id: $crate::api::Id,
            info: *const $crate::api::Info,
            argc: std::ffi::c_int,
            argv: *const *const std::ffi::c_char,
        ) -> std::ffi::c_int {
            // SAFETY: QEMU's promise.
            unsafe { $library.install($install, id, info, argc, argv) }
        }
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_version_is_known_to_one_library() {
        for version in 1..=7 {
            assert_eq!([TO_6, FROM_7].iter().filter(|library| library.knows(version)).count(), 1);
        }
        for version in [0, 8] {
            assert!(!TO_6.knows(version) && !FROM_7.knows(version));
        }
    }

    #[test]
    fn a_version_that_is_not_known_is_named_with_those_that_are() {
        let why = FROM_7.check(8).unwrap_err();
        assert_eq!(
            why.to_string(),
            "this QEMU has plugin API 8; libhypertrace_qemu_plugin_7.so is for QEMU 11.1 (plugin API 7)"
        );
        assert!(FROM_7.check(7).is_ok());
    }

    #[test]
    fn a_refusal_names_both_libraries_and_their_emulators() {
        assert_eq!(
            Refused(&TO_6).to_string(),
            "this QEMU refuses libhypertrace_qemu_plugin.so, which is for QEMU 6.0 to 11.0 (plugin API 1 to 6); libhypertrace_qemu_plugin_7.so is for QEMU 11.1 \
             (plugin API 7)"
        );
    }
}
