// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The guard of a region of interest, for the macros of guests and the host.

/// An open region. The drop of this guard ends the region.
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

/// Parses the arguments of `region!` after the name, and calls a macro with the result. The result is `[said
/// ID FIXED NAME; FIELDS]` if the program gives an id, and `[counted FIXED NAME; FIELDS]` if the program
/// gives no id. If the first argument is `id = ID` or a variable `id`, then this argument is the id. All
/// other arguments are fields.
#[doc(hidden)]
#[macro_export]
macro_rules! region_args {
    ($call:tt $fixed:tt $name:literal $(,)?) => {
        $crate::region_args!(@call $call [counted $fixed $name;])
    };
    ($call:tt $fixed:tt $name:literal, id = $id:expr $(, $($fields:tt)*)?) => {
        $crate::region_args!(@call $call [said [$id] $fixed $name; $($($fields)*)?])
    };
    ($call:tt $fixed:tt $name:literal, $field:ident = $($rest:tt)+) => {
        $crate::region_args!(@call $call [counted $fixed $name; $field = $($rest)+])
    };
    ($call:tt $fixed:tt $name:literal, $field:ident : $($rest:tt)+) => {
        $crate::region_args!(@call $call [counted $fixed $name; $field : $($rest)+])
    };
    ($call:tt $fixed:tt $name:literal, $field:ident, $($rest:tt)+) => {
        $crate::region_args!(@first $field $field $call $fixed $name; $($rest)+)
    };
    ($call:tt $fixed:tt $name:literal, $field:ident $(,)?) => {
        $crate::region_args!(@first $field $field $call $fixed $name;)
    };
    ($call:tt $fixed:tt $name:literal, $($_:tt)+) => {
        compile_error!("a field of a region is `name` or `name = value`, and its id is `id = value`")
    };
    (@first id $id:ident $call:tt $fixed:tt $name:literal; $($rest:tt)*) => {
        $crate::region_args!(@call $call [said [$id] $fixed $name; $($rest)*])
    };
    (@first $_:ident $field:ident $call:tt $fixed:tt $name:literal; $($rest:tt)*) => {
        $crate::region_args!(@call $call [counted $fixed $name; $field, $($rest)*])
    };
    (@call [$($call:tt)+] [$($args:tt)*]) => { $($call)+! { $($args)* } };
}
