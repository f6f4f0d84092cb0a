//! Fetches the distribution's programs, and installs nothing. This module unpacks a program's packages, with
//! all libraries that the program needs, into a cache folder. A wrapper starts the program with the dynamic
//! loader from this folder. For programs of the Python Package Index, pip fills such a folder. Nothing
//! changes the system's own files. `capabilities.toml` lists the programs and their packages.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::io::Read as _;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::LazyLock;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use rustix::fs::{FlockOperation, flock};
use serde::Deserialize;
use tempfile::TempDir;

use crate::apt::{self, Archive};
use crate::command::{first_line, on_path};
use crate::tree::entries;

/// Text of the file that lists the programs that tests use, and where to get these programs.
pub const CAPABILITIES: &str = include_str!("../capabilities.toml");

/// The tools in that file.
#[derive(Deserialize)]
struct Known {
    tool: Vec<Tool>,
}

/// Programs of the distribution that are fetched together. `capabilities.toml` says what the fields are.
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Tool {
    pub name: String,
    programs: BTreeMap<String, String>,
    pub plain: BTreeMap<String, String>,
    packages: Vec<String>,
    pypi: Vec<String>,
    foreign: Option<String>,
    suites: Vec<String>,
    environment: BTreeMap<String, String>,
    wrapped: Vec<String>,
    unneeded: Vec<String>,
    given: Vec<String>,
}

impl Tool {
    /// Returns the names under which tests find the tool's programs on PATH.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.programs.keys().chain(self.plain.keys()).map(String::as_str)
    }

    /// Returns the suites of the tool's packages, the preferred suite last.
    fn suites(&self) -> Vec<String> {
        let own = || vec![codename().unwrap_or_else(|| "unknown".to_owned())];
        if self.suites.is_empty() { own() } else { self.suites.clone() }
    }

    /// Returns the tool's folder in the cache.
    fn folder(&self) -> Result<PathBuf> {
        let suites = if self.pypi.is_empty() { self.suites() } else { vec!["pypi".to_owned()] };
        Ok(cache_folder()?.join(format!("{}-{}", self.name, suites[suites.len() - 1])))
    }

    fn is_there(&self) -> bool {
        let bin = self.folder().map(|folder| folder.join("bin"));
        bin.is_ok_and(|bin| self.names().all(|name| bin.join(name).is_file()))
    }
}

/// Returns the tools that can be fetched.
pub fn tools() -> &'static [Tool] {
    static KNOWN: LazyLock<Known> = LazyLock::new(|| {
        toml::from_str(CAPABILITIES).expect("tools/xtask/capabilities.toml is right")
    });
    &KNOWN.tool
}

/// Finds the tool with a program of this name.
///
/// # Errors
/// If there is no such tool; the message lists the programs.
pub fn find(program: &str) -> Result<&'static Tool, String> {
    let names = || tools().iter().flat_map(Tool::names);
    let found = tools().iter().find(|tool| tool.names().any(|name| name == program));
    found.ok_or_else(|| format!("not one of: {}", names().collect::<Vec<_>>().join(", ")))
}

