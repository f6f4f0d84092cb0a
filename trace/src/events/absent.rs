//! The macros of the feature `events`, for builds without this feature. Each macro is an error that names the
//! feature.

/// Does not compile, because the feature `events` is off.
#[macro_export]
macro_rules! region {
    ($($any:tt)*) => {
        compile_error!(
            "`region!` needs the feature `events` of hypertrace-trace, which is off here"
        )
    };
}

/// Does not compile, because the feature `events` is off.
#[macro_export]
macro_rules! include_events {
    ($($any:tt)*) => {
        compile_error!(
            "`include_events!` needs the feature `events` of hypertrace-trace, which is off here"
        );
    };
}
