//! Two threads look up values in one cache. docs/tutorial.md finds out why some lookups are slow.

use std::collections::HashMap;
use std::hint::black_box;
use std::sync::Mutex;
use std::thread;
use std::time::Duration;

use hypertrace::{event, region};

/// Reads a value from a slow disk.
fn load(key: u64) -> u64 {
    let _region = region!("load", key);
    thread::sleep(Duration::from_millis(2));
    key * key
}

fn look_up(cache: &Mutex<HashMap<u64, u64>>, key: u64) -> u64 {
    let _region = region!("look_up", key);
    let mut cache = cache.lock().unwrap();
    *cache.entry(key).or_insert_with(|| {
        event!("miss", key);
        load(key)
    })
}

fn main() {
    let cache = Mutex::new(HashMap::new());
    thread::scope(|scope| {
        for worker in 0..2 {
            let lookups = || (0..2_000).for_each(|n| _ = black_box(look_up(&cache, n / 40)));
            let thread = thread::Builder::new().name(format!("worker{worker}"));
            thread.spawn_scoped(scope, lookups).unwrap();
        }
    });
}
