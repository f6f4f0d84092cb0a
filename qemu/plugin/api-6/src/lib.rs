//! hypertrace's plugin for QEMU 6.0 to 11.0: plugin API 1 to 6.
//!
//! The code is unsafe because QEMU calls the plugin from C.
#![allow(unsafe_code)]

hypertrace_qemu::library!(hypertrace_qemu::api::library::TO_6, hypertrace_qemu::install);
