// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Functions whose calls the program itself records: the program's own events `function_entry` and
//! `function_exit` hold the functions' addresses.

use crate::error::{Error, Result};
use crate::event::{EntryRef, EventRef};
use crate::function::FunctionName;
use crate::inputs::ctf::Session;
use crate::inputs::functions::{ENTRY, EXIT};
use crate::value::ValueRef;
use hypertrace_functions::symbols::{Source, Symbols};
use std::collections::HashMap;

/// Name of the event that says where a process has mapped a file with code.
const MODULE: &str = "function_module";

/// Maximum number of functions whose names are kept for later events.
const MAX_KEPT: usize = 1 << 16;

/// Functions of a file.
#[derive(Clone, Debug)]
pub struct Module {
    /// Name of the file.
    pub name: String,
    /// Functions of the file.
    pub symbols: Symbols,
    /// Whether the functions still have the addresses from the file. If true, an event `function_module` with
    /// a file of this name moves the functions to their addresses in the process.
    pub is_in_file: bool,
}

impl Module {
    /// Reads the functions of a file. Without an offset, the functions have the addresses that stand in the
    /// file.
    ///
    /// # Errors
    /// If the file has no functions. The message says why.
    pub fn read(source: &Source) -> Result<Module> {
        let name = source.path.file_name().unwrap_or(source.path.as_os_str());
        let name = name.to_string_lossy().into_owned();
        let symbols = Symbols::read(source).map_err(Error::Functions)?;
        Ok(Module { name, symbols, is_in_file: source.offset == 0 })
    }
}

/// Returns whether a session has functions.
pub fn has_functions(session: &Session) -> bool {
    session.classes().iter().any(|class| &*class.name == ENTRY)
}

/// Entry or exit of a function, with its address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// The function at this address is entered.
    Entry(u64),
    /// The function at this address is left.
    Exit(u64),
}

impl Call {
    /// Returns the call that an event of a program describes, or `None` if the event is no entry or exit of a
    /// function.
    pub fn of(event: &EventRef<'_>) -> Option<Call> {
        event.source.client?;
        let call = match &**event.name {
            ENTRY => Call::Entry,
            EXIT => Call::Exit,
            _ => return None,
        };
        // The field's name is checked, because a program may use the event's name for an event of its own.
        match event.fields.iter().next() {
            Some((name, ValueRef::Unsigned(address) | ValueRef::Hex(address)))
                if **name == *"address" =>
            {
                Some(call(address))
            }
            _ => None,
        }
    }
}

/// Moves the functions of a file to the address that an event `function_module` gives. Returns false for any
/// other event. Only the first such event of a file counts, because a file can have only one address in a
/// recording.
pub fn place(modules: &mut [Module], event: &EventRef<'_>) -> bool {
    if &**event.name != MODULE || event.source.client.is_none() {
        return false;
    }
    let (mut path, mut offset) = (None, None);
    for (name, value) in event.fields.iter() {
        match (&**name, value) {
            ("path", ValueRef::Str(text)) => path = Some(String::from_utf8_lossy(text)),
            ("offset", ValueRef::Hex(number) | ValueRef::Unsigned(number)) => offset = Some(number),
            _ => {}
        }
    }
    let (Some(path), Some(offset)) = (path, offset) else { return false };
    let file = path.rsplit('/').next().unwrap_or_default();
    for module in modules.iter_mut().filter(|module| module.is_in_file && module.name == file) {
        module.symbols = std::mem::take(&mut module.symbols).moved(offset);
        module.is_in_file = false;
    }
    true
}

/// Names of compiled-in functions.
#[derive(Debug, Default)]
pub struct FunctionNames {
    modules: Vec<Module>,
    kept: HashMap<u64, Option<FunctionName>>,
}

impl FunctionNames {
    /// Makes the names of the functions in these files.
    pub fn new(modules: Vec<Module>) -> FunctionNames {
        FunctionNames { modules, kept: HashMap::new() }
    }

    /// Returns the entry. If the entry is an event that enters or leaves a function, adds the function's
    /// name. The caller must pass all entries, in their order.
    pub fn named<'a>(&'a mut self, entry: EntryRef<'a>) -> EntryRef<'a> {
        match entry {
            EntryRef::Event(event) => {
                EntryRef::Event(EventRef { function: self.name(&event), ..event })
            }
            lost => lost,
        }
    }

    /// Returns the name of the function that an event enters or leaves. The caller must pass all events in
    /// their order, because some events say where the files are.
    fn name(&mut self, event: &EventRef<'_>) -> Option<&FunctionName> {
        if self.modules.is_empty() {
            return None;
        }
        if place(&mut self.modules, event) {
            self.kept.clear();
            return None;
        }
        let (Call::Entry(address) | Call::Exit(address)) = Call::of(event)?;
        if self.kept.len() >= MAX_KEPT {
            self.kept.clear();
        }
        let FunctionNames { modules, kept } = self;
        let find = || {
            let symbol = modules.iter().find_map(|module| module.symbols.lookup(address))?;
            Some(FunctionName::of(symbol))
        };
        kept.entry(address).or_insert_with(find).as_ref()
    }
}
