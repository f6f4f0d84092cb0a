//! Errors of opening a channel, which say what failed, where, and what to do.

use hypertrace_abi::config::ConfigError;

/// Reason why there is no channel. Only opening fails; emitting never fails.
#[derive(Debug)]
#[non_exhaustive]
pub enum OpenError {
    /// The config page is not valid.
    Config(ConfigError),
    /// The memory is shorter than the config page says.
    Short,
    /// The device has no client of the first number: the second number is how many clients there are.
    Client(u32, u32),
    /// All clients belong to vCPUs. The field is the number of clients.
    #[cfg(feature = "std")]
    NoneToLease(u32),
    /// There is no device in this folder of sysfs, and no window on this
    /// kernel command line.
    #[cfg(feature = "std")]
    NotFound(std::path::PathBuf, std::path::PathBuf),
    /// There is no device except for this PCI function. The function is an ivshmem, and no server has
    /// prepared its memory.
    #[cfg(feature = "std")]
    NoServer(std::path::PathBuf),
    /// The value of `hypertrace.mmio=` on this kernel command line is not an address.
    #[cfg(feature = "std")]
    Address(String, std::path::PathBuf),
    /// The value of the environment variable `HYPERTRACE_CLOCK` is unknown.
    #[cfg(feature = "std")]
    Clock(String),
    /// The process has a channel already.
    #[cfg(feature = "std")]
    Open,
    /// The parent of a forked child installed no lock file, or the program has closed it.
    #[cfg(feature = "std")]
    NoLock,
    /// The host of the memory at this path has ended.
    #[cfg(feature = "std")]
    HostEnded(std::path::PathBuf),
    /// The system refused an action.
    #[cfg(feature = "std")]
    System {
        /// Action that was refused, beginning with a verb.
        doing: &'static str,
        /// Object of the action, usually a file.
        path: std::path::PathBuf,
        /// What the user can do; may be empty.
        hint: &'static str,
        /// The system's error.
        source: std::io::Error,
    },
}

impl core::fmt::Display for OpenError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            OpenError::Config(why) => why.fmt(f),
            OpenError::Short => {
                f.write_str("the mapped memory is shorter than the config page says")
            }
            OpenError::Client(found, count) => write!(
                f,
                "client {found} does not exist: the device has clients 0 to {}",
                count - 1
            ),
            #[cfg(feature = "std")]
            OpenError::NoneToLease(count) => write!(
                f,
                "all {count} clients of the device belong to vCPUs, none is left for programs: give the \
                 device more clients in the VMM"
            ),
            #[cfg(feature = "std")]
            OpenError::NotFound(devices, cmdline) => write!(
                f,
                "no hypertrace device: {} has no PCI function {:04x}:{:04x} nor one with subsystem \
                 id {:04x}, and {} has no hypertrace.mmio=ADDRESS; start the VM with the device, \
                 or tell the address of its window; if this is a program on the host itself, start \
                 it with: hypertrace record -o DIR PROG",
                devices.display(),
                hypertrace_abi::layout::PCI_VENDOR,
                hypertrace_abi::layout::PCI_DEVICE,
                hypertrace_abi::layout::PCI_SUBSYSTEM,
                cmdline.display(),
            ),
            #[cfg(feature = "std")]
            OpenError::NoServer(function) => write!(
                f,
                "no hypertrace device: {} is ivshmem, but no server has made its memory: start `hypertrace serve \
                 --file FILE` first, and then the VM with that file",
                function.display(),
            ),
            #[cfg(feature = "std")]
            OpenError::Address(found, cmdline) => write!(
                f,
                "{}: hypertrace.mmio={found} is not an address: give it as 0x and hexadecimal \
                 digits, a multiple of the page size",
                cmdline.display(),
            ),
            #[cfg(feature = "std")]
            OpenError::Clock(found) => write!(
                f,
                "the environment variable HYPERTRACE_CLOCK={found} names no clock: set it to tsc or \
                 monotonic_raw, or unset it"
            ),
            #[cfg(feature = "std")]
            OpenError::Open => f.write_str(
                "this process has a hypertrace channel already: open or install one before the \
                 first event",
            ),
            #[cfg(feature = "std")]
            OpenError::NoLock => f.write_str(
                "this process cannot tell which clients are free: the channel that it or its parent has \
                 installed has no lock file, or the program has closed this file; install a lock file with \
                 the channel",
            ),
            #[cfg(feature = "std")]
            OpenError::HostEnded(path) => write!(
                f,
                "{}: its host has ended, and takes no events any more: in a VM, start `hypertrace serve` \
                 anew, and then the VM; on the host itself, start the program with: hypertrace record -o DIR \
                 -- PROG",
                path.display(),
            ),
            #[cfg(feature = "std")]
            OpenError::System { doing, path, hint, .. } => {
                write!(f, "cannot {doing} {}", path.display())?;
                if !hint.is_empty() {
                    write!(f, ": {hint}")?;
                }
                Ok(())
            }
        }
    }
}

impl core::error::Error for OpenError {
    fn source(&self) -> Option<&(dyn core::error::Error + 'static)> {
        match self {
            #[cfg(feature = "std")]
            OpenError::System { source, .. } => Some(source),
            _ => None,
        }
    }
}

