//! draft
use std::os::unix::fs::FileExt;
use std::os::fd::AsRawFd;
use hypertrace_trace::tsc;
fn main() {
    let dir = std::env::args().nth(1).unwrap();
    let buf = vec![7u8; 65536];
    let open = |n: &str| { let f = std::fs::OpenOptions::new().create(true).truncate(true).read(true).write(true).open(format!("{dir}/{n}")).unwrap(); f.set_len(64<<20).unwrap(); f };
    let files = [open("fresh"), open("falloc"), open("reused")];
    #[allow(unsafe_code)]
    unsafe { libc::posix_fallocate(files[1].as_raw_fd(), 0, 64<<20); }
    for k in 0..1000u64 { files[2].write_at(&buf, k*65536+128).unwrap(); }
    let mut t = [vec![], vec![], vec![]];
    for k in 0..1000u64 { for i in 0..3 {
        let s = tsc::now();
        files[i].write_at(&buf, k*65536+128).unwrap();
        t[i].push((tsc::now() - s) as f64 / 2.3 / 2048.0);
    } }
    for v in &mut t { v.sort_by(f64::total_cmp); print!("med {:.2} p10 {:.2};  ", v[500], v[100]); }
    println!();
}
