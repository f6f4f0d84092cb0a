//! Call sites in C. The macros describe a call site's event, and the library computes the event's id and mask
//! slot from this description at the first event.
//!
//! This module allocates nothing and never waits, because a signal handler may record the first event.
//! Threads that reach a site at the same time compute the same values.
//!
//! The code is unsafe because a site is an address that a C program passes.
#![allow(unsafe_code)]

use hypertrace::abi::atomic::AtomicU64;
use hypertrace::abi::event::{MAX_STR, Text, Words};
use hypertrace::abi::schema::{self, FieldType, MAX_FIELDS, MAX_NAME, MAX_TEXT, Schema};
use hypertrace::{Fields, Site};
use std::cell::UnsafeCell;
use std::ffi::c_char;
use std::sync::atomic::{AtomicU32, AtomicU64 as Count, Ordering, Ordering::Relaxed};

/// `uint8_t`. These constants are the field types that the macros pass to the library.
pub const HYPERTRACE_TYPE_U8: u8 = 0;
/// `uint16_t`
pub const HYPERTRACE_TYPE_U16: u8 = 1;
/// `uint32_t`
pub const HYPERTRACE_TYPE_U32: u8 = 2;
/// `uint64_t`
pub const HYPERTRACE_TYPE_U64: u8 = 3;
/// `int8_t`
pub const HYPERTRACE_TYPE_I8: u8 = 4;
/// `int16_t`
pub const HYPERTRACE_TYPE_I16: u8 = 5;
/// `int32_t`
pub const HYPERTRACE_TYPE_I32: u8 = 6;
/// `int64_t`
pub const HYPERTRACE_TYPE_I64: u8 = 7;
/// `float`, `double`; the value's word is the bits of a `double`
pub const HYPERTRACE_TYPE_F64: u8 = 8;
/// `bool`
pub const HYPERTRACE_TYPE_BOOL: u8 = 9;
/// A pointer, or a number that is shown in hexadecimal
pub const HYPERTRACE_TYPE_X64: u8 = 10;
/// `const char *`; the value's word is the address
pub const HYPERTRACE_TYPE_STR: u8 = 11;

/// Returns the type with this code, which is its index in [`FieldType::ALL`].
fn field_type(code: u8) -> Option<FieldType> {
    let ty = *FieldType::ALL.get(usize::from(code))?;
    (ty != FieldType::Words).then_some(ty)
}

/// A call site. The macros define a static of this type for each call site. The program fills in the fields
/// marked "to be filled in". All other fields are zero at first and belong to the library.
#[repr(C)]
pub struct CallSite {
    /// To be filled in: the event's name.
    name: *const c_char,
    /// To be filled in: the fields' names, with a comma after each.
    fields: *const c_char,
    /// To be filled in: a `HYPERTRACE_TYPE_` for each field.
    types: *const u8,
    /// To be filled in: the number of fields.
    count: u32,
    /// The state: 0 while the site is new.
    state: UnsafeCell<u32>,
    id: UnsafeCell<u32>,
    name_hash: UnsafeCell<u32>,
}

/// Bit of a state: the library knows the site. If the bit `KNOWN` is set, each lower bit says
/// whether the field with the bit's number is a string.
const KNOWN: u32 = 1 << 31;
/// The state of a site whose names and types make no schema.
const REFUSED: u32 = 1 << 30;

/// A call site whose event has an id.
#[derive(Clone, Copy)]
pub(crate) struct Known<'a>(&'a CallSite);

