//! The programs that can be fetched: their packages, and what is done with these.

/// A program's name on PATH, path in the package, and first arguments (`{root}` is the folder in place of `/`). Here and in
/// the other paths of packages, a name that ends in `*` is the first one that begins so.
pub type Program<'a> = (&'a str, &'a str, &'a [&'a str]);

/// Programs of the distribution that tests run, fetched together.
pub struct Tool {
    /// Its name in the cache
    pub name: &'static str,
    /// Its programs
    pub programs: &'static [Program<'static>],
    /// The packages to fetch, with their dependencies
    pub packages: &'static [&'static str],
    /// Another architecture whose packages are fetched, `arm64`
    pub foreign: Option<&'static str>,
    /// Suites of another release of the distribution, the preferred one last; empty: this machine's release
    pub suites: &'static [&'static str],
    /// Environment variables that name folders; `{lib}` is `usr/lib/TRIPLET` in that folder
    pub environment: &'static [(&'static str, &'static str)],
    /// Folders whose programs start each other by path, as a compiler's do: each is replaced by a wrapper
    pub wrapped: &'static [&'static str],
    /// Files and folders of the packages that no test uses
    pub unneeded: &'static [&'static str],
    /// Programs that start without this machine's loader, and a kernel: a name on PATH, a folder, and how the file's name
    /// begins there
    pub plain: &'static [(&'static str, &'static str, &'static str)],
    /// Packages that are not fetched although others depend on them: this machine's own programs do
    pub given: &'static [&'static str],
}

/// Defaults of a tool's fields.
pub(super) const PLAIN: Tool = Tool {
    name: "",
    programs: &[],
    packages: &[],
    foreign: None,
    suites: &[],
    environment: &[],
    wrapped: &[],
    unneeded: &[],
    plain: &[],
    given: &[],
};

/// Rust compilers with the standard library of another machine. Their programs have other names than `rustc`, because
/// they must not replace the toolchain that builds everything else; the compiler's own libraries for the other machine,
/// for its plugins there, are not needed.
const CROSS_RUST: Tool = Tool { suites: &["trixie", "trixie-backports"], ..PLAIN };
const SYSROOT: &[&str] = &["--sysroot", "{root}/usr"];

/// A later kernel, its headers, and the compiler that has built it: other compilers lack some of its options. The kernel is
/// a package of its own in one release, and in another one the headers depend on it.
const LATER_LINUX: Tool = Tool {
    packages: &["linux-image-cloud-amd64", "linux-headers-cloud-amd64"],
    wrapped: &["usr/bin", "usr/lib/gcc", "usr/libexec/gcc", "usr/lib/linux-kbuild-*"],
    unneeded: &["usr/lib/modules/*/kernel", "usr/lib/systemd", "usr/lib/udev"],
    ..PLAIN
};
const KERNEL_GCC: &str = "usr/bin/x86_64-linux-gnu-gcc-1*";
const MODPOST: &str = "usr/lib/linux-kbuild-*/scripts/mod";

