//! Fetching of the distribution's programs without installing them: packages are unpacked into a cache folder, with
//! every library that they need, and a wrapper starts the program with that folder's dynamic loader. The system is only
//! read. [`tools`] has the programs and their packages.

mod tools;

pub use tools::{TOOLS, Tool, find};

use std::fmt::Write as _;
use std::fs;
use std::io::Read as _;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use crate::command::first_line;
use crate::tree::entries;
use crate::{apt, step};
use tools::Program;

/// Returns the folder of fetched programs, which is never in the source tree.
pub fn cache_folder() -> Result<PathBuf> {
    let folder = |name| std::env::var_os(name).map(PathBuf::from);
    // The XDG specification says to ignore a relative path.
    let cache = folder("XDG_CACHE_HOME").filter(|path| path.is_absolute());
    let home = || folder("HOME").filter(|path| path.is_absolute());
    cache
        .or_else(|| Some(home()?.join(".cache")))
        .map(|cache| cache.join("hypertrace"))
        .context("no place for fetched programs: neither XDG_CACHE_HOME nor HOME is set")
}

/// Fetches the tool's programs unless they are in the cache. Returns the folder to put on PATH.
///
/// # Errors
/// If there is no apt, no network, or no such package in the archive; the chain says which.
pub fn fetched(tool: &Tool) -> Result<PathBuf> {
    let release = fs::read_to_string("/etc/os-release").unwrap_or_default();
    let codename = apt::codename(&release);
    let suite = tool.suites.last().copied().or(codename);
    let cache = cache_folder()?;
    let name = format!("{}-{}", tool.name, suite.unwrap_or("unknown"));
    let folder = cache.join(name);
    let bin = folder.join("bin");
    let is_there = || tool.names().all(|name| bin.join(name).is_file());
    if is_there() {
        return Ok(bin);
    }

    fs::create_dir_all(&cache).with_context(|| format!("cannot make {}", cache.display()))?;
    // Made under another name and renamed, so that an interrupted download is never taken for a program. Removed on any
    // error. Private to this user: packages may contain set-uid programs, and unpacking as root keeps these bits.
    let aside = tempfile::Builder::new()
        .prefix(".fetching-")
        .permissions(fs::Permissions::from_mode(0o700))
        .tempdir_in(&cache)
        .with_context(|| format!("cannot make a folder in {}", cache.display()))?;
    let sources = apt::choose(&apt::read(Path::new("/etc/apt")), codename, tool.suites);
    let packages = download(tool, &sources, &aside.path().join("apt"))?;
    unpack(&packages, &aside.path().join("root"))?;
    remove_unneeded(tool, &aside.path().join("root"))?;
    write_wrappers(tool, aside.path())?;
    fs::remove_dir_all(aside.path().join("apt"))?;

    // Of an older list of packages. Removed when the new one is there.
    let old = tempfile::Builder::new().prefix(".old-").tempdir_in(&cache)?;
    if folder.exists() && !is_there() {
        let _ = fs::rename(&folder, old.path().join("old"));
    }
    match fs::rename(aside.path(), &folder) {
        Ok(()) => {
            // The folder has its final name now, so the guard must not remove it.
            let _ = aside.keep();
        }
        // Another process was faster.
        Err(_) if is_there() => {}
        Err(error) => bail!("cannot rename to {}: {error}", folder.display()),
    }
    Ok(bin)
}

