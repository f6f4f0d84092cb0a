//! Events for which QEMU calls a plugin, and their registration.
//!
//! Each callback has two forms. Before API 7, a callback's first argument is the plugin's id. From API 7 on,
//! a callback's last argument is a word that the plugin passes when the plugin registers the callback; no
//! callback here needs this word. Callbacks of single instructions ([`Instruction`](super::Instruction)) have
//! the same form in all versions.
//!
//! The code is unsafe because the API's functions are C functions.
#![allow(unsafe_code)]

use super::code::Tb;
use super::{Block, Id, Qemu, WORDS, served};
use std::ffi::{c_uint, c_void};
use std::mem::transmute;
use std::ptr::null_mut;

/// Callbacks of a plugin. QEMU calls only registered callbacks.
pub trait Events: 'static {
    /// QEMU translates a block, whose instructions can be instrumented.
    fn translated(_: &Block) {}
    /// This vCPU begins. QEMU calls this function on the vCPU's thread or, before API 2, on the thread that
    /// makes the vCPU.
    fn vcpu_started(_vcpu: c_uint) {}
    /// This vCPU has nothing to do and waits for an interrupt. QEMU calls this function in whole machines
    /// only.
    fn vcpu_idle(_vcpu: c_uint) {}
    /// This vCPU continues after a time in which the vCPU had nothing to do.
    fn vcpu_resumed(_vcpu: c_uint) {}
    /// This vCPU ends. QEMU calls this function on the vCPU's thread.
    fn vcpu_ended(_vcpu: c_uint) {}
    /// QEMU drops all translated blocks, with their callbacks. No vCPU runs.
    fn flushed() {}
    /// QEMU ends. vCPUs may still run.
    fn ended() {}
}

unsafe extern "C" {
    // Each function has one of two types. The version that QEMU passes decides which of the two types the
    // function has.
    fn qemu_plugin_register_vcpu_tb_trans_cb();
    fn qemu_plugin_register_vcpu_init_cb();
    fn qemu_plugin_register_vcpu_idle_cb();
    fn qemu_plugin_register_vcpu_resume_cb();
    fn qemu_plugin_register_vcpu_exit_cb();
    fn qemu_plugin_register_flush_cb();
    // In all versions, this function takes a word. Only the type of the callback differs between versions.
    fn qemu_plugin_register_atexit_cb(id: Id, callback: *const c_void, word: *mut c_void);
}

/// Defines a method of [`Qemu`] that registers a callback, and both forms of the callback.
macro_rules! registers {
    ($(#[$doc:meta])* $method:ident by $symbol:ident:
     |$($name:ident: $type:ty),*| $call:expr) => {
        impl Qemu {
            $(#[$doc])*
            pub fn $method<P: Events>(&self) {
                extern "C" fn numbered<P: Events>(_: Id, $($name: $type),*) {
                    $call
                }
                extern "C" fn with_word<P: Events>($($name: $type,)* _: *mut c_void) {
                    $call
                }
                type Numbered = extern "C" fn(Id, $($type),*);
                type WithWord = extern "C" fn($($type,)* *mut c_void);
                let register = $symbol as *const ();
                // SAFETY: before API 7, the function has the first of these two types. From API 7 on, the
                // function has the second type. The callbacks live as long as the process: QEMU does not
                // unload an installed plugin that does not ask to be unloaded.
                unsafe {
                    if served() < WORDS {
                        let register: extern "C" fn(Id, Numbered) = transmute(register);
                        register(self.id, numbered::<P>);
                    } else {
                        let register: extern "C" fn(Id, WithWord, *mut c_void) =
                            transmute(register);
                        register(self.id, with_word::<P>, null_mut());
                    }
                }
            }
        }
    };
}

registers! {
    /// Registers [`Events::translated`], which is called for each block.
    on_translation by qemu_plugin_register_vcpu_tb_trans_cb: |tb: *mut Tb| {
        // SAFETY: `tb` is the block that QEMU has passed to this callback.
        P::translated(&unsafe { Block::new(tb) });
    }
}

registers! {
    /// Registers [`Events::vcpu_started`].
    on_vcpu_start by qemu_plugin_register_vcpu_init_cb: |vcpu: c_uint| P::vcpu_started(vcpu)
}

registers! {
    /// Registers [`Events::vcpu_idle`].
    on_vcpu_idle by qemu_plugin_register_vcpu_idle_cb: |vcpu: c_uint| P::vcpu_idle(vcpu)
}

registers! {
    /// Registers [`Events::vcpu_resumed`].
    on_vcpu_resume by qemu_plugin_register_vcpu_resume_cb: |vcpu: c_uint| P::vcpu_resumed(vcpu)
}

registers! {
    /// Registers [`Events::flushed`].
    on_flush by qemu_plugin_register_flush_cb: | | P::flushed()
}

registers! {
    /// Registers [`Events::vcpu_ended`].
    on_vcpu_end by qemu_plugin_register_vcpu_exit_cb: |vcpu: c_uint| P::vcpu_ended(vcpu)
}

impl Qemu {
    /// Registers [`Events::ended`].
    pub fn on_end<P: Events>(&self) {
        extern "C" fn numbered<P: Events>(_: Id, _: *mut c_void) {
            P::ended();
        }
        extern "C" fn with_word<P: Events>(_: *mut c_void) {
            P::ended();
        }
        let callback = if served() < WORDS {
            numbered::<P> as *const c_void
        } else {
            with_word::<P> as *const c_void
        };
        // SAFETY: the callback has the form of the version that is served, and lives as
        // long as the process.
        unsafe { qemu_plugin_register_atexit_cb(self.id, callback, null_mut()) };
    }
}
