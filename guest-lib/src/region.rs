//! Regions of interest: a beginning and an end with the same id.

/// Marks a region of interest: records the event `NAME_begin(id, ..)` now, and `NAME_end(id)` when the
/// returned value is dropped.
///
/// The fields after the name belong to the begin event, in the syntax of [`event!`](crate::event!). The id is
/// a `u64`, and distinguishes passes through the region. If the program's first field has the name `id`, this
/// field is the id. Otherwise the id is a count of the thread's regions, or of the client's regions without
/// the feature `std`.
///
/// ```
/// fn serve(path: &str, bytes: u64) {
///     let _region = hypertrace::region!("serve", path = path, bytes);
///     // The work to be measured.
/// }
/// # serve("/", 1);
///
/// fn answer(request: u64, path: &str) {
///     let _outer = hypertrace::region!("answer", id = request, path);
///     let _inner = hypertrace::region!("look_up");
/// }
/// # answer(1, "/");
///
/// fn on_vcpu(client: &hypertrace::Client, frame: u64) {
///     let _region = hypertrace::region!(client: client, "frame", id = frame);
/// }
/// ```
///
/// Each value needs a name, `id` or the name of a field:
///
/// ```compile_fail
/// let _region = hypertrace::region!("frame", 7);
/// ```
#[macro_export]
macro_rules! region {
    (client: $client:expr, $($rest:tt)+) => {{
        let client = $client;
        $crate::abi::region_args!(
            [$crate::region_of] [event [client: client,] client.next_region()] $($rest)+
        )
    }};
    ($($rest:tt)+) => {
        $crate::abi::region_args!(
            [$crate::region_of] [event [] $crate::this_thread::next_region()] $($rest)+
        )
    };
}

/// Marks a region as [`region!`](crate::region!) does, but with two reference points instead of two ring
/// events. These points are ordered with what the host does, and the host's triggers act on them (`on
/// begin:NAME do ..`). The region costs two exits. A point that could not be recorded is counted, and the
/// host shows the count.
///
/// ```
/// fn on_vcpu(client: &hypertrace::Client, frame: u64) {
///     let _region = hypertrace::reference_region!(client: client, "frame", lines = 3u64);
/// }
/// ```
#[macro_export]
macro_rules! reference_region {
    (client: $client:expr, $($rest:tt)+) => {{
        let client = $client;
        $crate::abi::region_args!(
            [$crate::region_of] [reference_point [client: client,] client.next_region()] $($rest)+
        )
    }};
    ($($rest:tt)+) => {
        $crate::abi::region_args!(
            [$crate::region_of] [reference_point [] $crate::this_thread::next_region()] $($rest)+
        )
    };
}

/// Makes a region of two events of the same kind. Takes the next id only if the begin event is switched on.
#[doc(hidden)]
#[macro_export]
macro_rules! region_of {
    (
        said [$id:expr] [$event:ident [$($client:tt)*] $_:expr]
        $name:literal; $($fields:tt)*
    ) => {{
        let id: u64 = $id;
        _ = $crate::$event!($($client)* concat!($name, "_begin"), id, $($fields)*);
        $crate::Region::new(move || {
            _ = $crate::$event!($($client)* concat!($name, "_end"), id);
        })
    }};
    (
        counted [$event:ident [$($client:tt)*] $next:expr]
        $name:literal; $($fields:tt)*
    ) => {{
        let mut id = 0u64;
        _ = $crate::$event!(
            $($client)* concat!($name, "_begin"), id = { id = $next; id }, $($fields)*
        );
        $crate::Region::new(move || {
            _ = $crate::$event!($($client)* concat!($name, "_end"), id);
        })
    }};
}
