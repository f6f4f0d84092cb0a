//! `cargo xtask words`: finds words in comments and documents that read badly, and names better ones.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use crate::tree::files;

/// Phrases that read badly, each with a better one. A capital letter restricts a phrase to the beginning of a sentence.
const TABLE: &[(&str, &str)] = &[
    ("stands", "is, has, appears"),
    ("stood", "was"),
    ("tells", "says, shows, reports"),
    ("told", "reported, given"),
    ("untold", "unreported"),
    ("behind", "after"),
    ("for ever", "forever, until the process ends"),
    ("goes on", "continues"),
    ("go on", "continue"),
    ("going on", "continuing"),
    ("as it is", "unchanged"),
    ("as they are", "unchanged"),
    ("whoever", "the user, the caller, the process that"),
    ("one's own", "a program's, its"),
    ("lies", "is"),
    ("lie", "are"),
    ("comes", "is, arrives, follows"),
    ("has it", "makes it, lets it"),
    ("Who", "a noun: the user, the process that"),
    ("What", "a noun: the events that, the place where"),
];

/// Places where a word of the table is right: lines of a path's beginning, `: `, and the words around.
const ALLOWED: &str = include_str!("../words.allow");

/// Checks all comments and documents below `root`. Prints each bad phrase; returns true if there is none.
///
/// # Errors
/// If a file cannot be read.
pub fn check(root: &Path) -> Result<bool> {
    let found = find(root)?;
    for line in &found {
        println!("{line}");
    }
    Ok(found.is_empty())
}

fn find(root: &Path) -> Result<Vec<String>> {
    let mut found = Vec::new();
    for path in files(root)? {
        let name = path.strip_prefix(root)?.to_string_lossy();
        if matches!(name.rsplit('.').next(), Some("rs" | "md" | "toml" | "h" | "c")) {
            let text = fs::read_to_string(&path).with_context(|| format!("cannot read {name}"))?;
            found.extend(bad_phrases(&name, &text));
        }
    }
    Ok(found)
}

/// Returns the phrases of the table in a file's comments, with its name, line and the better phrase.
fn bad_phrases(name: &str, text: &str) -> Vec<String> {
    // All prose of the file as one line, and where each of its lines begins there.
    let (mut prose, mut lines) = (String::from("."), Vec::new());
    let mut fenced = false;
    for (number, line) in text.lines().enumerate() {
        fenced ^= line.trim_start().starts_with("```");
        lines.push((prose.len(), number + 1));
        match comment(name, line) {
            Some(words) if !fenced && !words.trim().is_empty() => {
                words.split_whitespace().for_each(|word| {
                    prose.push(' ');
                    prose.push_str(word);
                })
            }
            _ => prose.push('.'),
        }
    }
    let lower = prose.to_ascii_lowercase();
    let is_word = |c: char| c.is_alphanumeric() || c == '_' || c == '`';
    let mut found = Vec::new();
    for (phrase, better) in TABLE {
        for (at, _) in lower.match_indices(&phrase.to_lowercase()) {
            let (before, end) = (&prose[..at], at + phrase.len());
            let begins = before.trim_end().ends_with(['.', ':', '|', '#', '*', '-', '?', '"']);
            let inside = before.ends_with(is_word) || prose[end..].starts_with(is_word);
            let capital = phrase.starts_with(char::is_uppercase);
            if inside || capital && !(begins && prose[at..].starts_with(phrase)) {
                continue;
            }
            let allowed =
                ALLOWED.lines().filter_map(|line| line.split_once(": ")).any(|(path, words)| {
                    let mut places =
                        lower.match_indices(words).map(|(from, _)| from..from + words.len());
                    name.starts_with(path.trim_matches('*'))
                        && places.any(|place| place.contains(&at))
                });
            if !allowed {
                let line = lines.partition_point(|(from, _)| *from <= at);
                let number = lines[line.max(1) - 1].1;
                found.push(format!("{name}:{number}: \"{phrase}\": better {better}"));
            }
        }
    }
    found
}

/// Returns the prose of a line: a comment of a source, a line of a document.
fn comment<'l>(name: &str, line: &'l str) -> Option<&'l str> {
    let trimmed = line.trim_start();
    let after = |mark: &str| {
        let at = line
            .match_indices(mark)
            .find(|(at, _)| line[..*at].matches('"').count().is_multiple_of(2))?
            .0;
        Some(line[at..].trim_start_matches(['/', '!', '#', '*']))
    };
    match name.rsplit('.').next()? {
        "md" => Some(line),
        "toml" => after("#"),
        "rs" => after("//"),
        _ if trimmed.starts_with('*') => Some(trimmed.trim_start_matches(['*', '/'])),
        _ => after("//").or_else(|| after("/*")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_documents_have_no_bad_phrase() {
        let root = crate::root().unwrap();
        let found = find(&root).unwrap();
        assert!(found.is_empty(), "{}", found.join("\n"));
    }

    #[test]
    fn phrases_are_found_in_prose_across_lines() {
        let code =
            "//! It goes\n//! on.\nlet stands = \"stands\"; // It stands\n\n/// What it is\n";
        let found = bad_phrases("x.rs", code);
        assert_eq!(
            found,
            [
                "x.rs:3: \"stands\": better is, has, appears",
                "x.rs:1: \"goes on\": better continues",
                "x.rs:5: \"What\": better a noun: the events that, the place where",
            ]
        );
        assert!(bad_phrases("x.rs", "// it stands for, say what `told` is\n").is_empty());
        assert!(bad_phrases("x.md", "```\ntold\n```\n").is_empty());
        assert_eq!(bad_phrases("x.toml", "a = \"told\" # told\n").len(), 1);
        assert_eq!(bad_phrases("x.h", "/*\n * told\n */\n").len(), 1);
    }
}
