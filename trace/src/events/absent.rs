//! The macros of the feature `events` where it is off: an error that names the feature.

/// Is an error: the feature `events` is off.
#[macro_export]
macro_rules! region {
    ($($any:tt)*) => {
        compile_error!(
            "`region!` needs the feature `events` of hypertrace-trace, which is off here"
        )
    };
}

/// Is an error: the feature `events` is off.
#[macro_export]
macro_rules! include_events {
    ($($any:tt)*) => {
        compile_error!(
            "`include_events!` needs the feature `events` of hypertrace-trace, which is off here"
        );
    };
}
