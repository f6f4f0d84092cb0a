//! Regions of interest of the VMM's own threads.

use std::cell::Cell;

thread_local! {
    /// Number of region ids that this thread has drawn.
    static REGIONS: Cell<u64> = const { Cell::new(0) };
}

/// Returns an id that no earlier call on this thread has returned.
#[inline(always)]
pub fn next_region() -> u64 {
    REGIONS.with(|regions| {
        let next = regions.get().wrapping_add(1);
        regions.set(next);
        next
    })
}

/// Marks a region of interest of the calling thread. The region ends when the returned value is dropped.
/// Records the events `NAME_begin(id, ..)` and `NAME_end(id)`.
///
/// The fields of the begin event follow the name. A field is a number (`u64`) or a text. A number has the
/// form `name = value`, or is the name of a variable. A text has the form `name: str = value` or `name: str`.
/// The id, a `u64`, distinguishes the passes through the region. Each thread numbers its passes. If the first
/// field is `id`, the program gives the id.
///
/// The macro has the same form as the guest library's `region!`, and `hypertrace regions` shows the regions
/// of both macros. The macro declares the two events, so the events need no line in a `trace-events` file.
/// Patterns switch the two events, and all backends get them. Both events are off until a pattern switches
/// them on and a session or another backend is active. A probe of the backend `sdt` is
/// `hypertrace:region_begin` or `region_end`, with name and id.
///
/// ```
/// fn handle(queue: u64, disk: &str) {
///     let _region = hypertrace_trace::region!("virtio_request", queue, disk: str);
///     // The work to be measured.
/// }
/// # handle(1, "sda");
///
/// fn answer(request: u64) {
///     let _region = hypertrace_trace::region!("answer", id = request);
/// }
/// # answer(1);
/// ```
#[macro_export]
macro_rules! region {
    ($($args:tt)+) => {
        $crate::abi::region_args!([$crate::declared_region] [] $($args)+)
    };
}

/// Declares the two events of a region, and makes the region. The thread draws an id only if the begin event
/// is recorded.
#[doc(hidden)]
#[macro_export]
macro_rules! declared_region {
    (
        $kind:ident $([$id:expr])? []
        $name:literal; $($field:ident $(: $str:ident)? $(= $value:expr)?),* $(,)?
    ) => {{
        $crate::declared_end!(region_begin, $name, "_begin"; $($field $([$str])?),*);
        $crate::declared_end!(region_end, $name, "_end";);
        #[allow(unused_mut)] // said
        let mut id: u64 = $crate::declared_region!(@begin $($id)?);
        let on = region_begin::on();
        if on != 0 {
            $crate::declared_region!(@$kind id);
            region_begin::fire(
                on, id, $($crate::declared_field!(passed $($str)?, $field $(= $value)?),)*
            );
        }
        $crate::Region::new(move || region_end::record(id))
    }};
    (@begin) => { 0 };
    (@begin $id:expr) => { $id };
    (@said $id:ident) => {};
    (@counted $id:ident) => { $id = $crate::generated::next_region(); };
}

/// Expands to the code for one field of a region. The first word says at which place of the region's
/// declaration the code stands. A field is a `str`, or else a `u64`.
#[doc(hidden)]
#[macro_export]
macro_rules! declared_field {
    (recorded) => { u64 };
    (recorded str) => { $crate::generated::Bytes<'static> };
    (parameter) => { u64 };
    (parameter str) => { &[u8] };
    (declared $field:ident) => { concat!(", uint64_t ", stringify!($field)) };
    (declared str, $field:ident) => { concat!(", const char *", stringify!($field)) };
    (format $field:ident) => { concat!(" \" ", stringify!($field), " %\" PRIu64") };
    (format str, $field:ident) => { concat!(" \" ", stringify!($field), " %s\"") };
    (value $field:ident) => { $field };
    (value str, $field:ident) => { $crate::generated::Bytes($field) };
    (text $out:ident, $field:ident) => { $out.decimal($field) };
    (text str, $out:ident, $field:ident) => {
        _ = ::core::fmt::Write::write_fmt(
            $out, ::core::format_args!("{}", $crate::generated::Escaped($field))
        )
    };
    (passed, $field:ident) => { $field };
    (passed, $field:ident = $value:expr) => { $value };
    (passed str, $field:ident) => { ::core::convert::AsRef::<[u8]>::as_ref(&$field) };
    (passed str, $field:ident = $value:expr) => { ::core::convert::AsRef::<[u8]>::as_ref(&$value) };
}

/// Declares one of the two events of a region, in a module.
#[doc(hidden)]
#[macro_export]
macro_rules! declared_end {
    ($module:ident, $name:literal, $suffix:literal; $($field:ident $([$str:ident])?),*) => {
        #[allow(
            unsafe_code, missing_docs, unreachable_pub, dead_code, clippy::all, clippy::pedantic
        )]
        mod $module {
            use $crate::generated as g;
            const NAME: &str = ::core::concat!($name, $suffix);
            #[derive(Clone, Copy)]
            pub struct Names;
            impl g::Site for Names {
                const NAME: &'static str = NAME;
                const FIELDS: &'static [&'static str] = &["id", $(stringify!($field)),*];
            }
            #[g::linkme::distributed_slice(g::EVENTS)]
            #[linkme(crate = $crate::generated::linkme)]
            static EVENT: g::TraceEvent = g::TraceEvent::new::<
                Names,
                (u64, $($crate::declared_field!(recorded $($str)?),)*),
            >(
                ::core::concat!(
                    $name, $suffix, "(uint64_t id",
                    $($crate::declared_field!(declared $($str,)? $field),)*
                    ") \"id %\" PRIu64",
                    $($crate::declared_field!(format $($str,)? $field),)*
                ),
                ::core::module_path!(),
                ::core::file!(),
                ::core::line!(),
            );
            #[inline(always)]
            pub fn on() -> u32 {
                EVENT.on()
            }
            #[inline(always)]
            pub fn record(id: u64, $($field: $crate::declared_field!(parameter $($str)?)),*) {
                let on = on();
                if on != 0 {
                    fire(on, id, $($field),*);
                }
            }
            #[inline(never)]
            pub fn fire(
                on: u32, id: u64, $($field: $crate::declared_field!(parameter $($str)?)),*
            ) {
                g::fire(
                    &EVENT,
                    on,
                    Names,
                    (id, $($crate::declared_field!(value $($str,)? $field),)*),
                    |out: &mut g::Line| {
                        out.push(b"id ");
                        out.decimal(id);
                        $(
                            out.push(concat!(" ", stringify!($field), " ").as_bytes());
                            $crate::declared_field!(text $($str,)? out, $field);
                        )*
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