impl<'a> Known<'a> {
    /// Returns the site if its id is known already and all its fields are
    /// scalars, as for most events.
    ///
    /// # Safety
    /// The macros have made the site, and it stays valid for the whole call.
    #[inline(always)]
    pub(crate) unsafe fn plain(site: *const CallSite) -> Option<Known<'a>> {
        // SAFETY: the caller promises that the site is valid. All parts of a site that change are
        // in cells.
        let known = Known(unsafe { &*site });
        (known.state() == KNOWN).then_some(known)
    }

    /// Returns the site, after computing the site's id if it is not known yet. Returns `None` if the site's
    /// names and types make no valid schema.
    ///
    /// # Safety
    /// As for `plain`.
    pub(crate) unsafe fn of(site: *const CallSite) -> Option<Known<'a>> {
        // SAFETY: the caller promises that the site is valid. All parts of a site that change are
        // in cells.
        let known = Known(unsafe { &*site });
        if known.state() & KNOWN != 0 { Some(known) } else { known.find_out() }
    }

    #[inline(always)]
    fn state(self) -> u32 {
        // ORDERING: pairs with the Release in `find_out`: the other cells are filled in.
        word(&self.0.state).load(Ordering::Acquire)
    }

    /// Returns true if the event is switched on.
    pub(crate) fn is_on(self) -> bool {
        hypertrace::is_on(schema::mask_slot_of(self.name_hash()))
    }

    /// Returns the number of values.
    #[inline(always)]
    pub(crate) fn count(self) -> usize {
        self.0.count as usize
    }

    /// Returns a bit for each value that is a string.
    pub(crate) fn strings(self) -> u32 {
        self.state() & !KNOWN
    }

    #[cold]
    #[inline(never)]
    fn find_out(self) -> Option<Known<'a>> {
        let state = word(&self.0.state);
        if state.load(Relaxed) == REFUSED || self.count() > MAX_FIELDS {
            state.store(REFUSED, Relaxed);
            return None;
        }
        let mut text = Assembled { bytes: [0; MAX_TEXT], len: 0 };
        let fits = {
            let mut fits = true;
            self.0.pieces(&mut |piece| fits &= text.push(piece));
            fits
        };
        let types = (0..self.count()).map(|i| self.0.type_of(i));
        let whole = types.clone().all(|ty| ty.is_some());
        let parsed = std::str::from_utf8(&text.bytes[..text.len]).ok().map(Schema::parse);
        let schema = parsed.filter(|_| fits && whole).and_then(Result::ok);
        // A name with a comma in it must not become two fields.
        let schema = schema.filter(|schema| schema.fields().len() == self.count());
        let Some(schema) = schema else {
            state.store(REFUSED, Relaxed);
            return None;
        };
        let strings = types
            .enumerate()
            .filter(|(_, ty)| *ty == Some(FieldType::Str))
            .fold(0, |strings, (i, _)| strings | 1 << i);
        let name_hash = schema::name_hash(schema.name());
        word(&self.0.id).store(schema.id(), Relaxed);
        word(&self.0.name_hash).store(name_hash, Relaxed);
        // ORDERING: pairs with the Acquire in `state`.
        state.store(KNOWN | strings, Ordering::Release);
        Some(self)
    }
}

impl CallSite {
    fn type_of(&self, field: usize) -> Option<FieldType> {
        // SAFETY: the site has `count` types.
        field_type(unsafe { *self.types.add(field) })
    }
}

/// Returns a cell as an atomic: the library fills it in while other threads read it.
#[inline(always)]
fn word(cell: &UnsafeCell<u32>) -> &AtomicU32 {
    // SAFETY: the library accesses such a cell with atomic operations only.
    unsafe { AtomicU32::from_ptr(cell.get()) }
}

struct Assembled {
    bytes: [u8; MAX_TEXT],
    len: usize,
}

impl Assembled {
    fn push(&mut self, piece: &[u8]) -> bool {
        let end = self.len + piece.len();
        let Some(room) = self.bytes.get_mut(self.len..end) else {
            return false;
        };
        room.copy_from_slice(piece);
        self.len = end;
        true
    }
}

/// Returns the length of a C string, at most `most`.
///
/// # Safety
/// `at` is a C string.
unsafe fn measure(at: *const u8, most: usize) -> usize {
    // SAFETY: the caller promises that the string has an end, and the reads do not go beyond this
    // end.
    (0..most).find(|&i| unsafe { at.add(i).read_volatile() } == 0).unwrap_or(most)
}

/// Returns the bytes of a string literal in C, at most `most`.
///
/// # Safety
/// `at` is a C string that does not change for the result's life, or null.
unsafe fn literal<'a>(at: *const c_char, most: usize) -> &'a [u8] {
    if at.is_null() {
        return NULL;
    }
    // SAFETY: the caller's promise.
    unsafe { std::slice::from_raw_parts(at.cast(), measure(at.cast(), most)) }
}

/// The text that is recorded for a string that is NULL.
const NULL: &[u8] = b"(null)";

/// A string of a C program, with the length that was measured. The library reads the string in place, byte by
/// byte, without a reference, because another thread of the program may write to the string meanwhile. The
/// record then contains old and new bytes.
#[derive(Clone, Copy)]
struct CString {
    at: *const u8,
    len: usize,
}

impl CString {
    const EMPTY: CString = CString { at: NULL.as_ptr(), len: 0 };

