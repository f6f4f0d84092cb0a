//! Probes of this machine's capabilities: KVM, tracefs, and the capabilities of `capabilities.toml`.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;

use crate::command::{first_line, on_path};
use crate::fetch::{self, Tool};
use crate::tree;

/// The capabilities in `capabilities.toml`.
#[derive(Deserialize)]
struct Known {
    capability: Vec<Entry>,
    /// Shell functions that the checks use
    functions: String,
}

/// A capability as `capabilities.toml` describes it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    name: String,
    #[serde(default)]
    program: Option<String>,
    #[serde(default)]
    check: String,
    #[serde(default)]
    hint: String,
    #[serde(default)]
    full: bool,
    #[serde(default)]
    with: Option<String>,
}

static KNOWN: LazyLock<Known> = LazyLock::new(|| {
    toml::from_str(fetch::CAPABILITIES).expect("tools/xtask/capabilities.toml is right")
});

/// Capability, and the result of its probe.
pub struct Capability {
    /// Name that tests use for the capability
    pub name: String,
    /// Whether only `cargo xtask full` uses the capability
    pub full: bool,
    /// Another capability that each test of this capability also needs
    pub with: Option<&'static str>,
    /// Detail if the capability was found, or else the reason
    pub found: Result<String, String>,
}

/// Returns the names of all capabilities that have a probe.
pub fn names() -> impl Iterator<Item = &'static str> {
    ["kvm", "tracefs"].into_iter().chain(KNOWN.capability.iter().map(|entry| entry.name.as_str()))
}

/// Returns true if there is a probe of this name.
pub fn is_known(name: &str) -> bool {
    names().any(|known| known == name)
}

/// Returns true if only `cargo xtask full` uses the capability of this name.
pub fn is_of_full(name: &str) -> bool {
    KNOWN.capability.iter().any(|entry| entry.full && entry.name == name)
}

/// Searches the source of these packages for names of capabilities in quotes. Returns these capabilities. If
/// a package uses the harness in `tests`, the capabilities that the harness names are included.
///
/// # Errors
/// If there is no such package.
pub fn named_in(root: &Path, packages: &[String]) -> Result<Vec<&'static str>> {
    let manifests: BTreeMap<String, PathBuf> = tree::files(root)?
        .into_iter()
        .filter(|path| path.ends_with("Cargo.toml"))
        .map(|path| Ok((tree::package_name(&path)?, path)))
        .collect::<Result<_>>()?;
    let mut text = String::new();
    for package in packages {
        let manifest = manifests.get(package);
        let manifest = manifest.with_context(|| format!("there is no package {package}"))?;
        let uses_harness = fs::read_to_string(manifest)?.contains("\nhypertrace-tests");
        let harness = manifests.get("hypertrace-tests").filter(|_| uses_harness);
        for manifest in harness.into_iter().chain([manifest]) {
            let files = tree::files(manifest.parent().unwrap_or(root))?.into_iter();
            // A package's folder may contain folders of other packages.
            let is_of = |file: &Path| {
                let nearest = file.ancestors().map(|folder| folder.join("Cargo.toml"));
                nearest.into_iter().find(|path| path.exists()).as_ref() == Some(manifest)
            };
            let is_rust = |file: &Path| file.extension().is_some_and(|end| end == "rs");
            for file in files.filter(|file| is_rust(file) && is_of(file)) {
                text += &fs::read_to_string(file)?;
            }
        }
    }
    Ok(names().filter(|name| text.contains(&format!("\"{name}\""))).collect())
}

/// Results of probes of this machine, and the environment in which commands can use the capabilities.
#[derive(Default)]
pub struct Machine {
    /// Capabilities, in the order of the table
    pub capabilities: Vec<Capability>,
    /// Folders of fetched programs, to be put in front of PATH
    path: Vec<PathBuf>,
    /// Words that are put before a command if the system has not mounted tracefs. The words give the command
    /// a mount namespace with tracefs
    pub prefix: Vec<String>,
}

/// Shell script that runs a command as an ordinary user. The ordinary user can access all files of the user
/// who runs the script, such as the build and the device of KVM. Therefore the script hides KVM and tracefs.
const AS_ORDINARY_USER: &str = "\
if [ -e /dev/kvm ]; then
    mount -t tmpfs none /mnt && : >/mnt/none && chmod 0 /mnt/none &&
        mount --bind /mnt/none /dev/kvm && umount --lazy /mnt || exit
fi
grep -E ' (tracefs|debugfs) ' /proc/self/mounts | while read -r _ folder _; do
    mount -t tmpfs -o mode=0 none \"$folder\" || exit
done || exit
exec unshare --user --map-user=1000 --map-group=1000 -- \"$@\"";

