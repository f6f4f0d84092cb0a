//! hypertrace's plugin for QEMU 11.1: plugin API 7.
//!
//! Unsafe, because QEMU calls it.
#![allow(unsafe_code)]

hypertrace_qemu::library!(hypertrace_qemu::api::library::FROM_7, hypertrace_qemu::install);