    /// Measures a string, once. A long string is cut off at the end of a character.
    ///
    /// # Safety
    /// `at` is a C string, or null. For as long as the result is used, the measured
    /// bytes can be read there.
    unsafe fn new(at: *const u8) -> CString {
        if at.is_null() {
            return CString { at: NULL.as_ptr(), len: NULL.len() };
        }
        // SAFETY: the caller's promise.
        let measured = CString { at, len: unsafe { measure(at, MAX_STR + 1) } };
        let mut len = measured.len.min(MAX_STR);
        while len < measured.len && len > 0 && measured.byte(len) & 0xc0 == 0x80 {
            len -= 1;
        }
        CString { at, len }
    }

    fn byte(self, i: usize) -> u8 {
        debug_assert!(i < self.len);
        // SAFETY: `new`'s promise. The read is volatile, so that the byte is read once.
        unsafe { self.at.add(i).read_volatile() }
    }

    fn words(self) -> usize {
        (size_of::<u32>() + self.len).div_ceil(size_of::<u64>())
    }

    /// Writes the string's length and bytes in the format of a record.
    fn put(self, out: &[AtomicU64]) {
        let len = (self.len as u32).to_le_bytes();
        let mut bytes = len.into_iter().chain((0..self.len).map(|i| self.byte(i)));
        for word in &out[..self.words()] {
            let of_word = bytes.by_ref().take(size_of::<u64>()).enumerate();
            word.store(
                of_word.fold(0, |word, (i, byte)| word | u64::from(byte) << (8 * i)),
                Relaxed,
            );
        }
    }
}

impl Text for CallSite {
    fn id(&self) -> u32 {
        word(&self.id).load(Relaxed)
    }

    fn pieces(&self, piece: &mut dyn FnMut(&[u8])) {
        let CallSite { name, fields, count, .. } = *self;
        // SAFETY: the macros give string literals. A name that is one byte too
        // long is refused.
        let (name, fields) =
            unsafe { (literal(name, MAX_NAME + 1), literal(fields, MAX_FIELDS * (MAX_NAME + 2))) };
        piece(name);
        piece(b"(");
        let mut names = fields.split(|byte| *byte == b',');
        for i in 0..count as usize {
            if i > 0 {
                piece(b",");
            }
            piece(names.next().unwrap_or_default());
            piece(b":");
            piece(self.type_of(i).map_or("", FieldType::name).as_bytes());
        }
        piece(b")");
    }
}

impl Site for Known<'_> {
    const NAME: &'static str = "";
    const FIELDS: &'static [&'static str] = &[];

    #[inline(always)]
    fn id<F: Fields>(self) -> u32 {
        Text::id(self.0)
    }

    #[inline(always)]
    fn name_hash(self) -> u32 {
        word(&self.0.name_hash).load(Relaxed)
    }

    #[inline(always)]
    fn text<'t, F: Fields>(self) -> Option<&'t dyn Text>
    where
        Self: 't,
    {
        Some(self.0)
    }
}

/// Values of an event. Some of the values can be strings.
pub(crate) struct Mixed<'a> {
    values: &'a [u64],
    strings: u32,
    /// The strings, at the indexes of their values.
    texts: [CString; MAX_FIELDS],
}

impl<'a> Mixed<'a> {
    /// # Safety
    /// If the bit of a value is set in `strings`, the value is 0 or the address of a C string
    /// that can be read for this value's life.
    pub(crate) unsafe fn new(values: &'a [u64], strings: u32) -> Self {
        let mut mixed = Mixed { values, strings, texts: [CString::EMPTY; MAX_FIELDS] };
        for (i, &value) in values.iter().enumerate().filter(|(i, _)| strings >> i & 1 == 1) {
            // SAFETY: the caller's promise.
            mixed.texts[i] = unsafe { CString::new(value as usize as *const u8) };
        }
        mixed
    }

    fn string(&self, i: usize) -> Option<CString> {
        (self.strings >> i & 1 == 1).then(|| self.texts[i])
    }
}

impl Fields for &Mixed<'_> {
    const TYPES: &'static [FieldType] = Words::TYPES;

    fn words(self) -> usize {
        (0..self.values.len()).map(|i| self.string(i).map_or(1, CString::words)).sum()
    }

    fn put(self, out: &[AtomicU64]) {
        let mut out = out;
        for i in 0..self.values.len() {
            let taken = match self.string(i) {
                Some(text) => {
                    text.put(out);
                    text.words()
                }
                None => {
                    out[0].store(self.values[i], Relaxed);
                    1
                }
            };
            out = &out[taken..];
        }
    }
}

