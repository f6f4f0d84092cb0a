//! The harness of the end-to-end tests: what a scenario needs so that it reads top to bottom.

pub mod capability;
