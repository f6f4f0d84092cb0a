//! The machine's apt sources, read and rewritten for a private apt.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

/// Source of binary packages, from a one-line entry or a deb822 stanza.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Source {
    /// Mirrors
    pub uris: Vec<String>,
    /// `bookworm`, `bookworm-updates`; a path that ends in `/` for a repository without components
    pub suites: Vec<String>,
    /// `main`, `universe`
    pub components: Vec<String>,
    /// Other fields that decide whether apt trusts it, by their deb822 names (`Signed-By`); a value can have many lines
    pub options: Vec<(String, String)>,
}

/// The deb822 fields that are copied. The others (architectures, languages, comments) are for the whole system.
const OPTIONS: [&str; 5] =
    ["Signed-By", "Trusted", "Allow-Insecure", "Check-Valid-Until", "Check-Date"];

/// Reads all sources of a machine: `sources.list` and the files of `sources.list.d` under this folder (`/etc/apt`).
pub fn read(etc_apt: &Path) -> Vec<Source> {
    let folder = std::fs::read_dir(etc_apt.join("sources.list.d")).into_iter().flatten().flatten();
    let mut files: Vec<_> = folder.map(|entry| entry.path()).collect();
    files.sort();
    files.insert(0, etc_apt.join("sources.list"));
    let read = |file: &PathBuf| {
        let text = std::fs::read_to_string(file).unwrap_or_default();
        match file.extension().and_then(|e| e.to_str()) {
            Some("list") => parse_list(&text),
            Some("sources") => parse_deb822(&text),
            // As in apt, other endings are ignored (.disabled, .save).
            _ => Vec::new(),
        }
    };
    files.iter().flat_map(read).collect()
}

/// Parses the one-line format: `deb [signed-by=KEYRING arch=amd64] URI SUITE COMPONENT..`
pub fn parse_list(text: &str) -> Vec<Source> {
    text.lines().filter_map(parse_list_line).collect()
}

fn parse_list_line(line: &str) -> Option<Source> {
    let line = line.split('#').next().unwrap_or_default().trim();
    // `deb-src` and `debian` are other words.
    let rest = line.strip_prefix("deb").filter(|rest| rest.starts_with([' ', '\t', '[']))?;
    let rest = rest.trim_start();
    let (options, rest) = match rest.strip_prefix('[') {
        Some(inside) => inside.split_once(']')?,
        None => ("", rest),
    };
    let mut words = rest.split_whitespace().map(str::to_owned);
    let uri = words.next().filter(|uri| !uri.starts_with("cdrom:"))?;
    let suite = words.next()?;
    let options = options
        .split_whitespace()
        .filter_map(|option| option.split_once('='))
        .filter_map(|(name, value)| known_option(name, value.replace(',', " ")))
        .collect();
    Some(Source { uris: vec![uri], suites: vec![suite], components: words.collect(), options })
}

/// Returns an option by its deb822 name, if it is copied.
fn known_option(name: &str, value: String) -> Option<(String, String)> {
    let known = OPTIONS.into_iter().find(|known| known.eq_ignore_ascii_case(name))?;
    Some((known.to_owned(), value))
}

/// Parses the deb822 format: stanzas of `Field: value` with continuation lines.
pub fn parse_deb822(text: &str) -> Vec<Source> {
    let mut sources = Vec::new();
    let mut fields: Vec<(String, String)> = Vec::new();
    // An empty line after the end closes the last stanza.
    for line in text.lines().chain([""]) {
        if line.starts_with('#') {
            continue;
        }
        if line.trim().is_empty() {
            sources.extend(stanza(&fields));
            fields.clear();
        } else if line.starts_with([' ', '\t']) {
            if let Some((_, value)) = fields.last_mut() {
                value.push('\n');
                value.push_str(line);
            }
        } else if let Some((name, value)) = line.split_once(':') {
            fields.push((name.trim().to_owned(), value.trim().to_owned()));
        }
    }
    sources
}

