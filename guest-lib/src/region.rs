//! Regions of interest: a beginning and an end with the same id.

/// Marks a region of interest, from here to where what it gives is dropped: the
/// events `NAME_begin(id)` and `NAME_end(id)`. The id, a `u64`, distinguishes one
/// pass through the region from another.
///
/// ```
/// fn serve(request: u64) {
///     let _region = hypertrace::region!("serve", request);
///     // The work to be measured.
/// }
/// # serve(1);
///
/// fn on_vcpu(client: &hypertrace::Client, frame: u64) {
///     let _region = hypertrace::region!(client: client, "frame", frame);
/// }
/// ```
#[macro_export]
macro_rules! region {
    (client: $client:expr, $name:literal, $id:expr $(,)?) => {{
        let (client, id): (_, u64) = ($client, $id);
        $crate::event!(client: client, concat!($name, "_begin"), id);
        $crate::Region::new(move || $crate::event!(client: client, concat!($name, "_end"), id))
    }};
    ($name:literal, $id:expr $(,)?) => {{
        let id: u64 = $id;
        $crate::event!(concat!($name, "_begin"), id);
        $crate::Region::new(move || $crate::event!(concat!($name, "_end"), id))
    }};
}

/// As [`region!`](crate::region!), with reference points: in order with what the
/// host does, and what the host's triggers act on (`on begin:NAME do ..`). Two
/// exits. A point that could not be recorded is counted, and the host shows
/// the count.
///
/// ```
/// fn on_vcpu(client: &hypertrace::Client, frame: u64) {
///     let _region = hypertrace::reference_region!(client: client, "frame", frame);
/// }
/// ```
#[macro_export]
macro_rules! reference_region {
    (client: $client:expr, $name:literal, $id:expr $(,)?) => {{
        let (client, id): (_, u64) = ($client, $id);
        let _ = $crate::reference_point!(client: client, concat!($name, "_begin"), id);
        $crate::Region::new(move || {
            let _ = $crate::reference_point!(client: client, concat!($name, "_end"), id);
        })
    }};
    ($name:literal, $id:expr $(,)?) => {{
        let id: u64 = $id;
        let _ = $crate::reference_point!(concat!($name, "_begin"), id);
        $crate::Region::new(move || {
            let _ = $crate::reference_point!(concat!($name, "_end"), id);
        })
    }};
}
