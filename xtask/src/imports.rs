//! `cargo xtask imports`: shows which parts of each folder import which, floor by floor, and finds circles. Paths inside
//! the arguments of macros are not seen.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use syn::visit::{self, Visit};
use syn::{Attribute, ItemFn, ItemMod, ItemUse, UseTree, Visibility};

use crate::tree::{entries, files};

/// A path of names from a crate's root.
type Names = Vec<String>;

/// Imports and exports of a crate's modules, by the path of the module.
#[derive(Default)]
struct Crate {
    modules: BTreeMap<Names, Module>,
}

#[derive(Default)]
struct Module {
    /// Paths that the module's code names.
    imports: BTreeSet<Names>,
    /// Names that the module passes on, each with the path of the item.
    exports: BTreeMap<String, Names>,
}

/// The parts of a folder, each with the parts that it imports.
type Folder = BTreeMap<String, BTreeSet<String>>;

/// Prints the floors of each folder below `root`. A part imports only parts of lower floors: returns false if some
/// import each other.
///
/// # Errors
/// If a file cannot be read or parsed.
pub fn check(root: &Path) -> Result<bool> {
    let mut is_good = true;
    let packages = files(root)?.into_iter().filter(|path| path.ends_with("Cargo.toml"));
    let sources = packages.map(|package| package.with_file_name("src"));
    for source in sources.filter(|source| source.is_dir()) {
        let mut code = Crate::default();
        code.read(&source, &Names::new())?;
        let name = source.strip_prefix(root)?.display().to_string();
        for (folder, parts) in code.folders() {
            let place = format!("{name}/{}", folder.join("/"));
            let (floors, circle) = floors(&parts);
            if parts.values().any(|imports| !imports.is_empty()) {
                println!("{place}");
                for floor in floors.iter().rev() {
                    println!("    {}", floor.join(", "));
                }
            }
            for (part, imports) in &circle {
                is_good = false;
                println!("FAILED: in {place}, {part} is in a circle: it imports {imports:?}");
            }
        }
    }
    Ok(is_good)
}

impl Crate {
    /// Reads the modules in a folder, which belongs to the module `module`.
    fn read(&mut self, folder: &Path, module: &[String]) -> Result<()> {
        for path in entries(folder)? {
            let stem = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            let inner = [module, std::slice::from_ref(&stem)].concat();
            if path.is_dir() {
                self.read(&path, &inner)?;
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let is_front = matches!(&*stem, "lib" | "main" | "mod");
                let text = fs::read_to_string(&path)?;
                let file = syn::parse_file(&text)
                    .with_context(|| format!("cannot parse {}", path.display()))?;
                let at = if is_front { module.to_vec() } else { inner };
                let found = self.modules.entry(at.clone()).or_default();
                Reader { at, module: found }.visit_file(&file);
            }
        }
        Ok(())
    }

    /// Returns the module that defines what is at `path`.
    fn definer(&self, path: &[String]) -> Names {
        let mut path = path.to_vec();
        // More steps than any chain of re-exports has.
        for _ in 0..8 {
            let is_module = |length: &usize| self.modules.contains_key(&path[..*length]);
            let length = (0..=path.len()).rev().find(is_module).unwrap_or(0);
            let module = self.modules.get(&path[..length]);
            let exported = path.get(length).and_then(|name| module?.exports.get(name));
            match exported {
                Some(target) => path = [&target[..], &path[length + 1..]].concat(),
                None => return path[..length].to_vec(),
            }
        }
        path
    }

    /// Returns the parts of each folder. A folder's own file (`mod.rs`, `lib.rs`) is none of them: it is above all.
    fn folders(&self) -> BTreeMap<Names, Folder> {
        let mut folders = BTreeMap::<Names, Folder>::new();
        for path in self.modules.keys().filter(|path| !path.is_empty()) {
            let (last, folder) = path.split_last().expect("the path is not empty");
            folders.entry(folder.to_vec()).or_default().entry(last.clone()).or_default();
        }
        for (from, module) in &self.modules {
            for path in &module.imports {
                let to = self.definer(path);
                let common = from.iter().zip(&to).take_while(|(a, b)| a == b).count();
                if let (Some(a), Some(b)) = (from.get(common), to.get(common)) {
                    let folder = folders.entry(from[..common].to_vec()).or_default();
                    folder.entry(a.clone()).or_default().insert(b.clone());
                }
            }
        }
        folders
    }
}

/// Returns the parts on each floor, from the lowest, and the parts that have no floor because they import each other.
fn floors(parts: &Folder) -> (Vec<Vec<String>>, Folder) {
    let (mut left, mut floors) = (parts.clone(), Vec::new());
    while let Some(floor) = take(&mut left, |_, imports, _| imports.is_empty()) {
        floors.push(floor);
    }
    // Parts above a circle are no parts of it.
    while take(&mut left, |part, _, imported| !imported.contains(part)).is_some() {}
    (floors, left)
}

/// Removes the parts that `is_next` selects by name, own imports and the imports of all. `None` if there is none.
fn take(
    parts: &mut Folder,
    is_next: impl Fn(&str, &BTreeSet<String>, &BTreeSet<String>) -> bool,
) -> Option<Vec<String>> {
    let imported = parts.values().flatten().cloned().collect();
    let next = |(part, imports): &(&String, &BTreeSet<String>)| is_next(part, imports, &imported);
    let taken: Vec<String> = parts.iter().filter(next).map(|(part, _)| part.clone()).collect();
    parts.retain(|part, _| !taken.contains(part));
    parts.values_mut().for_each(|imports| imports.retain(|import| !taken.contains(import)));
    (!taken.is_empty()).then_some(taken)
}