fn stanza(fields: &[(String, String)]) -> Option<Source> {
    let value = |name: &str| {
        let field = fields.iter().find(|(field, _)| field.eq_ignore_ascii_case(name));
        field.map_or("", |(_, value)| value)
    };
    let words =
        |name: &str| -> Vec<String> { value(name).split_whitespace().map(str::to_owned).collect() };
    // The words that apt takes for false.
    let off = ["no", "false", "without", "off", "disable"];
    let is_off = off.contains(&value("Enabled").to_ascii_lowercase().as_str());
    let (mut uris, suites) = (words("URIs"), words("Suites"));
    uris.retain(|uri| !uri.starts_with("cdrom:"));
    let is_binary = words("Types").contains(&"deb".to_owned());
    if is_off || !is_binary || uris.is_empty() || suites.is_empty() {
        return None;
    }
    let options = fields.iter().cloned().filter_map(|(name, value)| known_option(&name, value));
    Some(Source { uris, suites, components: words("Components"), options: options.collect() })
}

/// Selects the sources of a private apt: of the distribution's archive, the machine's suites; or, if suites are given
/// (another release of the same distribution), those suites on the mirror of the first one. Foreign repositories are
/// left out: they cost time and can fail.
pub fn choose(sources: &[Source], codename: Option<&str>, suites: &[&str]) -> Vec<Source> {
    let own = |suite: &String| {
        codename.is_some_and(|name| suite == name || suite.starts_with(&format!("{name}-")))
    };
    let mut chosen = sources.to_vec();
    chosen.retain(|source| source.suites.iter().any(own));
    if chosen.is_empty() {
        // `stable`, `testing`, a derivative: the source with the component that every archive of this kind has.
        chosen = sources.to_vec();
        chosen.retain(|source| source.components.iter().any(|name| name == "main"));
    }
    if !suites.is_empty() {
        // The base suite is on the full archive; `-security` is on another host.
        let base = |s: &String| codename == Some(s) || s == "stable" || s == "testing";
        chosen.retain(|source| source.suites.iter().any(base));
        chosen.truncate(1);
        for source in &mut chosen {
            source.suites = suites.iter().map(|&suite| suite.to_owned()).collect();
        }
    }
    chosen
}

/// Writes sources in deb822 format.
pub fn to_deb822(sources: &[Source]) -> String {
    let mut text = String::new();
    for source in sources {
        let Source { uris, suites, components, .. } = source;
        let _ =
            writeln!(text, "Types: deb\nURIs: {}\nSuites: {}", uris.join(" "), suites.join(" "));
        if !components.is_empty() {
            let _ = writeln!(text, "Components: {}", components.join(" "));
        }
        for (name, value) in &source.options {
            let _ = writeln!(text, "{name}: {value}");
        }
        text.push('\n');
    }
    text
}

/// Returns `VERSION_CODENAME` of an os-release file.
pub fn codename(os_release: &str) -> Option<&str> {
    os_release
        .lines()
        .filter_map(|line| line.strip_prefix("VERSION_CODENAME="))
        .map(|value| value.trim().trim_matches(['"', '\'']))
        .find(|value| !value.is_empty())
}

