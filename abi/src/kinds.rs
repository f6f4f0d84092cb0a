// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Enums whose values have names.

/// Declares an enum and a name for each of its values.
#[doc(hidden)]
#[macro_export]
macro_rules! kinds {
    (
        $(#[$of_enum:meta])*
        pub enum $kind:ident { $($(#[$of_value:meta])* $value:ident => $name:literal,)* }
    ) => {
        $(#[$of_enum])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum $kind { $($(#[$of_value])* $value,)* }

        impl $kind {
            /// Number of values.
            pub const COUNT: usize = [$($name),*].len();

            /// All values, in the order of their numbers.
            pub const ALL: [$kind; $kind::COUNT] = [$($kind::$value),*];

            /// Returns the name.
            pub const fn name(self) -> &'static str {
                match self {
                    $($kind::$value => $name,)*
                }
            }
        }
    };
}