/// Reader of one file's paths.
struct Reader<'m> {
    /// Path of the module, with those inside of the file.
    at: Names,
    module: &'m mut Module,
}

impl Reader<'_> {
    /// Returns a path from the crate's root; `None` if it does not begin with `crate`, `self` or `super`.
    fn absolute(&self, path: &[String]) -> Option<Names> {
        let (first, mut rest) = path.split_first()?;
        let mut base = match first.as_str() {
            "crate" => return Some(rest.to_vec()),
            "self" => self.at.clone(),
            "super" => self.at[..self.at.len().checked_sub(1)?].to_vec(),
            _ => return None,
        };
        while rest.first().is_some_and(|name| name == "super") {
            base.pop();
            rest = &rest[1..];
        }
        Some([&base[..], rest].concat())
    }

    fn import(&mut self, path: &[String]) {
        self.module.imports.extend(self.absolute(path));
    }

    /// Walks a tree of imports. `prefix` is the path to it.
    fn walk(&mut self, tree: &UseTree, prefix: &mut Names, is_export: bool) {
        match tree {
            UseTree::Path(path) => {
                prefix.push(path.ident.to_string());
                self.walk(&path.tree, prefix, is_export);
                prefix.pop();
            }
            UseTree::Group(group) => {
                for tree in &group.items {
                    self.walk(tree, prefix, is_export);
                }
            }
            UseTree::Glob(_) => self.import(prefix),
            UseTree::Name(item) => self.name(&item.ident, &item.ident, prefix, is_export),
            UseTree::Rename(item) => self.name(&item.ident, &item.rename, prefix, is_export),
        }
    }

    fn name(&mut self, item: &syn::Ident, name: &syn::Ident, prefix: &[String], is_export: bool) {
        let path = [prefix, &[item.to_string()]].concat();
        self.import(&path);
        if is_export {
            // A path that begins with none of the three begins with a module of this one, or with another crate.
            let local = [&self.at[..], &path[..]].concat();
            let target = self.absolute(&path).unwrap_or(local);
            self.module.exports.insert(name.to_string(), target);
        }
    }
}

fn is_test(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        let path = attribute.path();
        let condition = attribute.parse_args::<syn::Path>();
        path.is_ident("test")
            || path.is_ident("cfg") && condition.is_ok_and(|condition| condition.is_ident("test"))
    })
}

impl Visit<'_> for Reader<'_> {
    fn visit_item_mod(&mut self, module: &ItemMod) {
        if !is_test(&module.attrs) {
            self.at.push(module.ident.to_string());
            visit::visit_item_mod(self, module);
            self.at.pop();
        }
    }

    fn visit_item_fn(&mut self, function: &ItemFn) {
        if !is_test(&function.attrs) {
            visit::visit_item_fn(self, function);
        }
    }

    fn visit_item_use(&mut self, item: &ItemUse) {
        if !is_test(&item.attrs) {
            let is_export = !matches!(item.vis, Visibility::Inherited);
            self.walk(&item.tree, &mut Names::new(), is_export);
        }
    }

    fn visit_path(&mut self, path: &syn::Path) {
        let names: Names = path.segments.iter().map(|part| part.ident.to_string()).collect();
        self.import(&names);
        visit::visit_path(self, path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(files: &[(&[&str], &str)]) -> Crate {
        let mut code = Crate::default();
        for (at, text) in files {
            let at: Names = at.iter().map(|&name| name.to_owned()).collect();
            let module = code.modules.entry(at.clone()).or_default();
            Reader { at, module }.visit_file(&syn::parse_file(text).unwrap());
        }
        code
    }

    fn circle(files: &[(&[&str], &str)]) -> Vec<String> {
        let folders = read(files).folders();
        folders.values().flat_map(|parts| floors(parts).1.into_keys()).collect()
    }

    #[test]
    fn parts_of_a_folder_have_a_floor_above_those_that_they_import() {
        let code = read(&[
            (&["a"], "use crate::b::{c::Deep, Other};"),
            (&["b", "c"], "use super::d; struct Deep;"),
            (&["b", "d"], "fn f(_: std::io::Error) {}"),
            (&["b"], "pub use d::Other;"),
        ]);
        let folders = code.folders();

        assert_eq!(floors(&folders[&Names::new()]).0, [["b"], ["a"]]);
        assert_eq!(floors(&folders[&vec!["b".to_owned()]]).0, [["d"], ["c"]]);
    }

    #[test]
    fn a_circle_is_found_in_imports_in_paths_and_through_names_that_a_parent_passes_on() {
        let imports = circle(&[(&["a"], "use super::b::B;"), (&["b"], "use crate::a::A as C;")]);
        let paths = circle(&[(&["a"], "use crate::b;"), (&["b"], "fn f() { crate::a::g() }")]);
        let parent =
            circle(&[(&[], "pub use b::B;"), (&["a"], "use crate::B;"), (&["b"], "use crate::a;")]);

        assert_eq!(imports, ["a", "b"]);
        assert_eq!(paths, ["a", "b"]);
        assert_eq!(parent, ["a", "b"]);
    }

    #[test]
    fn imports_of_tests_do_not_count() {
        let test = "#[cfg(test)] mod tests { use crate::a::A; }";

        assert!(circle(&[(&["a"], "use crate::b::B;"), (&["b"], test)]).is_empty());
    }
}