/// The tools that can be fetched.
pub const TOOLS: &[Tool] = &[
    Tool {
        name: "babeltrace2",
        programs: &[("babeltrace2", "usr/bin/babeltrace2", &[])],
        packages: &["babeltrace2"],
        // Its plugins (one is the CTF reader) are in a folder of the system whose path is compiled in.
        environment: &[
            ("BABELTRACE_PLUGIN_PATH", "{lib}/babeltrace2/plugins"),
            ("LIBBABELTRACE2_PLUGIN_PROVIDER_DIR", "{lib}/babeltrace2/plugin-providers"),
        ],
        ..PLAIN
    },
    Tool {
        name: "trace-cmd",
        programs: &[("trace-cmd", "usr/bin/trace-cmd", &[])],
        packages: &["trace-cmd"],
        suites: &["bookworm"],
        environment: &[("TRACEEVENT_PLUGIN_DIR", "{lib}/traceevent/plugins")],
        ..PLAIN
    },
    Tool {
        name: "trace-cmd-3.3",
        // Under another name: tests read the same files with both releases.
        programs: &[("trace-cmd-3.3", "usr/bin/trace-cmd", &[])],
        packages: &["trace-cmd"],
        suites: &["trixie"],
        environment: &[("TRACEEVENT_PLUGIN_DIR", "{lib}/traceevent/plugins")],
        ..PLAIN
    },
    Tool {
        name: "uftrace-bookworm",
        // Under names with the suite: tests read the same directories with both releases.
        programs: &[("uftrace-bookworm", "usr/bin/uftrace", &[])],
        packages: &["uftrace"],
        suites: &["bookworm"],
        ..PLAIN
    },
    Tool {
        name: "uftrace-forky",
        programs: &[("uftrace-forky", "usr/bin/uftrace", &[])],
        packages: &["uftrace"],
        suites: &["forky"],
        ..PLAIN
    },
    Tool {
        name: "qemu-user",
        programs: &[
            ("qemu-x86_64", "usr/bin/qemu-x86_64", &[]),
            ("qemu-aarch64", "usr/bin/qemu-aarch64", &[]),
        ],
        packages: &["qemu-user"],
        // The last release whose emulators load plugins: those of later releases are static programs.
        suites: &["bookworm"],
        ..PLAIN
    },
    Tool {
        name: "qemu-system",
        programs: &[("qemu-system-x86_64", "usr/bin/qemu-system-x86_64", &[])],
        packages: &["qemu-system-x86"],
        // A release that serves plugin API 2 to 4: the one in backports serves API 7 only.
        suites: &["trixie"],
        ..PLAIN
    },
    Tool {
        name: "qemu-backports",
        // Under another name: tests load plugins into both releases. This one is a client of vfio-user.
        programs: &[(
            "qemu-backports-system-x86_64",
            "usr/bin/qemu-system-x86_64",
            &["-L", "{root}/usr/share/qemu", "-L", "{root}/usr/share/seabios"],
        )],
        packages: &["qemu-system-x86"],
        suites: &["trixie", "trixie-backports"],
        ..PLAIN
    },
    Tool {
        name: "qemu-system-arm",
        programs: &[("qemu-system-aarch64", "usr/bin/qemu-system-aarch64", &[])],
        packages: &["qemu-system-arm"],
        suites: &["trixie"],
        ..PLAIN
    },
    Tool {
        name: "qemu-backports-arm",
        programs: &[(
            "qemu-backports-system-aarch64",
            "usr/bin/qemu-system-aarch64",
            &["-L", "{root}/usr/share/qemu"],
        )],
        packages: &["qemu-system-arm"],
        suites: &["trixie", "trixie-backports"],
        ..PLAIN
    },
    Tool {
        name: "linux-guest",
        plain: &[
            ("linux-guest-kernel", "boot", "vmlinuz-"),
            ("linux-guest-busybox", "bin", "busybox"),
            // Of the headers, for modules of this very kernel: one download, so that both have the same version.
            ("linux-guest-modpost", MODPOST, "modpost"),
        ],
        packages: &["linux-image-cloud-amd64", "busybox-static", "linux-headers-cloud-amd64"],
        // A compiler: the machine's own builds modules too.
        given: &["linux-compiler-gcc-12-x86"],
        suites: &["bookworm"],
        ..PLAIN
    },
    Tool {
        name: "linux-guest-trixie",
        programs: &[("linux-guest-trixie-gcc", KERNEL_GCC, &[])],
        plain: &[
            ("linux-guest-trixie-kernel", "boot", "vmlinuz-"),
            ("linux-guest-trixie-modpost", MODPOST, "modpost"),
        ],
        suites: &["trixie"],
        ..LATER_LINUX
    },
    Tool {
        // The newest one.
        name: "linux-guest-backports",
        programs: &[("linux-guest-backports-gcc", KERNEL_GCC, &[])],
        plain: &[
            ("linux-guest-backports-kernel", "usr/lib/modules/*", "vmlinuz"),
            ("linux-guest-backports-modpost", MODPOST, "modpost"),
        ],
        suites: &["trixie", "trixie-backports"],
        ..LATER_LINUX
    },
    Tool {
        name: "linux-guest-arm64",
        plain: &[
            ("linux-guest-arm64-kernel", "boot", "vmlinuz-"),
            ("linux-guest-arm64-busybox", "bin", "busybox"),
        ],
        packages: &["linux-image-cloud-arm64:arm64", "busybox-static:arm64"],
        foreign: Some("arm64"),
        suites: &["bookworm"],
        unneeded: &["lib/modules", "usr/lib/modules"],
        ..PLAIN
    },
    Tool {
        // Applies rules in a guest, where its libraries are at their own paths.
        name: "linux-guest-udev",
        plain: &[("linux-guest-udevadm", "bin", "udevadm")],
        packages: &["udev"],
        suites: &["bookworm"],
        unneeded: &[
            "lib/udev/hwdb.d",
            "usr/lib/systemd",
            "usr/share/perl",
            "usr/lib/x86_64-linux-gnu/perl-base",
        ],
        ..PLAIN
    },
    Tool {
        name: "clang-bpftrace",
        // clang starts itself again, by a name that would be the loader's. bpftrace uses its libraries.
        programs: &[
            ("clang", "usr/lib/llvm-14/bin/clang", &["-no-canonical-prefixes"]),
            ("clang++", "usr/lib/llvm-14/bin/clang++", &["-no-canonical-prefixes"]),
            ("bpftrace", "usr/bin/bpftrace", &[]),
        ],
        packages: &["clang-14", "bpftrace"],
        suites: &["bookworm"],
        wrapped: &["usr/lib/llvm-14/bin"],
        ..PLAIN
    },
    Tool {
        name: "aarch64-gcc",
        programs: &[("aarch64-linux-gnu-gcc", "usr/bin/aarch64-linux-gnu-gcc", &[])],
        packages: &["gcc-aarch64-linux-gnu", "libc6-dev-arm64-cross"],
        wrapped: &["usr/bin", "usr/lib/gcc-cross", "usr/libexec/gcc-cross"],
        ..PLAIN
    },
    Tool {
        name: "aarch64-rust",
        programs: &[("aarch64-rustc", "usr/bin/rustc", SYSROOT)],
        packages: &["rustc", "libstd-rust-dev:arm64"],
        foreign: Some("arm64"),
        unneeded: &["usr/lib/aarch64-linux-gnu", "usr/libexec/gcc", "usr/lib/gcc"],
        ..CROSS_RUST
    },
    Tool {
        // Apart from the one above: where an archive lacks packages of one architecture, the other one is fetched.
        name: "riscv64-rust",
        programs: &[("riscv64-rustc", "usr/bin/rustc", SYSROOT)],
        packages: &["rustc", "libstd-rust-dev:riscv64"],
        foreign: Some("riscv64"),
        unneeded: &["usr/lib/riscv64-linux-gnu", "usr/libexec/gcc", "usr/lib/gcc"],
        ..CROSS_RUST
    },
];

impl Tool {
    /// Returns the names of its programs, by which tests find them on PATH.
    pub fn names(&self) -> impl Iterator<Item = &'static str> {
        let programs = self.programs.iter().map(|&(name, ..)| name);
        programs.chain(self.plain.iter().map(|&(name, ..)| name))
    }
}

/// Finds the tool with a program of that name.
///
/// # Errors
/// If there is none; the message lists the programs.
pub fn find(program: &str) -> Result<&'static Tool, String> {
    let names = || TOOLS.iter().flat_map(Tool::names);
    TOOLS
        .iter()
        .find(|tool| tool.names().any(|name| name == program))
        .ok_or_else(|| format!("not one of: {}", names().collect::<Vec<_>>().join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_tool_is_refused_with_a_list() {
        assert!(find("babeltrace2").is_ok());
        let message = find("babeltrace").err().unwrap();
        assert!(message.contains("babeltrace2"), "{message}");
    }
}
