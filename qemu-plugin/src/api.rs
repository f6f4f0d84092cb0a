//! Declarations of the used part of QEMU's plugin API. They are here because no
//! header of it is packaged (docs/devel/tcg-plugins in QEMU's sources describes
//! it).
//!
//! All of it is in API 1 (QEMU 4.2 to 8.2) and in 2 to 6 (9.0 and later), with
//! one difference: from 3 on, [`qemu_plugin_insn_data`] copies. API 7 (QEMU
//! 11.1) changes every callback, which gets a word of the plugin's in place of
//! the plugin's number, and how each is registered; and it has no function that
//! 6 has not, by which [`choose`] could detect it.
//!
//! Unsafe, because these are C functions.
#![allow(unsafe_code, non_upper_case_globals)]

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::marker::PhantomData;
use std::sync::atomic::{AtomicI32, Ordering::Relaxed};

/// The versions of the API that this plugin knows.
pub const KNOWN: std::ops::RangeInclusive<c_int> = 1..=6;
/// From this on, `qemu_plugin_insn_data` copies.
const COPIES: c_int = 3;

/// A plugin's number.
pub type Id = u64;

/// Information that QEMU passes at installation.
#[repr(C)]
pub struct Info {
    /// The guest's architecture, as in the emulator's name.
    pub target_name: *const c_char,
    /// Versions of the API: the oldest and the newest that it serves.
    pub min_version: c_int,
    /// The newest.
    pub version: c_int,
    /// Not user mode.
    pub system_emulation: bool,
    // More follows, which only system emulation has.
}

/// A block that is being translated.
#[repr(C)]
pub struct Tb([u8; 0]);

/// One of its instructions.
#[repr(C)]
pub struct Insn([u8; 0]);

/// QEMU_PLUGIN_CB_NO_REGS: the callback does not look at registers.
const NO_REGS: c_uint = 0;
/// QEMU_PLUGIN_MEM_W: called after stores.
const STORES: c_uint = 2;

/// Called after a store: vCPU, what kind of access, guest address, our word.
pub type MemCallback = extern "C" fn(c_uint, u32, u64, *mut c_void);
/// Called before a system call: vCPU, number, arguments.
pub type SyscallCallback = extern "C" fn(Id, c_uint, i64, u64, u64, u64, u64, u64, u64, u64, u64);

unsafe extern "C" {
    pub fn qemu_plugin_register_vcpu_tb_trans_cb(id: Id, callback: extern "C" fn(Id, *mut Tb));
    pub fn qemu_plugin_register_vcpu_exit_cb(id: Id, callback: extern "C" fn(Id, c_uint));
    pub fn qemu_plugin_register_vcpu_syscall_cb(id: Id, callback: SyscallCallback);
    pub fn qemu_plugin_register_atexit_cb(
        id: Id,
        callback: extern "C" fn(Id, *mut c_void),
        word: *mut c_void,
    );
    fn qemu_plugin_register_vcpu_mem_cb(
        insn: *mut Insn,
        callback: MemCallback,
        flags: c_uint,
        accesses: c_uint,
        word: *mut c_void,
    );
    fn qemu_plugin_tb_n_insns(tb: *const Tb) -> usize;
    fn qemu_plugin_tb_get_insn(tb: *const Tb, index: usize) -> *mut Insn;
    // Which of its two types it has is known once QEMU has passed its version.
    fn qemu_plugin_insn_data();
    fn qemu_plugin_insn_size(insn: *const Insn) -> usize;
    fn qemu_plugin_insn_vaddr(insn: *const Insn) -> u64;
    fn qemu_plugin_insn_haddr(insn: *const Insn) -> *const u8;
    fn qemu_plugin_outs(text: *const c_char);
}

/// The version of the API that this plugin asks for. QEMU reads it before it
/// calls anything, and refuses what it does not serve: [`choose`] has made it
/// one that it does.
#[unsafe(no_mangle)]
pub static qemu_plugin_version: AtomicI32 = AtomicI32::new(1);

/// The newest version that the QEMU serves which has loaded this.
static SERVED: AtomicI32 = AtomicI32::new(1);