impl From<ConfigError> for OpenError {
    fn from(why: ConfigError) -> Self {
        OpenError::Config(why)
    }
}

#[cfg(feature = "std")]
impl OpenError {
    /// Returns the error for the system's refusal, with a hint for the user.
    pub(crate) fn because(
        doing: &'static str,
        path: &std::path::Path,
        source: std::io::Error,
    ) -> OpenError {
        OpenError::System {
            doing,
            path: path.to_owned(),
            hint: hint(source.raw_os_error(), crate::os::is_root(), Lockdown::of_kernel),
            source,
        }
    }

    /// Returns true if the system denied permission, as to a plain user or under a lockdown.
    pub(crate) fn is_refused(&self) -> bool {
        matches!(self, OpenError::System { source, .. }
            if source.kind() == std::io::ErrorKind::PermissionDenied)
    }

    /// Replaces the hint if the system denied permission to a program without root's rights.
    pub(crate) fn for_plain_users(mut self, better: &'static str) -> OpenError {
        let is_plain = self.is_refused() && !crate::os::is_root();
        if let OpenError::System { hint, .. } = &mut self
            && is_plain
        {
            *hint = better;
        }
        self
    }
}

/// Lockdown of the kernel, as far as the kernel shows its state.
#[cfg(feature = "std")]
#[derive(Clone, Copy)]
enum Lockdown {
    /// The kernel is locked down.
    On,
    /// The kernel is not locked down, or has no lockdown.
    Off,
    Unknown,
}

#[cfg(feature = "std")]
impl Lockdown {
    fn of_kernel() -> Lockdown {
        let read = std::fs::read_to_string("/sys/kernel/security/lockdown");
        // Without securityfs, there is no such file either.
        let has_securityfs = || std::path::Path::new("/sys/kernel/security/lsm").exists();
        match read {
            Ok(text) => Lockdown::of_text(&text),
            Err(why) if why.kind() == std::io::ErrorKind::NotFound && has_securityfs() => {
                Lockdown::Off
            }
            Err(_) => Lockdown::Unknown,
        }
    }

    /// Parses the kernel's file: the levels of lockdown, with brackets around the present level.
    fn of_text(text: &str) -> Lockdown {
        match text.contains("[none]") {
            true => Lockdown::Off,
            false if text.contains('[') => Lockdown::On,
            false => Lockdown::Unknown,
        }
    }
}

#[cfg(feature = "std")]
fn hint(errno: Option<i32>, root: bool, lockdown: impl Fn() -> Lockdown) -> &'static str {
    match (errno, root) {
        (Some(libc::EACCES), false) => "run as root, or give the program access to this file",
        (Some(libc::EPERM | libc::EACCES), _) => match lockdown() {
            Lockdown::On => {
                "the kernel is locked down (/sys/kernel/security/lockdown), and refuses device memory to \
                 programs, even to root: boot with lockdown=none, or bind a device with 32-bit BARs to \
                 uio_pci_generic"
            }
            Lockdown::Off => {
                "the kernel is not locked down, so the program's rights are too few: a seccomp filter or another \
                 security module refuses it, or this is a container without CAP_SYS_ADMIN and CAP_SYS_RAWIO"
            }
            Lockdown::Unknown => {
                "the kernel is locked down (boot with lockdown=none, or bind a device with 32-bit BARs to \
                 uio_pci_generic), or the program's rights are too few: a seccomp filter, or a container without \
                 CAP_SYS_ADMIN and CAP_SYS_RAWIO; /sys/kernel/security/lockdown, which would say, cannot be read"
            }
        },
        (Some(libc::ENOENT), _) => "is it a hypertrace device, with BARs 0, 1, 2 and 4?",
        (Some(libc::EROFS), _) => "sysfs is mounted read-only here: mount it writable",
        _ => "",
    }
}

#[cfg(all(test, feature = "std"))]
mod tests {
    use super::*;
    use std::error::Error;

    #[test]
    fn an_open_error_has_action_path_cause_and_hint() {
        let source = std::io::Error::from_raw_os_error(libc::EPERM);
        let path = std::path::Path::new("/sys/bus/pci/devices/0000:00:04.0/resource4_wc");
        let error = OpenError::System {
            doing: "map",
            path: path.into(),
            hint: hint(source.raw_os_error(), true, || Lockdown::On),
            source,
        };
        let text = error.to_string();
        assert!(text.starts_with("cannot map /sys/bus/pci/devices/0000:00:04.0/resource4_wc: "));
        assert!(text.contains("lockdown=none"), "{text}");
        assert!(error.source().is_some_and(|why| !text.contains(&why.to_string())));
        assert!(hint(Some(libc::EACCES), false, || Lockdown::On).contains("root"));
    }

    #[test]
    fn a_refusal_is_blamed_on_lockdown_only_where_the_kernel_says_so() {
        let of = |text| hint(Some(libc::EPERM), true, || Lockdown::of_text(text));
        let [locked, free, unknown] =
            ["none [integrity] confidentiality\n", "[none] integrity confidentiality\n", ""]
                .map(of);
        assert!(locked.contains("lockdown=none") && !locked.contains("seccomp"), "{locked}");
        assert!(free.contains("seccomp") && !free.contains("lockdown=none"), "{free}");
        assert!(unknown.contains("seccomp") && unknown.contains("lockdown=none"), "{unknown}");
    }
}
