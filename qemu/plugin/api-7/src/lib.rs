//! hypertrace's plugin for QEMU 11.1: plugin API 7.
//!
//! The code is unsafe because QEMU calls the plugin from C.
#![allow(unsafe_code)]

hypertrace_qemu::library!(hypertrace_qemu::api::library::FROM_7, hypertrace_qemu::install);