impl Machine {
    /// Runs the probes of these names. Fetches programs that are not on PATH.
    pub fn probe(names: &[&str]) -> Self {
        let mut machine = Machine::default();
        let wanted = |name: &str| names.contains(&name);
        if wanted("kvm") {
            machine.add("kvm", None, kvm());
        }
        if wanted("tracefs") {
            let found = machine.tracefs();
            machine.add("tracefs", None, found);
        }
        let entries: Vec<_> = KNOWN.capability.iter().filter(|entry| wanted(&entry.name)).collect();
        let here: Vec<_> = entries.iter().map(|entry| entry.here()).collect();
        let absent = entries.iter().zip(&here).filter(|(_, here)| here.is_err());
        let fetched =
            fetch::fetch(&absent.filter_map(|(entry, _)| entry.tool()).collect::<Vec<_>>());
        for (entry, here) in entries.into_iter().zip(here) {
            let found = match entry.tool().and_then(|tool| fetched.get(tool.name.as_str())) {
                Some(folder) if here.is_err() => entry.fetched(folder, &mut machine.path),
                _ => here,
            };
            machine.add(&entry.name, Some(entry), found);
        }
        machine
    }

    /// Adds the results of the probes in `other`, and puts them before the results of this machine's probes.
    pub fn join(&mut self, mut other: Machine) {
        other.capabilities.append(&mut self.capabilities);
        other.path.append(&mut self.path);
        other.prefix.append(&mut self.prefix);
        *self = other;
    }

    fn add(&mut self, name: &str, entry: Option<&'static Entry>, found: Result<String>) {
        self.capabilities.push(Capability {
            name: name.to_owned(),
            full: entry.is_some_and(|entry| entry.full),
            with: entry.and_then(|entry| entry.with.as_deref()),
            found: found.map_err(|error| format!("{error:#}")),
        });
    }

    /// Finds a mounted tracefs, or tries to mount tracefs in a private namespace. Root can mount in a private
    /// namespace without a change of the system.
    fn tracefs(&mut self) -> Result<String> {
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
        let mount = "mount -t tracefs nodev /sys/kernel/tracing && exec \"$@\"";
        let private = ["unshare", "--mount", "--propagation", "private", "sh", "-c", mount, "sh"];
        let (folder, prefix, whose) = match mounted_tracefs(&mounts) {
            Some(folder) => (folder, &[][..], ""),
            None => ("/sys/kernel/tracing", &private[..], " for the tests alone"),
        };
        let usable = format!("ls {folder}/events/sched && : >>{folder}/tracing_on");
        let mut words = prefix.iter().copied().chain(["sh", "-c", &usable]);
        let mut command = Command::new(words.next().unwrap_or_default());
        first_line(command.args(words))
            .with_context(|| format!("not usable or not mounted at {folder}"))?;
        self.prefix = prefix.iter().copied().map(str::to_owned).collect();
        Ok(format!("mounted at {folder}{whose}"))
    }

    /// Returns this machine as an ordinary user sees it, with the same files. This user has no KVM, no
    /// tracefs, no rights of root, and no sbin on PATH.
    ///
    /// # Errors
    /// If the kernel does not allow a namespace of users.
    pub fn of_ordinary_user(&self) -> Result<Machine> {
        let path = self.search_path();
        let folders = std::env::split_paths(&path).filter(|folder| !folder.ends_with("sbin"));
        let path = std::env::join_paths(folders)?.into_string().unwrap_or_default();
        let (path, script) = (format!("PATH={path}"), AS_ORDINARY_USER);
        let words = [
            "unshare",
            "--user",
            "--map-root-user",
            "--mount",
            "sh",
            "-c",
            script,
            "sh",
            "env",
            &path,
        ];
        first_line(Command::new(words[0]).args(&words[1..]).arg("true"))?;
        let prefix = words.map(str::to_owned).to_vec();
        Ok(Machine { prefix, ..Machine::default() })
    }

    /// Returns the PATH for commands.
    pub fn search_path(&self) -> OsString {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let all = self.path.iter().cloned().chain(std::env::split_paths(&path));
        // If a folder's name has a colon, then the join fails, and PATH stays unchanged. Then the tests
        // report which programs are missing.
        std::env::join_paths(all).unwrap_or(path)
    }

    /// Returns a line for each capability that was not found, as tests read it: name, tab, reason.
    pub fn absent(&self) -> String {
        let one_line = |why: &str| why.split_whitespace().collect::<Vec<_>>().join(" ");
        let line =
            |c: &Capability| Some(format!("{}\t{}\n", c.name, one_line(c.found.as_ref().err()?)));
        self.capabilities.iter().filter_map(line).collect()
    }

