//! C types that an argument of an event can have.

/// Form in which a value is passed and recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum Kind {
    I8,
    I16,
    I32,
    I64,
    U8,
    U16,
    U32,
    U64,
    Bool,
    /// `char *`: a string of bytes. A Rust caller passes any type that is `AsRef<[u8]>`.
    Str,
    /// Every pointer that is not `char *`: a u64 that is shown in hexadecimal.
    Address,
}

impl Kind {
    /// Returns the type of the generated function's parameter.
    pub const fn rust(self) -> &'static str {
        self.spelled().0
    }

    /// Returns the type in `trace-events-all`. QEMU's reader takes C's integers, integers of a fixed size,
    /// and pointers to integers or to `void`. QEMU's reader takes a type that begins with `char *` or `const
    /// char *` for a string.
    pub const fn c(self) -> &'static str {
        self.spelled().1
    }

    /// Returns an integer's bits, and whether it has a sign. Returns None for other kinds.
    pub const fn integer(self) -> Option<(u32, bool)> {
        self.spelled().2
    }

    /// Returns the type in Rust and in C, and an integer's bits and sign.
    const fn spelled(self) -> (&'static str, &'static str, Option<(u32, bool)>) {
        match self {
            Kind::I8 => ("i8", "int8_t", Some((8, true))),
            Kind::I16 => ("i16", "int16_t", Some((16, true))),
            Kind::I32 => ("i32", "int32_t", Some((32, true))),
            Kind::I64 => ("i64", "int64_t", Some((64, true))),
            Kind::U8 => ("u8", "uint8_t", Some((8, false))),
            Kind::U16 => ("u16", "uint16_t", Some((16, false))),
            Kind::U32 => ("u32", "uint32_t", Some((32, false))),
            Kind::U64 => ("u64", "uint64_t", Some((64, false))),
            Kind::Bool => ("bool", "bool", Some((8, false))),
            Kind::Str => ("impl AsRef<[u8]>", "const char *", None),
            Kind::Address => ("u64", "void *", None),
        }
    }
}

/// An argument's type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CType {
    text: String,
    kind: Kind,
}

/// Expected text in the message about an unknown type.
pub(crate) const KNOWN: &str = "a type (bool, char, short, int, long, long long, \
    signed, unsigned, int8_t to int64_t, uint8_t to uint64_t, intptr_t, uintptr_t, intmax_t, \
    uintmax_t, size_t, ssize_t, off_t, ptrdiff_t, hwaddr, ram_addr_t, vaddr, target_ulong, \
    dma_addr_t, or a pointer)";

/// A word or a star of a type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    Word(String),
    Star,
}

impl CType {
    /// Returns the type in C's syntax, with single spaces: `const char *`.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Returns the form in which values of this type are passed and recorded.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Returns the type with these parts, if there is one.
    pub(crate) fn of(parts: &[Part]) -> Option<CType> {
        Some(CType { text: spell(parts), kind: kind(parts)? })
    }
}

/// Joins the parts with single spaces, without a space after a star.
pub(crate) fn spell(parts: &[Part]) -> String {
    let mut text = String::new();
    for part in parts {
        match part {
            Part::Star if text.is_empty() || text.ends_with('*') => text.push('*'),
            Part::Star => text.push_str(" *"),
            Part::Word(word) => {
                if !text.is_empty() && !text.ends_with('*') {
                    text.push(' ');
                }
                text.push_str(word);
            }
        }
    }
    text
}

/// Returns true if the last word of an argument is the argument's name, and false if this word ends the
/// argument's type.
pub(crate) fn is_name(word: &str, before: &[Part]) -> bool {
    // The word `vaddr` is a name in `uint64_t vaddr`, and a type in `const vaddr`.
    let is_type = |part: &Part| !matches!(part, Part::Word(word) if is_qualifier(word));
    !is_keyword(word) && (named(word).is_none() || before.iter().any(is_type))
}

/// Returns true if C uses the word only in types.
fn is_keyword(word: &str) -> bool {
    let other = ["bool", "_Bool", "double", "float", "void", "struct", "union", "enum"];
    other.contains(&word) || is_qualifier(word) || is_basic(word)
}

fn is_qualifier(word: &str) -> bool {
    matches!(word, "const" | "volatile" | "restrict")
}

/// Returns true for the words of C's integer types, which can be in any order.
fn is_basic(word: &str) -> bool {
    matches!(word, "char" | "short" | "int" | "long" | "signed" | "unsigned")
}

fn kind(parts: &[Part]) -> Option<Kind> {
    let first_star = parts.iter().position(|part| *part == Part::Star);
    let (base, pointer) = parts.split_at(first_star.unwrap_or(parts.len()));
    let base: Vec<&str> = words(base).filter(|word| !is_qualifier(word)).collect();
    if !words(pointer).all(is_qualifier) {
        return None;
    }
    match pointer.iter().filter(|part| **part == Part::Star).count() {
        0 => value(&base),
        1 if base == ["char"] => Some(Kind::Str),
        _ => can_be_pointed_at(&base).then_some(Kind::Address),
    }
}

fn words(parts: &[Part]) -> impl Iterator<Item = &str> {
    parts.iter().filter_map(|part| match part {
        Part::Word(word) => Some(word.as_str()),
        Part::Star => None,
    })
}

fn can_be_pointed_at(base: &[&str]) -> bool {
    match base {
        ["struct" | "union" | "enum", name] => !is_keyword(name),
        ["void"] => true,
        [name] if !is_keyword(name) => true,
        _ => value(base).is_some(),
    }
}

fn value(base: &[&str]) -> Option<Kind> {
    match base {
        [word] => named(word).or_else(|| basic(base)),
        _ => basic(base),
    }
}

fn named(word: &str) -> Option<Kind> {
    Some(match word {
        "bool" | "_Bool" => Kind::Bool,
        "int8_t" => Kind::I8,
        "int16_t" => Kind::I16,
        "int32_t" => Kind::I32,
        "int64_t" | "ssize_t" | "off_t" | "ptrdiff_t" | "intptr_t" | "intmax_t" => Kind::I64,
        "uint8_t" => Kind::U8,
        "uint16_t" => Kind::U16,
        "uint32_t" => Kind::U32,
        "uint64_t" | "size_t" | "uintptr_t" | "uintmax_t" => Kind::U64,
        // QEMU's own types. A type that is as wide as a target's word has 64 bits in this crate, even if the
        // target has 32-bit words.
        "hwaddr" | "ram_addr_t" | "vaddr" | "target_ulong" | "dma_addr_t" => Kind::U64,
        _ => return None,
    })
}

fn basic(base: &[&str]) -> Option<Kind> {
    let count = |word: &str| base.iter().filter(|w| **w == word).count();
    let [chars, shorts, ints, longs, signed, unsigned] =
        ["char", "short", "int", "long", "signed", "unsigned"].map(count);
    let all_basic = base.iter().all(|word| is_basic(word));
    if base.is_empty() || !all_basic || ints > 1 || signed + unsigned > 1 {
        return None;
    }
    let (of_signed, of_unsigned) = match (chars, shorts, longs) {
        // Plain char has a sign, as on x86.
        (1, 0, 0) if ints == 0 => (Kind::I8, Kind::U8),
        (0, 1, 0) => (Kind::I16, Kind::U16),
        (0, 0, 0) => (Kind::I32, Kind::U32),
        (0, 0, 1 | 2) => (Kind::I64, Kind::U64),
        _ => return None,
    };
    Some(if unsigned == 1 { of_unsigned } else { of_signed })
}
