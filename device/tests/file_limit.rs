//! A limit of a file's size, under which the memory cannot be made.

use hypertrace_device::{Geometry, Memory};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::error::Error;

#[test]
fn memory_beyond_the_limit_of_a_file_is_an_error_that_names_it() {
    let before = getrlimit(Resource::Fsize);
    let file = tempfile();
    setrlimit(Resource::Fsize, Rlimit { current: Some(64 << 10), ..before }).unwrap();

    let of_memfd = Memory::anonymous(Geometry::default());
    let of_file = Memory::from_file(Geometry::default(), file);

    setrlimit(Resource::Fsize, before).unwrap();
    for made in [of_memfd, of_file] {
        let why = made.unwrap_err().source().unwrap().to_string();
        assert!(why.contains("65536 bytes (RLIMIT_FSIZE"), "{why}");
    }
}

fn tempfile() -> std::fs::File {
    let flags = rustix::fs::MemfdFlags::CLOEXEC;
    rustix::fs::memfd_create("test", flags).unwrap().into()
}