/// Downloads the packages with an apt that has its own state and cache, and for which nothing is installed.
fn download(tool: &Tool, sources: &[apt::Source], folder: &Path) -> Result<Vec<PathBuf>> {
    ensure!(
        on_path("apt-get").is_some() && on_path("dpkg-deb").is_some(),
        "apt-get is not here: install {} by this system's own means",
        tool.name
    );
    ensure!(!sources.is_empty(), "this machine's apt sources name no mirror");
    for needed in ["state/lists/partial", "cache/archives/partial", "none", "sources"] {
        fs::create_dir_all(folder.join(needed))?;
    }
    fs::write(folder.join("status"), status_of(tool.given))?;
    fs::write(folder.join("sources/mirror.sources"), apt::to_deb822(sources))?;
    let dump = Command::new("apt-config").arg("dump").output();
    let dump = dump.map(|dump| dump.stdout).unwrap_or_default();
    let machine = apt::acquire_settings(&String::from_utf8_lossy(&dump));
    let configuration = folder.join("apt.conf");
    let mut settings = private_configuration(folder, &machine);
    if let Some(foreign) = tool.foreign {
        let native = first_line(Command::new("dpkg").arg("--print-architecture"))?;
        let _ = writeln!(settings, "APT::Architectures {{ {native:?}; {foreign:?}; }};");
    }
    fs::write(&configuration, settings)?;

    let apt_get = |arguments: &str| {
        let mut command = Command::new("apt-get");
        command.env("APT_CONFIG", &configuration);
        command.args(["--quiet", "--yes"]).args(arguments.split(' '));
        command
    };
    let install = || {
        let mut install = apt_get("install --download-only --no-install-recommends");
        if let Some(suite) = tool.suites.last() {
            install.args(["--target-release", suite]);
        }
        install.args(tool.packages);
        install
    };
    let run = |what: &str, command| {
        let name = format!("{what} for {} (nothing is installed)", tool.name);
        let finished = step::run(&name, command, step::SILENCE)?;
        ensure!(finished.ok, "cannot fetch {what}: {}", first_error(&finished.output));
        Ok(())
    };
    run("package lists", apt_get("update"))?;
    let listed = install().arg("--print-uris").output().context("cannot start apt-get")?;
    let megabytes = listed_bytes(&String::from_utf8_lossy(&listed.stdout)) / 1_000_000;
    run(&format!("{megabytes} MB of packages"), install())?;

    let is_package = |path: &PathBuf| path.extension().is_some_and(|e| e == "deb");
    Ok(entries(&folder.join("cache/archives"))?.into_iter().filter(is_package).collect())
}

/// Adds the sizes in the output of `--print-uris`: a line with URI, file, bytes and checksum for each package.
fn listed_bytes(output: &str) -> u64 {
    let packages = output.lines().filter(|line| line.starts_with('\''));
    packages.filter_map(|line| line.split_whitespace().nth(2)?.parse::<u64>().ok()).sum()
}

/// Returns the text by which apt takes these packages as installed, in any version.
fn status_of(packages: &[&str]) -> String {
    let mut text = String::new();
    for package in packages {
        let _ = writeln!(
            text,
            "Package: {package}\nStatus: install ok installed\nArchitecture: all\nVersion: 9999\n"
        );
    }
    text
}

/// Returns the configuration that apt reads first. Its folders keep the machine's own files, with their hooks, out.
fn private_configuration(folder: &Path, machine: &str) -> String {
    let folder = folder.display();
    format!(
        "{machine}\
         Dir::Etc::main \"/dev/null\";\n\
         Dir::Etc::parts \"{folder}/none\";\n\
         Dir::Etc::preferences \"/dev/null\";\n\
         Dir::Etc::preferencesparts \"{folder}/none\";\n\
         Dir::Etc::sourcelist \"/dev/null\";\n\
         Dir::Etc::sourceparts \"{folder}/sources\";\n\
         Dir::State \"{folder}/state\";\n\
         Dir::State::status \"{folder}/status\";\n\
         Dir::Cache \"{folder}/cache\";\n\
         Dir::Log \"{folder}/state\";\n\
         // As root it could change the system.\n\
         APT::Get::Download-Only \"true\";\n\
         Dir::Bin::dpkg \"/bin/false\";\n\
         Acquire::Languages \"none\";\n\
         Acquire::Retries \"2\";\n\
         Acquire::http::Timeout \"30\";\n\
         Acquire::https::Timeout \"30\";\n\
         APT::Update::Error-Mode \"any\";\n\
         // The user _apt could not write here.\n\
         APT::Sandbox::User \"root\";\n\
         APT::Get::List-Cleanup \"false\";\n\
         Debug::NoLocking \"true\";\n"
    )
}

