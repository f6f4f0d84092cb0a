//! draft
use std::os::unix::fs::FileExt;
use std::os::fd::AsRawFd;
use std::time::Instant;
fn main() {
    let path = std::env::args().nth(1).unwrap();
    let buf = vec![7u8; 65536];
    let f = std::fs::OpenOptions::new().create(true).truncate(true).read(true).write(true).open(&path).unwrap();
    let t = Instant::now();
    #[allow(unsafe_code)]
    unsafe { libc::posix_fallocate(f.as_raw_fd(), 0, 64<<20); }
    println!("fallocate {:.2} ns per 32 B", t.elapsed().as_nanos() as f64 / (1024.0*2048.0));
    for (i, what) in ["fallocated", "reused", "reused", "reused"].iter().enumerate() {
        let t = Instant::now();
        for k in 0..1000u64 { f.write_at(&buf, k*65536+128).unwrap(); }
        println!("{what} {i}: {:.2} ns per 32 B", t.elapsed().as_nanos() as f64 / (1000.0*2048.0));
    }
}
