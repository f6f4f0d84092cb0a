// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Paths of calls. A path is a function together with all functions that have called the function, directly
//! or indirectly. Each path is kept only once.

use std::collections::HashMap;

/// Maximum number of a task's paths. If a call has a path beyond this number, then the call gets the path of
/// its caller.
pub const MAX_PATHS: usize = 1 << 20;

/// Number that stands for no path.
const NONE: u32 = u32::MAX;

/// Paths of one task's calls, as a tree.
#[derive(Debug, Default)]
pub(super) struct Paths {
    /// For each path: the id of the calling function's path, and the address of the innermost function
    nodes: Vec<(u32, u64)>,
    numbers: HashMap<(u32, u64), u32>,
    /// Number of times that there was no room for another path
    beyond: u64,
}

impl Paths {
    /// Returns the path of `function`, which the innermost function of path `outer` has called. Without
    /// `outer`, `function` is an outermost function.
    pub fn within(&mut self, outer: Option<u32>, function: u64) -> u32 {
        let node = (outer.unwrap_or(NONE), function);
        if let Some(path) = self.numbers.get(&node) {
            return *path;
        }
        // MAX_PATHS is less than u32::MAX.
        let path = self.nodes.len() as u32;
        if self.nodes.len() >= MAX_PATHS {
            self.beyond += 1;
            return outer.unwrap_or(NONE);
        }
        self.nodes.push(node);
        self.numbers.insert(node, path);
        path
    }

    /// Returns, in the order of the paths' ids, the outer path and the innermost function of each path.
    pub fn nodes(&self) -> &[(u32, u64)] {
        &self.nodes
    }

    /// Returns the number of calls that got the path of their caller, because there were too many paths.
    pub fn beyond(&self) -> u64 {
        self.beyond
    }

    /// Returns the functions of a path, the outermost first.
    pub fn functions(&self, path: u32) -> Vec<u64> {
        let mut functions = Vec::new();
        let mut at = path;
        // A path has a higher id than its caller's path, so each round has a lower id in `at`.
        while let Some((outer, function)) = self.nodes.get(at as usize) {
            functions.push(*function);
            at = *outer;
        }
        functions.reverse();
        functions
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_has_one_number() {
        let mut paths = Paths::default();
        let main = paths.within(None, 1);
        let inner = paths.within(Some(main), 2);

        assert_eq!(paths.within(None, 1), main);
        assert_eq!(paths.within(Some(main), 2), inner);
        assert_ne!(paths.within(None, 2), inner);
        assert_eq!(paths.functions(inner), [1, 2]);
        assert!(paths.functions(NONE).is_empty());
    }

    #[test]
    fn too_many_paths_end_at_their_callers() {
        let mut paths = Paths::default();
        let main = paths.within(None, 0);
        (1..MAX_PATHS as u64).for_each(|function| _ = paths.within(Some(main), function));

        assert_eq!(paths.within(Some(main), u64::MAX), main);
        assert_eq!(paths.beyond(), 1);
        assert_eq!(paths.nodes.len(), MAX_PATHS);
    }
}