/// Run by the dynamic loader, before QEMU looks at `qemu_plugin_version`.
#[used]
#[unsafe(link_section = ".init_array")]
static CHOOSE: extern "C" fn() = choose;

extern "C" fn choose() {
    // API 2 came with scoreboards, and no QEMU serves both 1 and 2.
    // SAFETY: looks a name up.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"qemu_plugin_scoreboard_new".as_ptr()) };
    qemu_plugin_version.store(if found.is_null() { 1 } else { 2 }, Relaxed);
}

/// Sets the version of the API that is used from now on.
pub fn speak(version: c_int) {
    SERVED.store(version, Relaxed);
}

/// A block that is being translated, for as long as the callback lasts.
pub struct Block(*mut Tb);

impl Block {
    /// # Safety
    /// `tb` is the block that QEMU passed to the callback that runs.
    pub unsafe fn new(tb: *mut Tb) -> Block {
        Block(tb)
    }

    /// Returns the block's instructions.
    pub fn instructions(&self) -> impl Iterator<Item = Instruction<'_>> {
        // SAFETY: `new`'s promise.
        let count = unsafe { qemu_plugin_tb_n_insns(self.0) };
        (0..count).map(|index| Instruction {
            // SAFETY: as above; there are so many.
            insn: unsafe { qemu_plugin_tb_get_insn(self.0, index) },
            block: PhantomData,
        })
    }
}

/// An instruction of a [`Block`].
pub struct Instruction<'a> {
    insn: *mut Insn,
    block: PhantomData<&'a Block>,
}

/// Bytes of the longest one, and one more than x86-64 allows.
const LONGEST: usize = 16;

impl Instruction<'_> {
    /// Returns the instruction's length in bytes.
    pub fn len(&self) -> usize {
        // SAFETY: an instruction of a block that lives, here and below.
        unsafe { qemu_plugin_insn_size(self.insn) }
    }

    /// Gives its bytes to `look`.
    pub fn with_bytes<R>(&self, look: impl FnOnce(&[u8]) -> R) -> R {
        let mut copy = [0u8; LONGEST];
        let len = self.len().min(LONGEST);
        let data = qemu_plugin_insn_data as *const ();
        // SAFETY: the function has the first type in the API before 3, and the
        // second from then on. It gives, or copies, as many bytes as
        // `qemu_plugin_insn_size` says.
        unsafe {
            if SERVED.load(Relaxed) < COPIES {
                let data: extern "C" fn(*const Insn) -> *const u8 = std::mem::transmute(data);
                let bytes = data(self.insn);
                if !bytes.is_null() {
                    std::ptr::copy_nonoverlapping(bytes, copy.as_mut_ptr(), len);
                }
            } else {
                let data: extern "C" fn(*const Insn, *mut u8, usize) -> usize =
                    std::mem::transmute(data);
                data(self.insn, copy.as_mut_ptr(), len);
            }
        }
        look(&copy[..len])
    }

    /// Returns the instruction's guest address.
    pub fn address(&self) -> u64 {
        // SAFETY: as above.
        unsafe { qemu_plugin_insn_vaddr(self.insn) }
    }

    /// Returns the address of its code in QEMU's own memory.
    pub fn host_address(&self) -> Option<u64> {
        // SAFETY: as above.
        let at = unsafe { qemu_plugin_insn_haddr(self.insn) };
        (!at.is_null()).then_some(at as u64)
    }

    /// Returns the difference between QEMU's address and the guest's.
    pub fn guest_base(&self) -> Option<u64> {
        Some(self.host_address()?.wrapping_sub(self.address()))
    }

    /// Has `callback` called after its store, with `word`.
    pub fn on_store(&self, callback: MemCallback, word: u64) {
        // SAFETY: as above; the word is a number to all but the callback.
        unsafe {
            qemu_plugin_register_vcpu_mem_cb(
                self.insn,
                callback,
                NO_REGS,
                STORES,
                word as *mut c_void,
            );
        }
    }
}

/// Writes a line to QEMU's log, which `-d plugin` shows.
pub fn log(text: &str) {
    let Ok(text) = std::ffi::CString::new(text) else { return };
    // SAFETY: copies the text.
    unsafe { qemu_plugin_outs(text.as_ptr()) };
}
