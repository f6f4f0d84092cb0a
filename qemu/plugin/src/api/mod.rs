//! Declarations of the part of QEMU's plugin API that this library uses. The declarations are written here,
//! because no package has a header of this API. QEMU's documentation describes the API: "QEMU TCG Plugins",
//! <https://www.qemu.org/docs/master/devel/tcg-plugins.html>.
//!
//! Differences between the API's versions, in the part that is used here:
//!
//! | API | QEMU | |
//! |---|---|---|
//! | 1 | 6.0 to 8.2 | |
//! | 2 | 9.0 | registers |
//! | 3 | 9.1 | the bytes of an instruction are copied |
//! | 4 | 9.2, 10.0 | values of accesses |
//! | 5 | 10.1, 10.2 | |
//! | 6 | 11.0 | |
//! | 7 | 11.1 | callbacks get a word of the plugin's, and no number of the plugin |
//!
//! Each QEMU serves a range of versions and refuses a plugin that asks for another version. A QEMU that
//! serves any of the versions 3 to 6 also serves version 2; a QEMU that serves version 7 serves no other
//! version. Version 7 has no symbol that version 6 lacks, so a plugin cannot detect version 7 when QEMU loads
//! the plugin. Therefore there are two libraries ([`Library`]): one library has the old form of all
//! callbacks, and one library has the new form.
//!
//! ```text
//! library   the two libraries, and what each does when it is loaded
//! events    the callbacks, in both forms, and their registration
//! code      blocks and instructions that are being translated
//! access    accesses of instructions to memory
//! registers registers of a vCPU
//! scoreboard numbers of vCPUs to which instructions add
//! program   the program of QEMU's user mode
//! symbol    functions that not all versions have
//! ```
//!
//! The code is unsafe because the API's functions are C functions.
#![allow(unsafe_code)]

pub mod access;
pub mod code;
pub mod events;
pub mod library;
mod program;
pub mod registers;
pub mod scoreboard;
mod symbol;

pub use access::{Access, AccessCallback, Accesses};
pub use code::{Block, ExecCallback, Instruction, Reads};
pub use events::Events;
pub use library::Library;
pub use program::program;
pub use registers::{Register, Registers};
pub use scoreboard::Scoreboard;

use std::ffi::{CStr, CString, c_char, c_int};
use std::sync::atomic::{AtomicI32, Ordering::Relaxed};

/// First version of the API in which `qemu_plugin_insn_data` copies the bytes.
const COPIES: c_int = 3;
/// First version of the API in which a callback's last argument is a word. In earlier versions, a callback
/// has no such word, and its first argument is the plugin's id.
const WORDS: c_int = 7;

/// A plugin's number.
pub type Id = u64;

/// Information that QEMU passes at installation (`qemu_info_t`).
#[repr(C)]
#[derive(Debug)]
pub struct Info {
    target_name: *const c_char,
    min_version: c_int,
    version: c_int,
    system_emulation: bool,
    // More fields follow. Only QEMU's system emulation sets these fields.
}

unsafe extern "C" {
    fn qemu_plugin_outs(text: *const c_char);
}

/// Newest version of the API that is served by the QEMU that has loaded this library.
static SERVED: AtomicI32 = AtomicI32::new(1);

fn served() -> c_int {
    SERVED.load(Relaxed)
}

/// The QEMU that installs this plugin.
#[derive(Debug)]
pub struct Qemu {
    id: Id,
    /// Architecture of the guest, as in the emulator's name.
    pub target: String,
    /// Whether QEMU emulates a whole machine; false for QEMU's user mode.
    pub is_machine: bool,
    /// Newest version of the API that QEMU serves.
    pub version: c_int,
}

impl Qemu {
    /// Makes a value from the arguments that QEMU has passed to `qemu_plugin_install`. After this call, the
    /// library uses the newest version of the API that QEMU serves.
    ///
    /// # Safety
    /// Both arguments are arguments of the running call of `qemu_plugin_install`.
    pub unsafe fn new(id: Id, info: *const Info) -> Qemu {
        // SAFETY: the caller promises that `info` is QEMU's argument; the name is a C string.
        let (info, target) = unsafe { (&*info, CStr::from_ptr((*info).target_name)) };
        SERVED.store(info.version, Relaxed);
        Qemu {
            id,
            target: target.to_string_lossy().into_owned(),
            is_machine: info.system_emulation,
            version: info.version,
        }
    }
}

/// Writes a line to QEMU's log, which `-d plugin` shows.
pub fn log(text: &str) {
    let Ok(text) = CString::new(text) else { return };
    // SAFETY: qemu_plugin_outs copies the text.
    unsafe { qemu_plugin_outs(text.as_ptr()) };
}
