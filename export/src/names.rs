// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Names of functions that are compiled in, whose events have addresses.

use crate::Result;
use crate::uftrace::{Module, function_of, place};
use hypertrace_functions::symbols::Source;
use hypertrace_timeline::EventRef;
use std::collections::HashMap;

/// Most functions whose names are kept for their next event.
const MOST_KEPT: usize = 1 << 16;

/// Name of a function.
#[derive(Clone, Debug)]
pub struct FunctionName {
    /// As in the source.
    pub name: String,
    /// The symbol, if it is another name.
    pub symbol: Option<String>,
}

/// Names of compiled-in functions.
#[derive(Debug)]
pub struct Functions {
    modules: Vec<Module>,
    kept: HashMap<u64, Option<FunctionName>>,
}

impl Functions {
    /// Reads the functions of these files.
    ///
    /// # Errors
    /// If a file cannot be read.
    pub fn read(sources: &[Source]) -> Result<Functions> {
        let modules = sources.iter().map(Module::read).collect::<Result<Vec<_>>>()?;
        Ok(Functions { modules, kept: HashMap::new() })
    }

    /// Returns the name of the function that an event enters or leaves. Other events may say where the files are: all
    /// are due here, in their order.
    pub fn name(&mut self, event: &EventRef<'_>) -> Option<&FunctionName> {
        if self.modules.is_empty() {
            return None;
        }
        if place(&mut self.modules, event) {
            self.kept.clear();
            return None;
        }
        let address = function_of(event)?;
        if self.kept.len() >= MOST_KEPT {
            self.kept.clear();
        }
        let Functions { modules, kept } = self;
        let find = || {
            let symbol = modules.iter().find_map(|module| module.symbols.lookup(address))?;
            let name = symbol.demangled().into_owned();
            let other = Some(symbol.name).filter(|symbol| *symbol != name).map(str::to_owned);
            Some(FunctionName { name, symbol: other })
        };
        kept.entry(address).or_insert_with(find).as_ref()
    }
}
