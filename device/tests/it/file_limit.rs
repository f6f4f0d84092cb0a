//! Memory of a device if the limit of a file's size is too low for the memory.

use hypertrace_device::{Geometry, Memory};
use hypertrace_test_support::child::in_own_process;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::error::Error;

#[test]
fn memory_beyond_the_limit_of_a_file_is_an_error_that_names_it() {
    in_own_process(|| {
        let limit = Rlimit { current: Some(64 << 10), ..getrlimit(Resource::Fsize) };
        let file = tempfile();
        setrlimit(Resource::Fsize, limit).unwrap();

        let of_memfd = Memory::anonymous(Geometry::default());
        let of_file = Memory::from_file(Geometry::default(), file);

        for made in [of_memfd, of_file] {
            let why = made.unwrap_err().source().unwrap().to_string();
            assert!(why.contains("beyond RLIMIT_FSIZE, 65536"), "{why}");
        }
    });
}

fn tempfile() -> std::fs::File {
    let flags = rustix::fs::MemfdFlags::CLOEXEC;
    rustix::fs::memfd_create("test", flags).unwrap().into()
}