/// Selects the settings of a machine's apt that concern its mirrors (proxies, certificates, checks of dates) from the
/// output of `apt-config dump`. A private configuration needs these, but not the hooks, which change the system.
pub fn acquire_settings(dump: &str) -> String {
    dump.lines()
        .filter(|line| line.starts_with("Acquire::"))
        // The private apt downloads package lists and nothing else.
        .filter(|line| !line.starts_with("Acquire::IndexTargets"))
        .filter(|line| !line.starts_with("Acquire::Languages"))
        .map(|line| format!("{line}\n"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(uri: &str, suites: &[&str], components: &[&str]) -> Source {
        let owned = |words: &[&str]| words.iter().map(|&word| word.to_owned()).collect();
        Source {
            uris: vec![uri.to_owned()],
            suites: owned(suites),
            components: owned(components),
            options: Vec::new(),
        }
    }

    #[test]
    fn one_line_format_with_options_and_comments() {
        let text = "\
# deb http://old.example/debian buster main
deb http://mirror.example/debian bookworm main contrib # the archive
deb-src http://mirror.example/debian bookworm main
debian is not a type
deb [ arch=amd64,arm64 signed-by=/usr/share/keyrings/a.gpg trusted=yes ]\thttps://tools.example/apt ./
deb cdrom:[Debian 12]/ bookworm main
deb http://no-suite.example
deb [signed-by=/unclosed http://x.example y z
";
        let mut tools = source("https://tools.example/apt", &["./"], &[]);
        tools.options = vec![
            ("Signed-By".into(), "/usr/share/keyrings/a.gpg".into()),
            ("Trusted".into(), "yes".into()),
        ];
        let archive = source("http://mirror.example/debian", &["bookworm"], &["main", "contrib"]);
        assert_eq!(parse_list(text), [archive, tools]);
    }

    #[test]
    fn deb822_format_with_comments_continuations_and_switched_off_stanzas() {
        let text = "\
# written by an installer
Types: deb deb-src
# a comment in a stanza
URIs: http://mirror.example/debian
 http://second.example/debian
Suites: bookworm bookworm-updates
Components: main
Signed-By:
 -----BEGIN PGP PUBLIC KEY BLOCK-----
 .
 mQINBF
 -----END PGP PUBLIC KEY BLOCK-----

Types: deb-src
URIs: http://sources.example
Suites: bookworm
Components: main

enabled: No
types: deb
uris: http://off.example
suites: bookworm
components: main


types: deb
uris: http://security.example
suites: bookworm-security
components: main";
        let sources = parse_deb822(text);
        assert_eq!(sources.len(), 2);
        assert_eq!(
            sources[0].uris,
            ["http://mirror.example/debian", "http://second.example/debian"]
        );
        assert_eq!(sources[0].suites, ["bookworm", "bookworm-updates"]);
        assert_eq!(
            sources[1],
            source("http://security.example", &["bookworm-security"], &["main"])
        );

        // An embedded key keeps its lines, or apt would not recognise it.
        let (name, key) = &sources[0].options[0];
        assert_eq!(name, "Signed-By");
        assert!(key.contains("\n .\n mQINBF\n"), "{key:?}");
        assert_eq!(parse_deb822(&to_deb822(&sources)), sources);
    }

    #[test]
    fn a_machines_folder_is_read_as_apt_reads_it() {
        let etc = tempfile::tempdir().unwrap();
        let list = etc.path().join("sources.list.d");
        std::fs::create_dir(&list).unwrap();
        std::fs::write(etc.path().join("sources.list"), "deb http://a x main\n").unwrap();
        std::fs::write(list.join("b.list"), "deb http://b x main\n").unwrap();
        std::fs::write(list.join("c.sources"), "Types: deb\nURIs: http://c\nSuites: x\n").unwrap();
        std::fs::write(list.join("d.list.disabled"), "deb http://d x main\n").unwrap();

        let uris: Vec<_> = read(etc.path()).into_iter().flat_map(|s| s.uris).collect();

        assert_eq!(uris, ["http://a", "http://b", "http://c"]);
        assert_eq!(read(&etc.path().join("absent")), []);
    }

    #[test]
    fn only_the_distributions_own_suites_are_chosen() {
        let sources = [
            source("http://security", &["bookworm-security"], &["main"]),
            source("http://mirror", &["bookworm", "bookworm-updates"], &["main"]),
            source("http://foreign", &["nodistro"], &["main"]),
        ];

        assert_eq!(choose(&sources, Some("bookworm"), &[]), sources[..2]);
        assert_eq!(choose(&sources, None, &[]), sources);
        assert_eq!(choose(&[], Some("bookworm"), &[]), []);
    }

    #[test]
    fn named_suites_come_from_the_mirror_of_the_base_suite() {
        let sources = [
            source("http://security", &["bookworm-security"], &["main"]),
            source("http://mirror", &["bookworm", "bookworm-updates"], &["main"]),
        ];

        let chosen = choose(&sources, Some("bookworm"), &["trixie", "trixie-backports"]);

        let suites = ["trixie", "trixie-backports"];
        assert_eq!(chosen, [source("http://mirror", &suites, &["main"])]);
    }

    #[test]
    fn codename_with_and_without_quotes() {
        let text = "ID=debian\nVERSION_CODENAME=bookworm\n";
        assert_eq!(codename(text), Some("bookworm"));
        assert_eq!(codename("VERSION_CODENAME=\"noble\"\n"), Some("noble"));
        assert_eq!(codename("ID=arch\n"), None);
        assert_eq!(codename("VERSION_CODENAME=\n"), None);
    }

    #[test]
    fn proxies_carry_over_and_hooks_do_not() {
        let dump = "\
APT::Update::Post-Invoke:: \"rm -f /var/cache/apt/*.bin\";
Acquire::http::Proxy \"http://proxy.example:3128\";
Acquire::IndexTargets::deb::DEP-11::MetaKey \"x\";
Acquire::Languages:: \"de\";
Dir::Cache \"var/cache/apt\";
";
        assert_eq!(acquire_settings(dump), "Acquire::http::Proxy \"http://proxy.example:3128\";\n");
    }
}
