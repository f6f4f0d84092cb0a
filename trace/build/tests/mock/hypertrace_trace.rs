//! A mock of `hypertrace-trace`: every event is on, and the output for the backends is printed.

/// Items that generated code uses.
pub mod generated {
    use std::fmt;

    pub mod linkme {
        pub use linkme_mock::distributed_slice;
    }

    pub mod probe {
        pub use crate::probe_lazy;
    }

    pub trait Site: Copy {
        const NAME: &'static str;
        const FIELDS: &'static [&'static str];
    }

    pub trait Field: Copy {
        const TYPE: &'static str;
    }

    #[derive(Clone, Copy)]
    pub struct Bytes<'a>(pub &'a [u8]);
    #[derive(Clone, Copy)]
    pub struct Hex(pub u64);
    pub struct DisabledEvent;

    macro_rules! fields {
        ($($ty:ty => $name:literal),*) => { $(impl Field for $ty { const TYPE: &'static str = $name; })* };
    }
    fields!(i8 => "i8", i16 => "i16", i32 => "i32", i64 => "i64", u8 => "u8", u16 => "u16", u32 => "u32",
        u64 => "u64", bool => "bool", Hex => "x64", Bytes<'_> => "str");

    pub trait Fields: Copy {
        const TYPES: &'static [&'static str];
    }

    macro_rules! tuples {
        () => { tuples!(@impl); };
        ($head:ident $($rest:ident)*) => { tuples!(@impl $head $($rest)*); tuples!($($rest)*); };
        (@impl $($name:ident)*) => {
            impl<$($name: Field),*> Fields for ($($name,)*) {
                const TYPES: &'static [&'static str] = &[$($name::TYPE),*];
            }
        };
    }
    tuples!(A B C D E F G H I J K L M N O P);

    pub struct TraceEvent {
        name: &'static str,
        fields: &'static [&'static str],
        types: &'static [&'static str],
        declaration: &'static str,
        place: (&'static str, u32),
    }

    impl TraceEvent {
        pub const fn new<S: Site, F: Fields>(
            declaration: &'static str,
            _module: &'static str,
            file: &'static str,
            line: u32,
        ) -> TraceEvent {
            assert!(S::FIELDS.len() == F::TYPES.len());
            let (name, fields, types) = (S::NAME, S::FIELDS, F::TYPES);
            TraceEvent { name, fields, types, declaration, place: (file, line) }
        }

        pub fn on(&self) -> u32 {
            1
        }

        /// `file:line declaration => name(field:type,..)`
        pub fn describe(&self) -> String {
            let fields = self.fields.iter().zip(self.types).map(|(name, ty)| format!("{name}:{ty}"));
            let fields = fields.collect::<Vec<_>>().join(",");
            let (file, line) = self.place;
            format!("{file}:{line} {} => {}({fields})", self.declaration, self.name)
        }
    }

    #[derive(Default)]
    pub struct Line(String);

    impl Line {
        pub fn push(&mut self, bytes: &[u8]) {
            self.0.push_str(std::str::from_utf8(bytes).unwrap());
        }

        pub fn decimal(&mut self, n: impl fmt::Display) {
            self.0.push_str(&n.to_string());
        }

        pub fn hex(&mut self, n: impl fmt::LowerHex) {
            self.0.push_str(&format!("{n:x}"));
        }
    }

    impl fmt::Write for Line {
        fn write_str(&mut self, text: &str) -> fmt::Result {
            self.0.push_str(text);
            Ok(())
        }
    }

    pub struct Escaped<'a>(pub &'a [u8]);

    impl fmt::Display for Escaped<'_> {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.pad(&self.0.escape_ascii().to_string())
        }
    }

    pub struct CText(Vec<u8>);

    impl CText {
        pub fn as_ptr(&self) -> *const u8 {
            self.0.as_ptr()
        }
    }

    pub fn c_string(bytes: &[u8]) -> CText {
        CText([bytes, &[0]].concat())
    }

    pub fn fire<S: Site, F: Fields>(
        _event: &'static TraceEvent,
        on: u32,
        _site: S,
        _values: F,
        text: impl FnOnce(&mut Line),
        probe: impl FnOnce(),
    ) {
        assert!(on != 0);
        let mut line = Line::default();
        text(&mut line);
        println!("{}", line.0);
        if std::env::var_os("PROBES").is_some() {
            probe();
        }
    }
}

/// Prints the probe's name and the number of its arguments.
#[macro_export]
macro_rules! probe_lazy {
    ($provider:ident, $name:ident $(, $arg:expr)*) => {{
        let count = unsafe { $crate::probe_arguments([$($arg as isize),*]) };
        println!("  probe {}:{} {count}", stringify!($provider), stringify!($name));
    }};
}

/// # Safety
/// Safe to call with any arguments. The function is marked `unsafe` only because the real probe is.
pub unsafe fn probe_arguments<const N: usize>(arguments: [isize; N]) -> usize {
    std::hint::black_box(arguments).len()
}
