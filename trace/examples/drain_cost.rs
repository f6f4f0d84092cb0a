//! draft bench
use hypertrace_abi::atomic::AtomicU64;
use hypertrace_abi::config::RingMode;
use hypertrace_abi::event_type;
use hypertrace_abi::layout::Geometry;
use hypertrace_abi::record::ClockKind;
use hypertrace_abi::ring::*;
use hypertrace_abi::sink::EventSink;
use hypertrace_trace::*;
fn main() {
    let dir = std::env::args().nth(1).unwrap();
    let strings = std::env::args().nth(2).is_some();
    let session = Session::create(SessionConfig::new(&dir)).unwrap();
    let g = Geometry { ring_bytes: 1<<20, block_bytes: 1<<16, ..Geometry::default() };
    let area: Vec<AtomicU64> = (0..g.client_stride()/8).map(|_| AtomicU64::new(0)).collect();
    let m = ClientMemory::new(&area, &g, RingMode::Discard).unwrap();
    let state = ProducerState::new();
    let p = Producer::lease(m, &state, Lease::new(7, tsc::now(), &LeaseInfo{pid:1,tid:1,clock:ClockKind::Tsc,name:"b"}), false);
    let mut cs = ConsumerState::default();
    let mut dry = vec![]; let mut all = vec![];
    let f = session.host_frequency() as f64;
    for k in 0..800 { session.set_dry(k % 2 == 0 && k > 0);
        let mut n = 0u64;
        loop {
            let (s, v) = event_type!("bench", a = n, b = 2u64);
            let r = if strings && n % 10 == 0 { let (s, v) = event_type!("bstr", a = n, b = "hello world"); p.emit(s, tsc::now(), v) } else { p.emit(s, tsc::now(), v) };
            if r != Emit::Recorded { break }
            n += 1;
        }
        let t = tsc::now();
        session.begin_pass();
        while session.drain(0, &mut Consumer::new(m, &mut cs)).more {}
        session.end_pass();
        let ns = (tsc::now() - t) as f64 / f * 1e9 / n as f64;
        if k % 2 == 0 { dry.push(ns) } else { all.push(ns) }
    }
    dry.sort_by(f64::total_cmp); println!("dry median {:.2} best {:.2}", dry[100], dry[0]);
    all.sort_by(f64::total_cmp);
    println!("file median {:.2} ns best {:.2} records {}", all[100], all[0], session.summary().records);
}