    /// Returns an error with the reason if the probe of this name failed.
    pub fn found(&self, name: &str) -> Result<(), String> {
        let capability = self.capabilities.iter().find(|c| c.name == name).ok_or("not probed")?;
        capability.found.as_ref().map(drop).map_err(String::clone)
    }
}

impl Entry {
    /// Returns the name of the capability's program.
    fn program(&self) -> &str {
        self.program.as_deref().unwrap_or(&self.name)
    }

    /// Returns the tool that has the capability's program.
    fn tool(&self) -> Option<&'static Tool> {
        fetch::find(self.program()).ok()
    }

    /// Looks for the capability on this machine. Returns a detail.
    fn here(&self) -> Result<String> {
        if self.tool().is_none() {
            return self.check(Path::new("")).with_context(|| self.hint.clone());
        }
        let program = on_path(self.program()).context("not on PATH")?;
        let works = self.works(&program);
        works.inspect_err(|error| println!("{} does not work: {error:#}", program.display()))
    }

    /// Looks for the capability in the folder of a fetched tool, and adds this folder to the folders for
    /// PATH.
    fn fetched(&self, folder: &Result<PathBuf>, path: &mut Vec<PathBuf>) -> Result<String> {
        let folder = match folder {
            Ok(folder) => folder,
            Err(why) => bail!("not on PATH, and cannot be fetched: {why:#}"),
        };
        let program = folder.join(self.program());
        let works = self.works(&program).with_context(|| {
            format!("{} does not work (remove it to fetch again)", program.display())
        });
        if works.is_ok() && !path.contains(folder) {
            path.push(folder.clone());
        }
        works
    }

    /// Checks a program, or a file of a guest. Returns the version and the path of the program or file.
    fn works(&self, program: &Path) -> Result<String> {
        if self.tool().is_some_and(|tool| tool.plain.contains_key(self.program())) {
            let file = fs::canonicalize(program).context("its link leads nowhere")?;
            return Ok(file.display().to_string());
        }
        self.check(program)?;
        // trace-cmd fails after it has printed its version.
        let version = shell("\"$program\" --version || :", program)?;
        ensure!(!version.is_empty(), "it prints no version");
        Ok(format!("{version}, {}", program.display()))
    }

    fn check(&self, program: &Path) -> Result<String> {
        let script = format!("{}{}", KNOWN.functions, self.check);
        shell(&script, program).context("its check in tools/xtask/capabilities.toml fails")
    }
}

/// Runs a script in an empty folder. Returns the first line of the script's output.
fn shell(script: &str, program: &Path) -> Result<String> {
    let folder = tempfile::tempdir()?;
    let mut command = Command::new("sh");
    command.args(["-c", script]).current_dir(folder.path()).env("program", program);
    // With the variable CARGO, the cargo of another toolchain would run the tools of this toolchain.
    first_line(command.env_remove("CARGO"))
}

/// Opens KVM, checks the version of KVM, and makes a VM. All these steps are needed, because the device may
/// exist although this user has no permission, or although the machine does not support VMs.
fn kvm() -> Result<String> {
    let kvm = kvm_ioctls::Kvm::new().context("cannot open /dev/kvm")?;
    let version = kvm.get_api_version();
    ensure!(version == 12, "KVM_GET_API_VERSION is {version}, not the 12 that is stable");
    kvm.create_vm().context("cannot make a VM")?;
    Ok(format!("API {version}, makes a VM"))
}

