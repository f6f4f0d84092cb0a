//! Traces all events of `trace-events.rs`, and describes some of these events.
#![deny(warnings, missing_docs, missing_debug_implementations, unreachable_pub)]
#![deny(unused_qualifications, rust_2018_idioms, unsafe_code)]
#![deny(trivial_casts, trivial_numeric_casts, unused_results, unused_lifetimes, single_use_lifetimes)]
#![deny(clippy::all, clippy::pedantic)]

/// The events.
pub mod trace {
    include!("trace-events.rs");
}

fn main() {
    trace::vcpu_created(3, 0x7f00_0000_1000);
    trace::vcpu_exit(0, -6, 0xffff_8000_0000_0000);
    trace::vcpu_halted(1, true);
    trace::vcpu_kicked();
    trace::vcpu_indented(9);
    trace::vcpu_named("boot", 1);
    trace::ram_slot_set(0, 0x1000, 0x2_0000, 0xabc);
    trace::ram_dirty(0xfe, 0xf000);
    trace::ram_grown(10, 15);
    trace::ram_share(-1, -9);
    trace::virtio_queue_notify("net0", 2);
    trace::virtio_queue_pop(0x10, u64::MAX, -1, 65535);
    trace::virtio_set_status(0, 0xf);
    trace::virtio_features(0xa, 0xbcd);
    trace::virtio_config_read(b"blk", 255, -128);
    trace::virtio_spin(1);
    trace::virtio_none();
    trace::irq_set(1, 2, true);
    trace::irq_route("pin", 1, 2, 3);
    trace::r#match(1, 2, 3);
    trace::IRQ_Raise(-1);
    trace::lock_taken(0x70, 1, 2);
    trace::cpu_reset(0xc0, 5);
    trace::cpu_entered(0xc0);
    trace::flash_erase(8, 0xf00, 3, 64);
    trace::rom_loaded("vga", 0x8000);
    trace::json_send(String::from("a"), -5);
    trace::percent(42);
    trace::tabbed(vec![b'k'], 'x' as i32);
    trace::unicode(21);
    trace::padded(0xab, 0x1f, 8, 7, -7);
    trace::wide(1, 2, 3, 4, 5, 6, 7, 8, 9, 10);
    trace::opaque(1, 2, 3, 4);
    trace::braces();
    trace::empty();

    println!("{}", trace::virtio_config_read::EVENT.describe());
    println!("{}", trace::r#match::EVENT.describe());
    println!("{}", trace::irq_route::EVENT.describe());
    println!("{}", trace::percent::EVENT.describe());
    println!("{}", trace::tabbed::EVENT.describe());
    println!("{}", trace::padded::EVENT.describe());
    println!("{}", trace::flash_erase::EVENT.describe());
    println!("{}", trace::rom_loaded::EVENT.describe());
    println!("{}", trace::lock_taken::EVENT.describe());
    println!("{}", trace::vcpu_indented::EVENT.describe());
    println!("{}", trace::opaque::EVENT.describe());
}
