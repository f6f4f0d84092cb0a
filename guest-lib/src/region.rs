//! Regions of interest: a beginning and an end with the same id.

/// A region that is open; it ends where this is dropped.
#[must_use = "the region ends where this is dropped"]
pub struct Region<F: FnMut()> {
    end: F,
}

impl<F: FnMut()> Region<F> {
    #[doc(hidden)]
    pub fn new(end: F) -> Self {
        Region { end }
    }
}

impl<F: FnMut()> core::fmt::Debug for Region<F> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Region").finish_non_exhaustive()
    }
}

impl<F: FnMut()> Drop for Region<F> {
    fn drop(&mut self) {
        (self.end)();
    }
}

/// Marks a region of interest, from here to where what it gives is dropped: the
/// events `NAME_begin(id)` and `NAME_end(id)`. The id, a `u64`, tells one time
/// from another.
///
/// ```
/// fn serve(request: u64) {
///     let _region = hypertrace::region!("serve", request);
///     // What is measured.
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
        $crate::region!(@event client, concat!($name, "_begin"), id);
        $crate::Region::new(move || $crate::region!(@event client, concat!($name, "_end"), id))
    }};
    ($name:literal, $id:expr $(,)?) => {{
        let id: u64 = $id;
        $crate::region!(@event concat!($name, "_begin"), id);
        $crate::Region::new(move || $crate::region!(@event concat!($name, "_end"), id))
    }};
    (@event $client:ident, $name:expr, $id:ident) => {{
        const SLOT: usize = $crate::abi::schema::mask_slot($name);
        if $crate::is_on(SLOT) {
            let (site, fields) = $crate::abi::event_type!($name, id = $id);
            $client.emit(site, fields);
        }
    }};
    (@event $name:expr, $id:ident) => {{
        const SLOT: usize = $crate::abi::schema::mask_slot($name);
        if $crate::is_on(SLOT) {
            let (site, fields) = $crate::abi::event_type!($name, id = $id);
            $crate::this_thread::emit(site, fields);
        }
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
        let (site, fields) = $crate::abi::event_type!(concat!($name, "_begin"), id);
        let _ = client.reference_point(site, fields);
        $crate::Region::new(move || {
            let (site, fields) = $crate::abi::event_type!(concat!($name, "_end"), id);
            let _ = client.reference_point(site, fields);
        })
    }};
    ($name:literal, $id:expr $(,)?) => {{
        let id: u64 = $id;
        let (site, fields) = $crate::abi::event_type!(concat!($name, "_begin"), id);
        let _ = $crate::this_thread::reference_point(site, fields);
        $crate::Region::new(move || {
            let (site, fields) = $crate::abi::event_type!(concat!($name, "_end"), id);
            let _ = $crate::this_thread::reference_point(site, fields);
        })
    }};
}
