//! The distribution's archive, from which a private apt fetches packages. This module finds the archive in
//! the machine's apt sources.

use std::path::Path;

/// Fields of a source that the private apt does not copy. This module sets these fields itself, or the fields
/// concern the whole system. All other fields say how apt verifies the source's contents.
const REPLACED: [&str; 4] = ["Types:", "Suites:", "Architectures:", "#"];

/// Source of the distribution's own packages, copied from this machine's file. In the copy, `{suite}` and
/// `{architectures}` stand for the suite and the architectures.
#[derive(Debug, PartialEq, Eq)]
pub struct Archive {
    text: String,
    /// Extension of the file that this source comes from. The extension determines the format
    pub extension: &'static str,
}

impl Archive {
    /// Finds the archive: the first source with the suite of this release, in `sources.list` and the files of
    /// `sources.list.d` under this folder (`/etc/apt`). The function leaves all other sources out, because
    /// fetching from further sources takes time, and can fail.
    pub fn find(etc_apt: &Path, codename: Option<&str>) -> Option<Self> {
        let folder =
            std::fs::read_dir(etc_apt.join("sources.list.d")).into_iter().flatten().flatten();
        let mut files: Vec<_> = folder.map(|entry| entry.path()).collect();
        files.sort();
        files.insert(0, etc_apt.join("sources.list"));
        // A derivative may call its release `stable` or `testing`.
        let is_base =
            |suite: &str| codename == Some(suite) || ["stable", "testing"].contains(&suite);
        files.iter().find_map(|file| {
            let text = std::fs::read_to_string(file).ok()?;
            let (text, extension) = match file.extension()?.to_str()? {
                "list" => (text.lines().find_map(|line| one_line(line, is_base))?, "list"),
                "sources" => {
                    (text.split("\n\n").find_map(|text| stanza(text, is_base))?, "sources")
                }
                // As apt does, the function ignores files with other extensions, such as .disabled and .save.
                _ => return None,
            };
            Some(Archive { text, extension })
        })
    }

    /// Returns the text of a suite for these architectures.
    pub fn suite(&self, suite: &str, architectures: &[&str]) -> String {
        let between = if self.extension == "list" { "," } else { " " };
        self.text.replace("{suite}", suite).replace("{architectures}", &architectures.join(between))
    }
}

/// Reads `deb [signed-by=KEYRING arch=amd64] URI SUITE COMPONENT..`
fn one_line(line: &str, is_base: impl Fn(&str) -> bool) -> Option<String> {
    let rest = line.split('#').next()?.trim().strip_prefix("deb")?;
    let rest = rest.strip_prefix([' ', '\t', '[']).map(|_| rest.trim_start())?;
    let (options, rest) = match rest.strip_prefix('[') {
        Some(inside) => inside.split_once(']')?,
        None => ("", rest),
    };
    let options = options.split_whitespace().filter(|option| !option.starts_with("arch"));
    let options = options.collect::<Vec<_>>().join(" ");
    let mut words = rest.split_whitespace();
    let uri = words.next().filter(|uri| !uri.starts_with("cdrom:"))?;
    words.next().filter(|suite| is_base(suite))?;
    let components = words.collect::<Vec<_>>().join(" ");
    Some(format!("deb [arch={{architectures}} {options}] {uri} {{suite}} {components}\n"))
}

/// Reads a stanza in deb822 format: lines `Field: value`, and lines that continue a value.
fn stanza(text: &str, is_base: impl Fn(&str) -> bool) -> Option<String> {
    let field = |name| text.lines().find_map(|line| line.strip_prefix(name));
    field("Types:")?.split_whitespace().find(|kind| *kind == "deb")?;
    field("Suites:")?.split_whitespace().find(|suite| is_base(suite))?;
    let is_kept = |line: &&str| !REPLACED.iter().any(|field| line.starts_with(field));
    let kept: Vec<_> = text.lines().filter(is_kept).collect();
    let enabled = field("Enabled:").is_none_or(|value| value.trim() != "no");
    let text = kept.join("\n");
    enabled.then(|| {
        format!(
            "Types: deb\nSuites: {{suite}}\nArchitectures: {{architectures}}\n{}\n\n",
            text.trim()
        )
    })
}