/// Events of refused call sites.
static REFUSED_EVENTS: Count = Count::new(0);

pub(crate) fn refused() {
    REFUSED_EVENTS.fetch_add(1, Relaxed);
}

pub(crate) fn refused_events() -> u64 {
    REFUSED_EVENTS.load(Relaxed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn site(
        name: &'static std::ffi::CStr,
        fields: &'static std::ffi::CStr,
        types: &'static [u8],
    ) -> CallSite {
        CallSite {
            name: name.as_ptr(),
            fields: fields.as_ptr(),
            types: types.as_ptr(),
            count: types.len() as u32,
            state: 0.into(),
            id: 0.into(),
            name_hash: 0.into(),
        }
    }

    #[test]
    fn codes_of_types_are_as_in_the_wires_list() {
        use FieldType as T;
        let codes = [
            (HYPERTRACE_TYPE_U8, T::U8),
            (HYPERTRACE_TYPE_U16, T::U16),
            (HYPERTRACE_TYPE_U32, T::U32),
            (HYPERTRACE_TYPE_U64, T::U64),
            (HYPERTRACE_TYPE_I8, T::I8),
            (HYPERTRACE_TYPE_I16, T::I16),
            (HYPERTRACE_TYPE_I32, T::I32),
            (HYPERTRACE_TYPE_I64, T::I64),
            (HYPERTRACE_TYPE_F64, T::F64),
            (HYPERTRACE_TYPE_BOOL, T::Bool),
            (HYPERTRACE_TYPE_X64, T::X64),
            (HYPERTRACE_TYPE_STR, T::Str),
        ];
        for (code, ty) in codes {
            assert_eq!(field_type(code), Some(ty));
        }
        assert_eq!(field_type(codes.len() as u8), None);
    }

    #[test]
    fn a_site_has_the_id_of_its_text() {
        let types = &[HYPERTRACE_TYPE_U64, HYPERTRACE_TYPE_STR];
        let site = site(c"disk_read", c"lba,path,", types);
        // SAFETY: the site is as the macros make a site.
        let known = unsafe { Known::of(&site) }.unwrap();
        assert_eq!(Text::id(known.0), schema::id_of("disk_read(lba:u64,path:str)"));
        assert_eq!(known.name_hash(), schema::name_hash("disk_read"));
        assert_eq!(known.strings(), 0b10);
    }

    #[test]
    fn invalid_names_and_types_are_refused() {
        let one = &[HYPERTRACE_TYPE_U64];
        let many = &[HYPERTRACE_TYPE_U64; 17];
        let long = c"a1234567890123456789012345678901234567890123456789012345678901234";
        for (name, fields, types) in [
            (c"no name", c"a,", &one[..]),
            (c"", c"a,", one),
            (long, c"a,", one),
            (c"e", c"p->len,", one),
            (c"e", long, one),
            (c"e", c"", one),
            (c"e", c"a,", &[200]),
            (c"e", c"a,a,", &[1, 1]),
            (c"e", c"a,b,c,d,e,f,g,h,i,j,k,l,m,n,o,p,q,", many),
        ] {
            let site = site(name, fields, types);
            for _ in 0..2 {
                // SAFETY: the site is as the macros make a site.
                assert!(unsafe { Known::of(&site) }.is_none(), "{name:?} {fields:?}");
            }
        }
    }

    #[test]
    fn strings_are_cut_at_a_character_and_null_is_shown() {
        let long = std::ffi::CString::new("ä".repeat(1000)).unwrap();
        let values = [7, long.as_ptr() as u64, 0];
        // SAFETY: the two addresses are the address of a C string, and null.
        let mixed = unsafe { Mixed::new(&values, 0b110) };
        let out: Vec<_> = (0..(&mixed).words()).map(|_| AtomicU64::new(!0)).collect();
        (&mixed).put(&out);
        let words: Vec<_> = out.iter().map(|word| word.load(Relaxed)).collect();
        let text = "e(n:u64,s:str,t:str)";
        let shape = Schema::parse(text).unwrap().shape();
        assert!(shape.check(&words).is_some());
        let values: Vec<_> = shape.values(&words).collect();
        let cut = "ä".repeat(512);
        use schema::Value;
        assert_eq!(values, [Value::Unsigned(7), Value::Str(cut.as_bytes()), Value::Str(b"(null)")]);
    }
}
