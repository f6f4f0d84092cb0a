// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Names of a guest's functions, and fields of the events at which a function is entered or left.

use crate::value::{Name, ValueRef};
use hypertrace_functions::symbols::Symbol;
use std::sync::Arc;

/// Name of a function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FunctionName {
    /// Name of the function in the source code.
    pub name: String,
    /// Symbol of the function, if the symbol differs from the name.
    pub symbol: Option<String>,
}

impl FunctionName {
    pub(crate) fn of(symbol: Symbol<'_>) -> FunctionName {
        let name = symbol.demangled().into_owned();
        let other = Some(symbol.name).filter(|symbol| *symbol != name).map(str::to_owned);
        FunctionName { name, symbol: other }
    }

    /// Returns the name as a value of a field.
    pub fn value(&self) -> ValueRef<'_> {
        text(&self.name)
    }
}

/// Names of the events in function traces, and names of the events' fields.
#[derive(Debug)]
pub(crate) struct EventNames {
    pub entry: Arc<str>,
    pub exit: Arc<str>,
    pub name: Arc<str>,
    pub address: Arc<str>,
    pub depth: Arc<str>,
    pub symbol: Arc<str>,
}

/// Fields of a function's event: the function's name or address, the depth, and the symbol if it differs from
/// the name.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FunctionFields<'a> {
    pub names: &'a EventNames,
    pub function: &'a Function,
    pub depth: u64,
}

/// The function that an event enters or leaves.
#[derive(Debug)]
pub(crate) enum Function {
    /// Address of a function without a symbol.
    Unknown(u64),
    Named(FunctionName),
}

impl<'a> FunctionFields<'a> {
    pub fn iter(&self) -> impl Iterator<Item = (&'a Arc<str>, ValueRef<'a>)> + use<'a> {
        let FunctionFields { names, function, depth } = *self;
        let (first, symbol) = match function {
            Function::Unknown(address) => ((&names.address, ValueRef::Hex(*address)), None),
            Function::Named(function) => {
                ((&names.name, function.value()), function.symbol.as_deref())
            }
        };
        let symbol = symbol.map(|symbol| (&names.symbol, text(symbol)));
        [Some(first), Some((&names.depth, ValueRef::Unsigned(depth))), symbol].into_iter().flatten()
    }
}

fn text(name: &str) -> ValueRef<'_> {
    // A plain name needs no quotes, so the value is a `Name`, which is printed without quotes.
    match name.bytes().all(|c| c.is_ascii_graphic() && !b"\"\\".contains(&c)) {
        true => ValueRef::Name(Name::of(name)),
        false => ValueRef::Str(name.as_bytes()),
    }
}