/// Returns `VERSION_CODENAME` of an os-release file.
pub fn codename(os_release: &str) -> Option<&str> {
    let mut values = os_release.lines().filter_map(|line| line.strip_prefix("VERSION_CODENAME="));
    values.next().map(|value| value.trim_matches(['"', '\''])).filter(|value| !value.is_empty())
}

/// Selects the settings of a machine's apt that concern its mirrors (proxies, certificates, checks of dates)
/// from the output of `apt-config dump`. A private configuration needs these settings. The hooks are left
/// out, because hooks change the system.
pub fn acquire_settings(dump: &str) -> String {
    // The private apt downloads package lists and nothing else.
    let others = ["Acquire::IndexTargets", "Acquire::Languages"];
    dump.lines()
        .filter(|line| {
            line.starts_with("Acquire::") && !others.iter().any(|other| line.starts_with(other))
        })
        .map(|line| format!("{line}\n"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_archive_is_found_in_one_line_format() {
        let etc = tempfile::tempdir().unwrap();
        let list = "\
# deb http://old.example/debian bookworm main
deb-src http://mirror.example/debian bookworm main
debian bookworm is not a type
deb cdrom:[Debian 12]/ bookworm main
deb https://tools.example/apt ./
deb [ arch=amd64 signed-by=/a.gpg trusted=yes ]\thttp://mirror.example/debian bookworm main contrib # the archive
";
        std::fs::write(etc.path().join("sources.list"), list).unwrap();

        let archive = Archive::find(etc.path(), Some("bookworm")).unwrap();

        assert_eq!(
            archive.suite("trixie", &["amd64", "arm64"]),
            "deb [arch=amd64,arm64 signed-by=/a.gpg trusted=yes] http://mirror.example/debian trixie main contrib\n"
        );
        assert_eq!(Archive::find(&etc.path().join("absent"), None), None);
    }

    #[test]
    fn the_archive_is_found_in_deb822_format_with_its_key() {
        let etc = tempfile::tempdir().unwrap();
        let list = etc.path().join("sources.list.d");
        std::fs::create_dir(&list).unwrap();
        let key = "Signed-By:\n -----BEGIN PGP PUBLIC KEY BLOCK-----\n .\n mQINBF\n";
        let stanza = |more: &str| {
            format!("# a\n{more}URIs: http://c\nSuites: bookworm x\nComponents: main\n{key}")
        };
        let text = [
            stanza("Types: deb-src\n"),
            stanza("Types: deb\nEnabled: no\n"),
            stanza("Types: deb\n"),
        ];
        std::fs::write(list.join("a.list.disabled"), "deb http://a bookworm main\n").unwrap();
        std::fs::write(list.join("b.list"), "deb http://b nodistro main\n").unwrap();
        std::fs::write(list.join("c.sources"), text.join("\n")).unwrap();

        let archive = Archive::find(etc.path(), Some("bookworm")).unwrap();

        let wanted = "Types: deb\nSuites: trixie\nArchitectures: amd64 arm64\nURIs: http://c\nComponents: main\n";
        assert_eq!(archive.suite("trixie", &["amd64", "arm64"]), format!("{wanted}{key}\n"));
    }

    #[test]
    fn codename_with_and_without_quotes() {
        assert_eq!(codename("ID=debian\nVERSION_CODENAME=bookworm\n"), Some("bookworm"));
        assert_eq!(codename("VERSION_CODENAME=\"noble\"\n"), Some("noble"));
        assert_eq!(codename("VERSION_CODENAME=\n"), None);
    }

    #[test]
    fn proxies_carry_over_and_hooks_do_not() {
        let dump = "\
APT::Update::Post-Invoke:: \"rm -f /var/cache/apt/*.bin\";
Acquire::http::Proxy \"http://proxy.example:3128\";
Acquire::IndexTargets::deb::DEP-11::MetaKey \"x\";
Acquire::Languages:: \"de\";
";
        assert_eq!(acquire_settings(dump), "Acquire::http::Proxy \"http://proxy.example:3128\";\n");
    }
}