/// Returns apt's first error, which says the most about the reason; later ones only follow from it.
fn first_error(output: &str) -> &str {
    let mut errors = output.lines().filter_map(|line| line.strip_prefix("E: "));
    errors.next().unwrap_or("apt-get failed")
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
    let paths = everywhere.iter().chain(tool.unneeded).map(|path| root.join(versioned(root, path)));
    for path in paths.filter(|path| path.exists()) {
        let removed = fs::remove_dir_all(&path);
        removed.with_context(|| format!("cannot remove {}", path.display()))?;
    }
    Ok(())
}

/// Writes `bin/PROGRAM` for each program, which starts it wherever the folder is.
fn write_wrappers(tool: &Tool, folder: &Path) -> Result<()> {
    let root = folder.join("root");
    let layout = Layout::find(&root)
        .with_context(|| format!("the packages of {} hold no C library", tool.name))?;
    for start in tool.wrapped {
        wrap_in_place(&layout, &root, &versioned(&root, start))?;
    }
    let bin = folder.join("bin");
    fs::create_dir(&bin)?;
    for (name, path, arguments) in tool.programs {
        let found = versioned(&root, path);
        ensure!(root.join(&found).exists(), "the packages of {} hold no /{path}", tool.name);
        let program = (*name, &*found.to_string_lossy(), *arguments);
        write_script(&bin.join(name), &wrapper_text(tool, &layout, program))?;
    }
    link_plain(tool, folder)
}

/// Returns a path below `root`, where a name that ends in `*` is replaced by the first one that begins so: names of
/// packages' folders have a version.
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
    for (name, start, prefix) in tool.plain {
        let start = Path::new("root").join(versioned(&folder.join("root"), start));
        let files = entries(&folder.join(&start)).unwrap_or_default().into_iter();
        let mut names = files.filter_map(|path| Some(path.file_name()?.to_owned()));
        let file = names.find(|name| name.to_string_lossy().starts_with(prefix));
        let missing = || format!("the packages of {} hold no {prefix}*", tool.name);
        let path = start.join(file.with_context(missing)?);
        // A kernel is no program of this machine, but is looked for like one.
        fs::set_permissions(folder.join(&path), fs::Permissions::from_mode(0o755))?;
        symlink(Path::new("..").join(path), folder.join("bin").join(name))?;
    }
    Ok(())
}

fn write_script(file: &Path, text: &str) -> Result<()> {
    fs::write(file, text)?;
    fs::set_permissions(file, fs::Permissions::from_mode(0o755))?;
    Ok(())
}