fn mounted_tracefs(mounts: &str) -> Option<&str> {
    let fields = mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>());
    let mut mounted = fields.filter(|fields| fields.get(2) == Some(&"tracefs"));
    mounted.find_map(|fields| fields.get(1).copied())
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::anyhow;
    use hypertrace_test_support::capability;

    #[test]
    fn tracefs_is_found_by_type_wherever_it_is_mounted() {
        let mounts = "\
sysfs /sys sysfs rw 0 0
debugfs /sys/kernel/debug debugfs rw 0 0
nodev /sys/kernel/debug/tracing tracefs rw 0 0
";
        assert_eq!(mounted_tracefs(mounts), Some("/sys/kernel/debug/tracing"));
        assert_eq!(mounted_tracefs("tracefs /tracefs ext4 rw 0 0\n"), None);
    }

    #[test]
    fn an_ordinary_user_has_the_same_files_without_kvm_tracefs_and_sbin() {
        let machine = match Machine::default().of_ordinary_user() {
            Ok(machine) => machine,
            Err(why) => return capability::missing("user-namespace", format!("{why:#}")),
        };
        let folder = tempfile::tempdir().unwrap();
        let script = "\
            echo mine >made && cat made && [ $(id -u) != 0 ] || echo root
            true 2>/dev/null </dev/kvm && echo kvm
            ls /sys/kernel/tracing/events 2>/dev/null && echo tracefs
            echo $PATH | tr : '\\n' | grep 'sbin$'
            unshare --user --map-root-user --mount sh -ec 'mount -t tmpfs none /mnt
                [ ! -e /dev/kvm ] || { : >/mnt/kvm && mount --bind /dev/kvm /mnt/kvm; }'";
        let mut command = Command::new(&machine.prefix[0]);
        command.args(&machine.prefix[1..]).args(["sh", "-c", script]).current_dir(folder.path());

        let output = command.output().unwrap();

        assert_eq!(String::from_utf8_lossy(&output.stdout), "mine\n", "{output:?}");
        assert!(output.status.success(), "a /dev of its own: {output:?}");
        assert_eq!(fs::read_to_string(folder.path().join("made")).unwrap(), "mine\n");
        capability::used("user-namespace");
    }

    #[test]
    fn what_was_not_found_is_told_in_a_line_each() {
        let mut machine = Machine::default();
        machine.add("old", None, Err(anyhow!("too old:\n\tversion 1")));
        machine.add("here", None, Ok("version 2".into()));

        assert_eq!(machine.absent(), "old\ttoo old: version 1\n");
    }

    #[test]
    fn a_program_that_prints_nothing_is_no_reader() {
        let babeltrace2 = KNOWN.capability.iter().find(|entry| entry.name == "babeltrace2");

        let error = babeltrace2.unwrap().works(Path::new("/bin/true")).unwrap_err();

        assert!(error.to_string().contains("check in"), "{error}");
    }

    #[test]
    fn every_program_has_a_check() {
        let is_file =
            |entry: &&Entry| entry.tool().is_some_and(|tool| tool.plain.contains_key(&entry.name));
        for entry in KNOWN.capability.iter().filter(|entry| !is_file(entry)) {
            assert!(!entry.check.is_empty(), "{}", entry.name);
        }
    }

    #[test]
    fn an_emulator_without_the_plugin_api_of_the_tests_is_refused() {
        // This program loads a plugin as QEMU does, and does nothing else. The program reads from its own
        // file name the oldest and the newest version of the API that it supports.
        let source = r#"
            #include <dlfcn.h>
            #include <stdio.h>
            #include <string.h>
            int main(int count, char **words)
            {
                struct { const char *target; int oldest, newest; } info = { "", 0, 0 };
                sscanf(strrchr(words[0], '/') + 1, "%d-%d", &info.oldest, &info.newest);
                for (int n = 1; n + 1 < count; n++)
                    if (!strcmp(words[n], "-plugin")) {
                        void *plugin = dlopen(words[n + 1], RTLD_NOW);
                        int asks = *(int *)dlsym(plugin, "qemu_plugin_version");
                        if (asks < info.oldest || asks > info.newest) {
                            fprintf(stderr, "plugin requires API version %d\n", asks);
                            return 1;
                        }
                        return ((int (*)(long, const void *, int, char **))dlsym(
                            plugin, "qemu_plugin_install"))(0, &info, 0, words);
                    }
                puts("version 0");
                return 0;
            }"#;
        let folder = tempfile::tempdir().unwrap();
        let [text, made] = ["emulator.c", "emulator"].map(|name| folder.path().join(name));
        fs::write(&text, source).unwrap();
        let mut compiler = Command::new("cc");
        assert!(compiler.arg(&text).arg("-o").arg(&made).arg("-ldl").status().unwrap().success());
        let emulators = ["0-1", "2-6", "7-7", "7-8"].map(|api| {
            let program = folder.path().join(api);
            fs::hard_link(&made, &program).unwrap();
            (api, program)
        });
        for (kind, known) in [
            ("qemu-x86_64", "0-1"),
            ("qemu-system-x86_64", "2-6"),
            ("qemu-backports-system-x86_64", "7-7"),
        ] {
            let entry = KNOWN.capability.iter().find(|entry| entry.name == kind).unwrap();
            for (api, program) in &emulators {
                let works = entry.works(program).map_err(|error| format!("{error:#}"));
                assert_eq!(works.is_ok(), *api == known, "{kind} {api}: {works:?}");
            }
        }
    }

    #[test]
    fn a_version_counts_although_the_program_fails() {
        let script = "\"$program\" --version || :";
        assert!(shell(script, Path::new("/bin/false")).unwrap().contains("false"));
        assert!(shell("echo no library >&2; exit 127", Path::new("")).is_err());
    }

    #[test]
    fn a_package_needs_what_its_tests_and_the_harness_name() {
        let root = crate::root().unwrap();
        let named = |package: &str| named_in(&root, &[package.to_owned()]);

        assert!(named("hypertrace-cli").unwrap().contains(&"kvm"));
        assert!(!named("hypertrace-abi").unwrap().contains(&"kvm"));
        assert!(named("hypertrace-nothing").is_err());
    }
}