/// Fetches tools that are not in the cache. Returns for each tool's name the folder that PATH needs. If there
/// is no apt or no network, or if the archive has no such package, returns an error for the tool.
pub fn fetch(tools: &[&'static Tool]) -> BTreeMap<&'static str, Result<PathBuf>> {
    // The map has each tool once, although `tools` may name a tool twice because of two programs.
    let tools: BTreeMap<_, _> = tools.iter().map(|tool| (tool.name.as_str(), *tool)).collect();
    let is_absent = |tool: &&Tool| !tool.is_there() && tool.pypi.is_empty();
    let absent: Vec<_> = tools.values().copied().filter(is_absent).collect();
    let apt = (!absent.is_empty()).then(|| Apt::open(&absent));
    let fetched = |tool: &Tool| {
        match &apt {
            _ if !tool.pypi.is_empty() && !tool.is_there() => fetch_pypi(tool)?,
            Some(Ok(apt)) if !tool.is_there() => apt.make(tool)?,
            Some(Err(why)) if !tool.is_there() => bail!("{why:#}"),
            _ => {}
        }
        Ok(tool.folder()?.join("bin"))
    };
    tools.into_iter().map(|(name, tool)| (name, fetched(tool))).collect()
}

/// Returns the folder of fetched programs. The folder is never in the source tree.
fn cache_folder() -> Result<PathBuf> {
    let folder = |name| std::env::var_os(name).map(PathBuf::from);
    // The XDG specification says to ignore a relative path.
    let cache = folder("XDG_CACHE_HOME").filter(|path| path.is_absolute());
    let home = || folder("HOME").filter(|path| path.is_absolute());
    cache
        .or_else(|| Some(home()?.join(".cache")))
        .map(|cache| cache.join("hypertrace"))
        .context("no place for fetched programs: neither XDG_CACHE_HOME nor HOME is set")
}

fn codename() -> Option<String> {
    let release = fs::read_to_string("/etc/os-release").ok()?;
    apt::codename(&release).map(str::to_owned)
}

/// Age at which lists of packages are fetched again.
const OLD: Duration = Duration::from_secs(24 * 3600);

/// An apt that has its own state and cache. This apt sees no installed packages.
struct Apt {
    archive: Archive,
    /// This machine's architecture, as the distribution calls it
    native: String,
    cache: PathBuf,
    /// For each architecture, the reasons why lists of packages are missing
    damaged: BTreeMap<String, String>,
    /// Lock on the cache, so that only one process fetches at the same time
    _lock: fs::File,
}

impl Apt {
    /// Fetches the lists of packages for all these tools, unless the cache has the lists and the lists are
    /// less than a day old.
    fn open(tools: &[&Tool]) -> Result<Self> {
        ensure!(
            on_path("apt-get").is_some() && on_path("dpkg-deb").is_some(),
            "apt-get is not here: install it by this system's own means"
        );
        let archive = Archive::find(Path::new("/etc/apt"), codename().as_deref());
        let archive = archive.context("this machine's apt sources do not name its archive")?;
        let native = first_line(Command::new("dpkg").arg("--print-architecture"))?;
        let cache = cache_folder()?;
        fs::create_dir_all(&cache).with_context(|| format!("cannot make {}", cache.display()))?;
        let lock = fs::File::create(cache.join("lock"))?;
        flock(&lock, FlockOperation::LockExclusive)?;
        let mut apt = Apt { archive, native, cache, damaged: BTreeMap::new(), _lock: lock };

        // Each architecture has its own lists, because apt refuses all lists of a suite if one of the lists
        // is damaged.
        let mut groups = BTreeMap::<&str, Vec<&Tool>>::new();
        for tool in tools {
            groups.entry(apt.architecture(tool)).or_default().push(tool);
        }
        let why = |(name, tools): (&&str, &Vec<&Tool>)| {
            Some(((*name).to_owned(), format!("{:#}", apt.update(name, tools).err()?)))
        };
        let damaged = groups.iter().filter_map(why).collect();
        apt.damaged = damaged;
        Ok(apt)
    }

    /// Returns the architecture under which a tool's lists are kept.
    fn architecture<'a>(&'a self, tool: &'a Tool) -> &'a str {
        tool.foreign.as_deref().unwrap_or(&self.native)
    }

    fn lists(&self, architecture: &str) -> PathBuf {
        self.cache.join("lists").join(architecture)
    }

    fn update(&self, architecture: &str, tools: &[&Tool]) -> Result<()> {
        let stamp = self.lists(architecture).join("stamp");
        let age = fs::metadata(&stamp).and_then(|stamp| stamp.modified()).map(|at| at.elapsed());
        let is_new = age.is_ok_and(|age| age.is_ok_and(|age| age < OLD));
        let sources = self.sources(architecture, tools);
        if is_new && fs::read_to_string(&stamp)? == sources {
            return Ok(());
        }
        println!("==> lists of packages for {architecture}");
        let folder = tempfile::tempdir()?;
        run(self.get(folder.path(), architecture, tools)?.arg("update"), "E: ")?;
        Ok(fs::write(stamp, sources)?)
    }

    /// Returns apt's sources for these tools. A suite that several tools need appears only once.
    fn sources(&self, architecture: &str, tools: &[&Tool]) -> String {
        let suites: BTreeSet<_> = tools.iter().flat_map(|tool| tool.suites()).collect();
        let architectures = Vec::from_iter(BTreeSet::from([&*self.native, architecture]));
        suites.iter().map(|suite| self.archive.suite(suite, &architectures)).collect()
    }

    /// Returns an apt-get for the packages of some tools, with its files in a folder.
    fn get(&self, folder: &Path, architecture: &str, tools: &[&Tool]) -> Result<Command> {
        for needed in ["state", "cache/archives/partial", "none", "sources"] {
            fs::create_dir_all(folder.join(needed))?;
        }
        let lists = self.lists(architecture);
        fs::create_dir_all(lists.join("partial"))?;
        let sources = folder.join("sources/archive").with_extension(self.archive.extension);
        fs::write(sources, self.sources(architecture, tools))?;
        let mut status = String::new();
        for package in tools.iter().flat_map(|tool| &tool.given) {
            let _ = write!(status, "Package: {package}\nStatus: install ok installed\n");
            let _ = write!(status, "Architecture: all\nVersion: 9999\n\n");
        }
        fs::write(folder.join("status"), status)?;
        let dump = Command::new("apt-config").arg("dump").output();
        let dump = dump.map(|dump| dump.stdout).unwrap_or_default();
        let mut settings = apt::acquire_settings(&String::from_utf8_lossy(&dump));
        settings += &private_configuration(folder, &lists);
        for architecture in BTreeSet::from([&*self.native, architecture]) {
            let _ = writeln!(settings, "APT::Architectures:: {architecture:?};");
        }
        fs::write(folder.join("apt.conf"), settings)?;
        let mut command = Command::new("apt-get");
        command.env("APT_CONFIG", folder.join("apt.conf")).args(["--quiet", "--yes"]);
        Ok(command)
    }

    /// Makes the folder of a tool in the cache.
    fn make(&self, tool: &Tool) -> Result<()> {
        let aside = aside(&self.cache)?;
        let (apt, root) = (aside.path().join("apt"), aside.path().join("root"));
        let architecture = self.architecture(tool);
        if let Some(why) = self.damaged.get(architecture) {
            bail!("cannot fetch the lists of packages for {architecture}: {why}");
        }
        println!("==> packages of {} (nothing is installed)", tool.name);
        let mut get = self.get(&apt, architecture, &[tool])?;
        get.args(["--download-only", "--no-install-recommends", "--target-release"]);
        run(get.args(tool.suites().last()).arg("install").args(&tool.packages), "E: ")?;
        let mut packages = entries(&apt.join("cache/archives"))?;
        packages.retain(|path| path.extension().is_some_and(|end| end == "deb"));
        unpack(&packages, &root)?;
        remove_unneeded(tool, &root)?;
        write_wrappers(tool, aside.path())?;
        fs::remove_dir_all(apt)?;
        place(aside, tool)
    }
}

/// Makes a temporary folder for a download. The caller gives the folder its final name when the download is
/// complete, so an interrupted download is never used. On any error, the folder is removed. The folder is
/// private to this user, because packages may contain set-uid programs, and root unpacks these programs with
/// their set-uid bits.
fn aside(cache: &Path) -> Result<TempDir> {
    let mut builder = tempfile::Builder::new();
    let builder = builder.prefix(".fetching-").permissions(fs::Permissions::from_mode(0o700));
    Ok(builder.tempdir_in(cache)?)
}

/// Renames the complete folder of a tool to the folder's final name. An older folder with this name is
/// replaced.
fn place(aside: TempDir, tool: &Tool) -> Result<()> {
    let (folder, old) = (tool.folder()?, tempfile::tempdir_in(cache_folder()?)?);
    let _ = fs::rename(&folder, old.path().join("old"));
    fs::rename(aside.path(), &folder)?;
    // The folder has its final name now, so the guard must not remove it.
    let _ = aside.keep();
    Ok(())
}

/// Makes the folder of a tool of the Python Package Index in the cache.
fn fetch_pypi(tool: &Tool) -> Result<()> {
    println!("==> Python packages of {} (nothing is installed)", tool.name);
    let cache = cache_folder()?;
    fs::create_dir_all(&cache).with_context(|| format!("cannot make {}", cache.display()))?;
    let aside = aside(&cache)?;
    let root = aside.path().join("root");
    let mut pip = Command::new("python3");
    pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check"])
        .args(["--no-warn-script-location", "--root-user-action", "ignore", "--retries", "1"])
        .arg("--target")
        .arg(&root)
        .args(&tool.pypi);
    run(&mut pip, "ERROR: ")?;
    let bin = aside.path().join("bin");
    fs::create_dir(&bin)?;
    for (name, path) in &tool.programs {
        let is_own = path != "python3";
        ensure!(!is_own || root.join(path).is_file(), "{:?} hold no {path}", tool.pypi);
        write_script(&bin.join(name), &python_wrapper(name, path, is_own))?;
    }
    place(aside, tool)
}

/// Returns the wrapper's text for Python, or for a program that came with the packages.
fn python_wrapper(name: &str, path: &str, is_own: bool) -> String {
    let program = if is_own { format!("\"$root/{path}\"") } else { path.to_owned() };
    format!(
        "{}export PYTHONPATH=\"$root\"\nexec {program} \"$@\"\n",
        wrapper_head(name, "packages")
    )
}

/// Runs apt-get or pip. The command's progress goes to stderr. Each line of the command's errors begins with
/// `mark`.
fn run(get: &mut Command, mark: &str) -> Result<()> {
    let program = get.get_program().display().to_string();
    let output = get.stdout(Stdio::from(std::io::stderr())).output();
    let output = output.with_context(|| format!("cannot start {program}"))?;
    let errors = String::from_utf8_lossy(&output.stderr);
    eprint!("{errors}");
    // The message is the first error, because later errors only follow from the first error.
    let first = errors.lines().find_map(|line| line.strip_prefix(mark));
    let first = first.or(errors.lines().next()).unwrap_or("it says nothing");
    ensure!(output.status.success(), "{program} failed: {first}");
    Ok(())
}

/// Returns the configuration that apt reads first.
fn private_configuration(folder: &Path, lists: &Path) -> String {
    let text = include_str!("../apt.conf").replace("{folder}", &folder.display().to_string());
    text.replace("{lists}", &lists.display().to_string())
}

fn unpack(packages: &[PathBuf], root: &Path) -> Result<()> {
    fs::create_dir(root)?;
    for package in packages {
        let mut unpack = Command::new("dpkg-deb");
        first_line(unpack.arg("--extract").arg(package).arg(root))
            .with_context(|| format!("{} does not unpack", package.display()))?;
    }
    Ok(())
}

/// Removes the documentation, and the tool's other files that no test reads.
fn remove_unneeded(tool: &Tool, root: &Path) -> Result<()> {
    let everywhere = ["usr/share/doc", "usr/share/man", "usr/share/locale", "usr/share/info"];
    let unneeded = tool.unneeded.iter().map(String::as_str);
    let paths = everywhere.into_iter().chain(unneeded).map(|path| root.join(versioned(root, path)));
    for path in paths.filter(|path| path.exists()) {
        let removed = fs::remove_dir_all(&path);
        removed.with_context(|| format!("cannot remove {}", path.display()))?;
    }
    Ok(())
}

/// Writes `bin/PROGRAM` for each program. This script starts the program wherever the folder is.
fn write_wrappers(tool: &Tool, folder: &Path) -> Result<()> {
    let root = folder.join("root");
    let loader = loader(&root)
        .with_context(|| format!("the packages of {} hold no C library", tool.name))?;
    for start in &tool.wrapped {
        wrap_in_place(&loader, &root, &versioned(&root, start))?;
    }
    let bin = folder.join("bin");
    fs::create_dir(&bin)?;
    for (name, start) in &tool.programs {
        let mut words = start.split_whitespace();
        let path = versioned(&root, words.next().unwrap_or_default());
        ensure!(root.join(&path).exists(), "the packages of {} hold no {start}", tool.name);
        let text = wrapper_text(tool, &loader, name, &path, words);
        write_script(&bin.join(name), &text)?;
    }
    link_plain(tool, folder)
}

/// Returns a path below `root`. If a part of `path` ends with `*`, it stands for the first name in the folder
/// that begins with the part. The `*` stands for a version in the name of a package's folder.
fn versioned(root: &Path, path: &str) -> PathBuf {
    path.split('/').fold(PathBuf::new(), |folder, name| {
        let fits = |path: PathBuf| {
            let found = path.file_name()?.to_str()?.to_owned();
            found.starts_with(name.strip_suffix('*')?).then_some(found)
        };
        let names = entries(&root.join(&folder)).unwrap_or_default();
        let found = names.into_iter().find_map(fits).filter(|_| name.ends_with('*'));
        folder.join(found.unwrap_or_else(|| name.to_owned()))
    })
}

/// Links `bin/PROGRAM` for each program that needs no wrapper.
fn link_plain(tool: &Tool, folder: &Path) -> Result<()> {
    for (name, path) in &tool.plain {
        let file = Path::new("root").join(versioned(&folder.join("root"), path));
        // Tests find a kernel in the same way as a program. Thus a kernel gets the permissions of a program,
        // although this machine cannot execute it.
        fs::set_permissions(folder.join(&file), fs::Permissions::from_mode(0o755))
            .with_context(|| format!("the packages of {} hold no {path}", tool.name))?;
        symlink(Path::new("..").join(file), folder.join("bin").join(name))?;
    }
    Ok(())
}

fn write_script(file: &Path, text: &str) -> Result<()> {
    fs::write(file, text)?;
    fs::set_permissions(file, fs::Permissions::from_mode(0o755))?;
    Ok(())
}

/// Renames each program in and below a folder of the tree, and puts a wrapper in the program's place. If a
/// program starts another program with that program's path, then the wrapper starts the other program with
/// the right libraries. For example, a compiler starts an assembler with the assembler's path.
fn wrap_in_place(loader: &str, root: &Path, folder: &Path) -> Result<()> {
    // The folders of a compiler's parts differ between releases, so the folder may not exist.
    let paths = entries(&root.join(folder)).unwrap_or_default();
    for path in paths.into_iter().filter(|path| !path.is_symlink()) {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if path.is_dir() {
            wrap_in_place(loader, root, &folder.join(&*name))?;
        } else if path.is_file() && is_program(&path)? {
            let aside = format!(".{name}.elf");
            fs::rename(&path, path.with_file_name(&aside))?;
            let text = in_place_text(loader, &folder.join(aside), folder.components().count());
            write_script(&path, &text)?;
        }
    }
    Ok(())
}

fn is_program(path: &Path) -> Result<bool> {
    let mut magic = [0; 4];
    let mut file = fs::File::open(path)?;
    let executable = file.metadata()?.permissions().mode() & 0o111 != 0;
    Ok(executable && file.read_exact(&mut magic).is_ok() && magic == *b"\x7fELF")
}

/// Returns the name of the folder of this machine's libraries.
fn triplet() -> String {
    format!("{}-linux-gnu", std::env::consts::ARCH)
}

/// Finds the dynamic loader in an unpacked tree. Returns the loader's path relative to the tree's root. The
/// search is needed, because the loader's path in the programs is often an absolute link that leads out of
/// the tree.
fn loader(root: &Path) -> Option<String> {
    let paths = ["usr/lib", "lib"].map(|lib| format!("{lib}/{}/ld-linux*", triplet()));
    let mut found = paths.iter().map(|path| versioned(root, path));
    Some(found.find(|path| root.join(path).is_file())?.display().to_string())
}

/// Returns the words that start a program of the tree with its own libraries.
fn loaded(loader: &str) -> String {
    let libraries = ["usr/lib", "lib"].map(|lib| format!("$root/{lib}/{}", triplet())).join(":");
    format!("\"$root/{loader}\" --library-path \"{libraries}:$root/usr/lib:$root/lib\"")
}

/// Returns the lines with which a wrapper finds the unpacked tree.
fn wrapper_head(name: &str, what: &str) -> String {
    format!(
        "#!/bin/sh\n\
         # Starts {name} with the {what} it was fetched with, not with the system's.\n\
         root=$(dirname -- \"$(dirname -- \"$(readlink -f -- \"$0\")\")\")/root\n",
    )
}

fn wrapper_text<'a>(
    tool: &Tool,
    loader: &str,
    name: &str,
    path: &Path,
    arguments: impl Iterator<Item = &'a str>,
) -> String {
    let lib = format!("$root/usr/lib/{}", triplet());
    let expand = |text: &str| text.replace("{lib}", &lib).replace("{root}", "$root");
    let mut text = wrapper_head(name, "libraries");
    for (name, value) in &tool.environment {
        let _ = writeln!(text, "export {name}=\"{}\"", expand(value));
    }
    text.push_str("exec");
    // If a wrapper replaces the program, the wrapper starts the loader, so this script does not start it.
    if !tool.wrapped.iter().any(|folder| path.starts_with(folder)) {
        let _ = write!(text, " {}", loaded(loader));
    }
    let _ = write!(text, " \"$root/{}\"", path.display());
    for argument in arguments {
        let _ = write!(text, " \"{}\"", expand(argument));
    }
    text.push_str(" \"$@\"\n");
    text
}

/// Returns the wrapper of a program that is `depth` folders below the root. The wrapper starts the program
/// under the program's own name, because the program uses this name to find the program's files.
fn in_place_text(loader: &str, program: &Path, depth: usize) -> String {
    format!(
        "#!/bin/sh\n\
         root=$(dirname -- \"$(readlink -f -- \"$0\")\"){}\n\
         exec {} --argv0 \"$0\" \"$root/{}\" \"$@\"\n",
        "/..".repeat(depth),
        loaded(loader),
        program.display()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tool(text: &str) -> Tool {
        toml::from_str(&format!("name = \"emulator\"\n{text}")).unwrap()
    }

    #[test]
    fn a_wrapper_names_everything_relative_to_itself() {
        let loader = "lib/x86_64-linux-gnu/ld-linux-x86-64.so.2";
        let tool = tool("environment = { PLUGINS = \"{lib}/emulator/plugins\" }");
        let arguments = "-L {root}/usr/share/emulator".split(' ');

        let text = wrapper_text(&tool, loader, "emulator", "usr/bin/emulator".as_ref(), arguments);

        let lines: Vec<_> = text.lines().skip(2).collect();
        assert_eq!(
            lines,
            [
                r#"root=$(dirname -- "$(dirname -- "$(readlink -f -- "$0")")")/root"#,
                r#"export PLUGINS="$root/usr/lib/x86_64-linux-gnu/emulator/plugins""#,
                r#"exec "$root/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2" --library-path "$root/usr/lib/x86_64-linux-gnu:$root/lib/x86_64-linux-gnu:$root/usr/lib:$root/lib" "$root/usr/bin/emulator" "-L" "$root/usr/share/emulator" "$@""#,
            ]
        );
    }

    #[test]
    fn python_and_its_programs_start_with_the_packages_beside_the_wrapper() {
        let folder = tempfile::tempdir().unwrap();
        let [root, bin] = ["root", "bin"].map(|name| folder.path().join(name));
        fs::create_dir_all(root.join("bin")).unwrap();
        fs::create_dir(&bin).unwrap();
        write_script(&root.join("bin/own"), "#!/bin/sh\necho \"$PYTHONPATH\" \"$1\"\n").unwrap();
        write_script(&bin.join("own"), &python_wrapper("own", "bin/own", true)).unwrap();

        let line = first_line(Command::new(bin.join("own")).arg("a b")).unwrap();

        assert_eq!(line, format!("{} a b", fs::canonicalize(root).unwrap().display()));
        let text = python_wrapper("python3-x", "python3", false);
        assert!(text.ends_with("\nexec python3 \"$@\"\n"), "{text}");
    }

    #[test]
    fn the_loader_of_this_machine_is_found_in_either_layout() {
        for lib in ["lib", "usr/lib"] {
            let root = tempfile::tempdir().unwrap();
            assert_eq!(loader(root.path()), None);
            for triplet in ["another-linux-gnu", &triplet(), "zz-linux-gnu"] {
                let folder = root.path().join(lib).join(triplet);
                fs::create_dir_all(&folder).unwrap();
                fs::write(folder.join("ld-linux.so.2"), "").unwrap();
            }

            let wanted = format!("{lib}/{}/ld-linux.so.2", triplet());
            assert_eq!(loader(root.path()), Some(wanted));
        }
    }

    #[test]
    fn programs_that_start_each_other_are_wrapped_where_they_are() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("usr/lib/cc/1");
        fs::create_dir_all(&folder).unwrap();
        let make = |name: &str, text: &str, mode| {
            fs::write(folder.join(name), text).unwrap();
            fs::set_permissions(folder.join(name), fs::Permissions::from_mode(mode)).unwrap();
        };
        make("cc1", "\x7fELF program", 0o755);
        make("plugin.so", "\x7fELF library", 0o644);
        make("script", "#!/bin/sh", 0o755);
        wrap_in_place("lib/t/ld.so", root.path(), Path::new("usr/lib/cc")).unwrap();
        wrap_in_place("lib/t/ld.so", root.path(), Path::new("absent")).unwrap();

        let text = fs::read_to_string(folder.join("cc1")).unwrap();
        let lines: Vec<_> = text.lines().skip(1).collect();
        assert_eq!(
            lines,
            [
                r#"root=$(dirname -- "$(readlink -f -- "$0")")/../../../.."#,
                r#"exec "$root/lib/t/ld.so" --library-path "$root/usr/lib/x86_64-linux-gnu:$root/lib/x86_64-linux-gnu:$root/usr/lib:$root/lib" --argv0 "$0" "$root/usr/lib/cc/1/.cc1.elf" "$@""#,
            ]
        );
        assert_eq!(fs::read(folder.join(".cc1.elf")).unwrap(), b"\x7fELF program");
        assert_eq!(fs::read(folder.join("plugin.so")).unwrap(), b"\x7fELF library");
        assert_eq!(fs::read(folder.join("script")).unwrap(), b"#!/bin/sh");
    }

    #[test]
    fn a_kernel_is_found_whatever_its_version() {
        let folder = tempfile::tempdir().unwrap();
        let boot = folder.path().join("root/boot");
        fs::create_dir_all(&boot).unwrap();
        fs::create_dir(folder.path().join("bin")).unwrap();
        fs::write(boot.join("config-6.1"), "").unwrap();
        fs::write(boot.join("kernel-6.1"), "kernel").unwrap();

        link_plain(&tool("plain = { a-kernel = \"boot/kernel-*\" }"), folder.path()).unwrap();

        let program = folder.path().join("bin/a-kernel");
        assert_eq!(fs::read(&program).unwrap(), b"kernel");
        assert_eq!(fs::metadata(&program).unwrap().permissions().mode() & 0o777, 0o755);
        let absent = tool("plain = { a-kernel = \"boot/none-*\" }");
        let error = link_plain(&absent, folder.path()).unwrap_err().to_string();
        assert_eq!(error, "the packages of emulator hold no boot/none-*");
    }

    #[test]
    fn apt_can_install_nothing() {
        let configuration = private_configuration(Path::new("/folder"), Path::new("/lists"));
        assert!(configuration.contains("APT::Get::Download-Only \"true\";"));
        assert!(configuration.contains("Dir::Bin::dpkg \"/bin/false\";"));
    }

    #[test]
    fn an_unknown_program_is_refused_with_a_list() {
        assert!(find("babeltrace2").is_ok());
        let message = find("babeltrace").err().unwrap();
        assert!(message.contains("babeltrace2"), "{message}");
    }

    #[test]
    fn each_suite_is_listed_once_for_all_tools_of_an_architecture() {
        let etc = tempfile::tempdir().unwrap();
        fs::write(etc.path().join("sources.list"), "deb http://a stable main\n").unwrap();
        let apt = Apt {
            archive: Archive::find(etc.path(), None).unwrap(),
            native: "amd64".to_owned(),
            cache: PathBuf::new(),
            damaged: BTreeMap::new(),
            _lock: fs::File::open("/dev/null").unwrap(),
        };
        let tools = [tool("suites = [\"x\"]"), tool("suites = [\"x\", \"y\"]")];

        let sources = apt.sources("arm64", &tools.each_ref());

        let line = |suite| format!("deb [arch=amd64,arm64 ] http://a {suite} main\n");
        assert_eq!(sources, line("x") + &line("y"));
    }

    #[test]
    fn unneeded_files_are_removed() {
        let root = tempfile::tempdir().unwrap();
        for folder in ["usr/share/doc/x", "usr/lib/other", "usr/lib/own"] {
            fs::create_dir_all(root.path().join(folder)).unwrap();
        }
        let tool = tool("unneeded = [\"usr/lib/other\", \"usr/lib/absent\"]");

        remove_unneeded(&tool, root.path()).unwrap();

        assert!(root.path().join("usr/lib/own").is_dir());
        assert!(!root.path().join("usr/lib/other").exists());
        assert!(!root.path().join("usr/share/doc").exists());
    }
}