/// Renames each program in a folder of the tree and below, and puts a wrapper in its place. A program that starts it by
/// its path, as a compiler starts its assembler, then starts it with the right libraries.
fn wrap_in_place(layout: &Layout, root: &Path, folder: &Path) -> Result<()> {
    // The folders of a compiler's parts differ between releases: there may be none.
    let paths = entries(&root.join(folder)).unwrap_or_default();
    for path in paths.into_iter().filter(|path| !path.is_symlink()) {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if path.is_dir() {
            wrap_in_place(layout, root, &folder.join(&*name))?;
        } else if path.is_file() && is_program(&path)? {
            let aside = format!(".{name}.elf");
            fs::rename(&path, path.with_file_name(&aside))?;
            let text = in_place_text(layout, &folder.join(aside), folder.components().count());
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

/// Places in an unpacked tree, relative to its root.
#[derive(Debug, PartialEq, Eq)]
struct Layout {
    /// The dynamic loader itself; the name under which programs know it is often an absolute link out of the tree
    loader: String,
    /// The name of the folder of this machine's libraries, `x86_64-linux-gnu`
    triplet: String,
}

impl Layout {
    /// Finds the C library: its loader is beside `libc.so.6`, in a folder named after the machine. A tree can contain
    /// another machine's, too.
    fn find(root: &Path) -> Option<Self> {
        let mut layouts = Vec::new();
        for lib in ["usr/lib", "lib"] {
            let mut folders = entries(&root.join(lib)).unwrap_or_default();
            folders.retain(|folder| folder.join("libc.so.6").exists());
            for folder in folders {
                let triplet = folder.file_name()?.to_str()?.to_owned();
                let files = entries(&folder).ok()?.into_iter().filter(|path| path.is_file());
                let mut names =
                    files.filter_map(|path| Some(path.file_name()?.to_str()?.to_owned()));
                let is_loader =
                    |name: &String| name.starts_with("ld-linux") || name.starts_with("ld64.so");
                if let Some(loader) = names.find(is_loader) {
                    let loader = format!("{lib}/{triplet}/{loader}");
                    layouts.push(Layout { loader, triplet });
                }
            }
        }
        let is_native = |layout: &Layout| layout.triplet.starts_with(std::env::consts::ARCH);
        let native = layouts.iter().position(is_native).unwrap_or(0);
        layouts.into_iter().nth(native)
    }

    /// Returns the library path of the tree, for the loader.
    fn library_path(&self) -> String {
        let triplet = &self.triplet;
        format!("$root/usr/lib/{triplet}:$root/lib/{triplet}:$root/usr/lib:$root/lib")
    }
}

fn wrapper_text(tool: &Tool, layout: &Layout, (name, path, arguments): Program<'_>) -> String {
    let Layout { loader, triplet } = layout;
    let expand = |text: &str| {
        text.replace("{lib}", &format!("{{root}}/usr/lib/{triplet}")).replace("{root}", "$root")
    };
    let mut text = format!(
        "#!/bin/sh\n\
         # Starts {name} with the libraries it was fetched with, not with the system's.\n\
         root=$(dirname -- \"$(dirname -- \"$(readlink -f -- \"$0\")\")\")/root\n",
    );
    for (name, value) in tool.environment {
        let _ = writeln!(text, "export {name}=\"{}\"", expand(value));
    }
    text.push_str("exec");
    // A program that was replaced by a wrapper needs no loader.
    if !tool.wrapped.iter().any(|folder| Path::new(path).starts_with(folder)) {
        let library_path = layout.library_path();
        let _ = write!(text, " \"$root/{loader}\" --library-path \"{library_path}\"");
    }
    let _ = write!(text, " \"$root/{path}\"");
    for argument in arguments {
        let _ = write!(text, " \"{}\"", expand(argument));
    }
    text.push_str(" \"$@\"\n");
    text
}

/// Returns the wrapper of a program that is `depth` folders below the root. The program is started under its own name,
/// by which it finds its files.
fn in_place_text(layout: &Layout, program: &Path, depth: usize) -> String {
    let (loader, library_path) = (&layout.loader, layout.library_path());
    format!(
        "#!/bin/sh\n\
         root=$(dirname -- \"$(readlink -f -- \"$0\")\"){}\n\
         exec \"$root/{loader}\" --library-path \"{library_path}\" --argv0 \"$0\" \"$root/{}\" \"$@\"\n",
        "/..".repeat(depth),
        program.display()
    )
}

/// Finds a program on PATH.
pub fn on_path(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|folder| folder.join(program)).find(|file| {
        fs::metadata(file).is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0)
    })
}

#[cfg(test)]
mod tests {
    use super::tools::PLAIN;
    use super::*;

    const EMULATOR: Tool = Tool {
        name: "emulator",
        programs: &[("emulator", "usr/bin/emulator", &["-L", "{root}/usr/share/emulator"])],
        packages: &["emulator"],
        suites: &["next", "next-backports"],
        environment: &[("PLUGINS", "{lib}/emulator/plugins")],
        ..PLAIN
    };

    #[test]
    fn a_wrapper_names_everything_relative_to_itself() {
        let layout = Layout {
            loader: "lib/x86_64-linux-gnu/ld-linux-x86-64.so.2".into(),
            triplet: "x86_64-linux-gnu".into(),
        };

        let text = wrapper_text(&EMULATOR, &layout, EMULATOR.programs[0]);

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
    fn the_loader_is_found_beside_the_c_library_of_either_layout() {
        for lib in ["lib", "usr/lib"] {
            let root = tempfile::tempdir().unwrap();
            let folder = root.path().join(lib).join("aarch64-linux-gnu");
            fs::create_dir_all(&folder).unwrap();
            fs::create_dir_all(root.path().join("usr/lib/python3")).unwrap();
            assert_eq!(Layout::find(root.path()), None);
            fs::write(folder.join("libc.so.6"), "").unwrap();
            fs::write(folder.join("ld-linux-aarch64.so.1"), "").unwrap();

            let layout = Layout::find(root.path()).unwrap();

            assert_eq!(layout.triplet, "aarch64-linux-gnu");
            assert_eq!(layout.loader, format!("{lib}/aarch64-linux-gnu/ld-linux-aarch64.so.1"));
        }
    }

    #[test]
    fn of_two_machines_libraries_this_ones_are_taken() {
        let root = tempfile::tempdir().unwrap();
        let own = format!("{}-linux-gnu", std::env::consts::ARCH);
        for triplet in ["another-linux-gnu", &own, "zz-linux-gnu"] {
            let folder = root.path().join("usr/lib").join(triplet);
            fs::create_dir_all(&folder).unwrap();
            fs::write(folder.join("libc.so.6"), "").unwrap();
            fs::write(folder.join("ld-linux.so.2"), "").unwrap();
        }

        let layout = Layout::find(root.path()).unwrap();

        assert_eq!(layout.triplet, own);
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
        let layout = Layout { loader: "lib/t/ld.so".into(), triplet: "t".into() };

        wrap_in_place(&layout, root.path(), Path::new("usr/lib/cc")).unwrap();
        wrap_in_place(&layout, root.path(), Path::new("absent")).unwrap();

        let text = fs::read_to_string(folder.join("cc1")).unwrap();
        let lines: Vec<_> = text.lines().skip(1).collect();
        assert_eq!(
            lines,
            [
                r#"root=$(dirname -- "$(readlink -f -- "$0")")/../../../.."#,
                r#"exec "$root/lib/t/ld.so" --library-path "$root/usr/lib/t:$root/lib/t:$root/usr/lib:$root/lib" --argv0 "$0" "$root/usr/lib/cc/1/.cc1.elf" "$@""#,
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
        let tool = Tool { plain: &[("a-kernel", "boot", "kernel-")], ..EMULATOR };

        link_plain(&tool, folder.path()).unwrap();

        let program = folder.path().join("bin/a-kernel");
        assert_eq!(fs::read(&program).unwrap(), b"kernel");
        assert_eq!(fs::metadata(&program).unwrap().permissions().mode() & 0o777, 0o755);
        let absent = Tool { plain: &[("a-kernel", "boot", "none-")], ..EMULATOR };
        let error = link_plain(&absent, folder.path()).unwrap_err().to_string();
        assert_eq!(error, "the packages of emulator hold no none-*");
    }

    #[test]
    fn sizes_are_added() {
        let output = "Reading package lists...\n\
                      'http://mirror/a_1_amd64.deb' a_1_amd64.deb 1500000 MD5Sum:0\n\
                      'http://mirror/b_1_amd64.deb' b_1_amd64.deb 600000 SHA256:0\n";
        assert_eq!(listed_bytes(output), 2_100_000);
    }

    #[test]
    fn apt_can_install_nothing() {
        let configuration = private_configuration(Path::new("/folder"), "");
        assert!(configuration.contains("APT::Get::Download-Only \"true\";"));
        assert!(configuration.contains("Dir::Bin::dpkg \"/bin/false\";"));
    }

    #[test]
    fn unneeded_files_are_removed() {
        let root = tempfile::tempdir().unwrap();
        for folder in ["usr/share/doc/x", "usr/lib/other", "usr/lib/own"] {
            fs::create_dir_all(root.path().join(folder)).unwrap();
        }
        let tool = Tool { unneeded: &["usr/lib/other", "usr/lib/absent"], ..EMULATOR };

        remove_unneeded(&tool, root.path()).unwrap();

        assert!(root.path().join("usr/lib/own").is_dir());
        assert!(!root.path().join("usr/lib/other").exists());
        assert!(!root.path().join("usr/share/doc").exists());
    }

    #[test]
    fn the_first_of_apts_errors_is_the_one_to_show() {
        let output = "Get:1 x\nW: slow\nE: Failed to fetch x\nE: Some failed\n";
        assert_eq!(first_error(output), "Failed to fetch x");
        assert_eq!(first_error(""), "apt-get failed");
    }
}
