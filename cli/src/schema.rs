//! The members of a type of JSON, compared with docs/json.md.

use hypertrace_tests::json_md::{Schema as Documented, fits, schemas};
use serde::de::value::{Error, StrDeserializer};
use serde::de::{
    Deserialize, DeserializeSeed, Deserializer, IntoDeserializer, MapAccess, SeqAccess, Visitor,
};
use std::slice::Iter;

/// Types of the members of a type, by their paths.
#[derive(Debug, Default)]
struct Schema(Documented);

impl Schema {
    /// Returns the members of a type, beside the version.
    fn of<T: Deserialize<'static>>() -> Schema {
        Schema::default().with::<T>("").with::<u32>("version")
    }

    /// Adds a member of a type.
    fn with<T: Deserialize<'static>>(mut self, path: &str) -> Schema {
        T::deserialize(Member { path: path.to_owned(), known: &mut self.0 }).unwrap();
        self
    }

    /// Asserts that the documentation of a command has these members, and no others.
    #[track_caller]
    fn is_documented_as(&self, command: &str) {
        let documented = &schemas()[command];
        for (path, types) in &self.0 {
            let mut known = documented.iter().filter(|(known, types)| fits(known, types, path));
            let Some((_, said)) = known.next() else {
                panic!("{command}: {path} is not documented: {types:?}");
            };
            assert!(
                said == types || said.contains("any"),
                "{command}: {path} is {types:?}, not {said:?}"
            );
        }
        for (path, types) in documented {
            let is_member = self.0.keys().any(|member| fits(path, types, member));
            assert!(is_member, "{command}: {path} is documented, and no member");
        }
    }
}

/// A member whose type asks to be read: that says what it is.
struct Member<'k> {
    path: String,
    known: &'k mut Documented,
}

impl Member<'_> {
    fn note(&mut self, kind: &str) {
        if !self.path.is_empty() {
            self.known.entry(self.path.clone()).or_default().insert(kind.to_owned());
        }
    }

    fn below(&mut self, name: &str) -> Member<'_> {
        let dot = if self.path.is_empty() || name == "[]" { "" } else { "." };
        Member { path: format!("{}{dot}{name}", self.path), known: self.known }
    }
}

macro_rules! scalars {
    ($($read:ident $visit:ident $value:expr, $kind:literal;)*) => {$(
        fn $read<V: Visitor<'static>>(mut self, visitor: V) -> Result<V::Value, Error> {
            self.note($kind);
            visitor.$visit($value)
        }
    )*};
}

impl Deserializer<'static> for Member<'_> {
    type Error = Error;

    scalars! {
        deserialize_bool visit_bool false, "bool";
        deserialize_u8 visit_u8 0, "number";
        deserialize_u16 visit_u16 0, "number";
        deserialize_u32 visit_u32 0, "number";
        deserialize_f64 visit_f64 0.0, "number";
        deserialize_u64 visit_u64 0, "integer";
        deserialize_i64 visit_i64 0, "integer";
        deserialize_str visit_borrowed_str "", "string";
        deserialize_string visit_borrowed_str "", "string";
    }

    fn deserialize_option<V: Visitor<'static>>(mut self, visitor: V) -> Result<V::Value, Error> {
        self.note("null");
        visitor.visit_some(self)
    }

    fn deserialize_newtype_struct<V: Visitor<'static>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, Error> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_seq<V: Visitor<'static>>(mut self, visitor: V) -> Result<V::Value, Error> {
        self.note("array");
        visitor.visit_seq(Members { names: ["[]"].iter(), of: self, next: "" })
    }

    fn deserialize_map<V: Visitor<'static>>(mut self, visitor: V) -> Result<V::Value, Error> {
        self.note("object");
        visitor.visit_map(Members { names: ["*"].iter(), of: self, next: "" })
    }

    fn deserialize_struct<V: Visitor<'static>>(
        mut self,
        _: &'static str,
        names: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        self.note("object");
        visitor.visit_map(Members { names: names.iter(), of: self, next: "" })
    }

    fn deserialize_any<V: Visitor<'static>>(mut self, visitor: V) -> Result<V::Value, Error> {
        self.note("any");
        visitor.visit_unit()
    }

    serde::forward_to_deserialize_any! {
        <V: Visitor<'static>>
        i8 i16 i32 i128 u128 f32 char bytes byte_buf unit unit_struct tuple tuple_struct enum identifier ignored_any
    }
}

/// The members of an object, or those of an array.
struct Members<'k> {
    names: Iter<'static, &'static str>,
    of: Member<'k>,
    next: &'static str,
}

impl MapAccess<'static> for Members<'_> {
    type Error = Error;

    fn next_key_seed<K: DeserializeSeed<'static>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, Error> {
        let Some(name) = self.names.next() else { return Ok(None) };
        self.next = name;
        let name: StrDeserializer<'_, Error> = name.into_deserializer();
        seed.deserialize(name).map(Some)
    }

    fn next_value_seed<S: DeserializeSeed<'static>>(&mut self, seed: S) -> Result<S::Value, Error> {
        seed.deserialize(self.of.below(self.next))
    }
}

impl SeqAccess<'static> for Members<'_> {
    type Error = Error;

    fn next_element_seed<S: DeserializeSeed<'static>>(
        &mut self,
        seed: S,
    ) -> Result<Option<S::Value>, Error> {
        let Some(name) = self.names.next() else { return Ok(None) };
        seed.deserialize(self.of.below(name)).map(Some)
    }
}

#[test]
fn the_types_of_json_are_those_of_the_documentation() {
    use crate::info::json::{Kernel, Session};
    use crate::regions::json::{Group, Interval, Rest};
    use crate::{demo, functions, info::machine, list};

    Schema::of::<Rest>().with::<Vec<Group>>("regions").is_documented_as("regions");
    Schema::of::<Interval>().is_documented_as("regions --intervals");
    let info = Schema::default().with::<u32>("version").with::<Vec<machine::Shown>>("machine");
    let info = info.with::<Vec<Session>>("sessions").with::<Vec<Kernel>>("kernels");
    info.is_documented_as("info");
    Schema::of::<list::Shown>().is_documented_as("list");
    Schema::of::<functions::Json>().is_documented_as("functions");
    Schema::of::<demo::Counts>().is_documented_as("demo");
}
