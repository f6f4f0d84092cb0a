//! Regions of interest of the VMM's own threads.

/// Marks a region of interest of the calling thread, from here to where what it
/// gives is dropped: the events `NAME_begin(id)` and `NAME_end(id)`. The id, a `u64`,
/// distinguishes one pass through the region from another.
///
/// The macro has the shape of the guest library's `region!`, and `hypertrace regions`
/// shows both. Its two events are declared in place, so they need no line in a
/// `trace-events` file: patterns switch them, and all backends get them. Both are off
/// until a session or another backend is active and they are switched on. A probe of
/// the backend `sdt` is `hypertrace:region_begin` or `region_end`, with name and id.
///
/// ```
/// fn handle(request: u64) {
///     let _region = hypertrace_trace::region!("virtio_request", request);
///     // The work to be measured.
/// }
/// # handle(1);
/// ```
#[macro_export]
macro_rules! region {
    ($name:literal, $id:expr $(,)?) => {{
        $crate::declared_end!(region_begin, $name, "_begin");
        $crate::declared_end!(region_end, $name, "_end");
        let id: u64 = $id;
        region_begin::record(id);
        $crate::Region::new(move || region_end::record(id))
    }};
}

/// Declares one of the two events of a region, in a module.
#[doc(hidden)]
#[macro_export]
macro_rules! declared_end {
    ($module:ident, $name:literal, $suffix:literal) => {
        #[allow(unsafe_code, missing_docs, unreachable_pub, clippy::all, clippy::pedantic)]
        mod $module {
            use $crate::generated as g;
            const NAME: &str = ::core::concat!($name, $suffix);
            #[derive(Clone, Copy)]
            pub struct Names;
            impl g::Site for Names {
                const NAME: &'static str = NAME;
                const FIELDS: &'static [&'static str] = &["id"];
            }
            #[g::linkme::distributed_slice(g::EVENTS)]
            #[linkme(crate = $crate::generated::linkme)]
            static EVENT: g::TraceEvent = g::TraceEvent::new::<Names, (u64,)>(
                ::core::concat!($name, $suffix, "(uint64_t id) \"id %\" PRIu64"),
                ::core::module_path!(),
                ::core::file!(),
                ::core::line!(),
            );
            #[inline(always)]
            pub fn record(id: u64) {
                let on = EVENT.on();
                if on != 0 {
                    fire(on, id);
                }
            }
            #[inline(never)]
            fn fire(on: u32, id: u64) {
                g::fire(
                    &EVENT,
                    on,
                    Names,
                    (id,),
                    |out: &mut g::Line| {
                        out.push(b"id ");
                        out.decimal(id);
                    },
                    || {
                        g::probe::probe_lazy!(
                            hypertrace,
                            $module,
                            g::c_string(NAME.as_bytes()).as_ptr(),
                            id
                        );
                    },
                );
            }
        }
    };
}
