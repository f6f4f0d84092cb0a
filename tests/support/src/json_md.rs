// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Compares two sources of JSON members: the members that docs/json.md lists for each command with their
//! types, and the members of the Rust types.

use serde::de::value::{Error, StrDeserializer};
use serde::de::{
    Deserialize, DeserializeSeed, Deserializer, IntoDeserializer, MapAccess, SeqAccess, Visitor,
};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::slice::Iter;

/// For each path of a member of a command, the member's type.
pub type Schema = BTreeMap<String, BTreeSet<String>>;
/// Schemas of the commands, by name.
pub type Schemas = BTreeMap<String, Schema>;

/// Names of types. A `?` behind a name also allows `null`.
const TYPES: [&str; 7] = ["number", "integer", "string", "bool", "object", "array", "any"];

/// Returns the columns of a line. At least two spaces separate columns.
fn columns(line: &str) -> Vec<&str> {
    line.split("  ").map(str::trim).filter(|column| !column.is_empty()).collect()
}

/// Reads the documentation.
pub fn schemas() -> Schemas {
    let text = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/json.md"));
    let (mut schemas, mut command, mut is_code) = (Schemas::new(), String::new(), false);
    // The members around a line, each with its indentation and paths.
    let mut around: Vec<(usize, Vec<String>)> = Vec::new();
    for line in text.unwrap().lines() {
        if let Some(name) = line.strip_prefix("## ") {
            command = name.to_owned();
        }
        if line.starts_with("```") {
            is_code ^= true;
        } else if is_code {
            let schema = schemas.entry(command.clone()).or_default();
            let indentation = line.len() - line.trim_start().len();
            around.retain(|(outer, _)| *outer < indentation);
            let columns = columns(line);
            let outer = around.last().map(|(_, paths)| paths.clone());
            let prefixes = outer.map(|paths| Vec::from_iter(paths.iter().map(|p| format!("{p}."))));
            let prefixes = prefixes.unwrap_or_else(|| vec![String::new()]);
            let names = columns[0].split(", ");
            let paths = names.flat_map(|name| prefixes.iter().map(move |p| format!("{p}{name}")));
            let paths = Vec::from_iter(paths);
            let kind = columns.get(1).copied().unwrap_or_default();
            let name = kind.trim_end_matches('?');
            for path in &paths {
                if let Some(array) = path.strip_suffix("[]") {
                    schema.entry(array.to_owned()).or_insert_with(|| ["array".to_owned()].into());
                }
                if TYPES.contains(&name) {
                    let mut types = BTreeSet::from([name.to_owned()]);
                    types.extend(kind.ends_with('?').then(|| "null".to_owned()));
                    let known = schema.insert(path.clone(), types);
                    assert_eq!(known, None, "{command}: {path} stands twice");
                } else {
                    schema.entry(path.clone()).or_insert_with(|| ["object".to_owned()].into());
                }
            }
            around.push((indentation, paths));
        }
    }
    schemas
}

/// Returns whether the documented path `known` covers `path`. In `known`, `*` is any name. A `known` of the
/// type `any` also covers all longer paths with this beginning.
pub fn fits(known: &str, types: &BTreeSet<String>, path: &str) -> bool {
    let (mut known, mut path) = (known.split('.'), path.split('.'));
    loop {
        match (known.next(), path.next()) {
            (None, None) => return true,
            (None, Some(_)) => return types.contains("any"),
            (Some(a), Some(b)) if a == b || a == "*" => {}
            _ => return false,
        }
    }
}

/// For each path of a member of a type, the member's type.
#[derive(Debug, Default)]
pub struct Members(Schema);

impl Members {
    /// Returns the members of a type, and the member `version`.
    pub fn of<T: Deserialize<'static>>() -> Members {
        Members::default().with::<T>("").with::<u32>("version")
    }

    /// Adds a member of a type.
    pub fn with<T: Deserialize<'static>>(mut self, path: &str) -> Members {
        T::deserialize(Member { path: path.to_owned(), known: &mut self.0 }).unwrap();
        self
    }

    /// Asserts that the documentation of a command has these members, and no others.
    #[track_caller]
    pub fn is_documented_as(&self, command: &str) {
        self.are_documented_in(command, &[""]);
    }

    /// Asserts that these members agree with the documentation of a command. All of these members are
    /// documented, and each documented path that begins with one of `begins` is a path of these members.
    #[track_caller]
    pub fn are_documented_in(&self, command: &str, begins: &[&str]) {
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
        let is_wanted = |path: &str| begins.iter().any(|begin| path.starts_with(begin));
        for (path, types) in documented.iter().filter(|(path, _)| is_wanted(path)) {
            let is_member = self.0.keys().any(|member| fits(path, types, member));
            assert!(is_member, "{command}: {path} is documented, and no member");
        }
    }
}

/// Deserializer that notes the type for which a member's code asks.
struct Member<'k> {
    path: String,
    known: &'k mut Schema,
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
        visitor.visit_seq(Visited { names: ["[]"].iter(), of: self, next: "" })
    }

    fn deserialize_map<V: Visitor<'static>>(mut self, visitor: V) -> Result<V::Value, Error> {
        self.note("object");
        visitor.visit_map(Visited { names: ["*"].iter(), of: self, next: "" })
    }

    fn deserialize_struct<V: Visitor<'static>>(
        mut self,
        _: &'static str,
        names: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        self.note("object");
        visitor.visit_map(Visited { names: names.iter(), of: self, next: "" })
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

/// The members of an object or of an array.
struct Visited<'k> {
    names: Iter<'static, &'static str>,
    of: Member<'k>,
    next: &'static str,
}

impl MapAccess<'static> for Visited<'_> {
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

impl SeqAccess<'static> for Visited<'_> {
    type Error = Error;

    fn next_element_seed<S: DeserializeSeed<'static>>(
        &mut self,
        seed: S,
    ) -> Result<Option<S::Value>, Error> {
        let Some(name) = self.names.next() else { return Ok(None) };
        seed.deserialize(self.of.below(name)).map(Some)
    }
}
