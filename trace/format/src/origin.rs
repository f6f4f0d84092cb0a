//! The process and the machine that recorded a session.

use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::Read;

/// Maximum size of a command line in bytes, and maximum size of any other text in bytes.
const MAX: (u64, u64) = (4096, 256);

/// The process and the machine that recorded a session. The process chose these texts: escape them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Origin {
    /// Version of the library that writes the session.
    pub version: String,
    /// Command line of the process, cut to 4,096 bytes. Spaces separate the command line's words.
    pub command: String,
    /// Name of the machine.
    pub host: String,
    /// Release of the machine's kernel.
    pub kernel: String,
    /// Architecture of the process, named as in Rust's targets.
    pub machine: String,
}

impl Origin {
    /// Returns the origin of this process. Texts that `/proc` does not have are empty.
    pub fn here() -> Origin {
        let of_kernel = |name: &str| text(&format!("/proc/sys/kernel/{name}"), MAX.1);
        Origin {
            version: env!("CARGO_PKG_VERSION").into(),
            command: text("/proc/self/cmdline", MAX.0),
            host: of_kernel("hostname"),
            kernel: of_kernel("osrelease"),
            machine: std::env::consts::ARCH.into(),
        }
    }
}

/// Reads the first `most` bytes of a file.
fn text(path: &str, most: u64) -> String {
    let mut bytes = Vec::new();
    // If an error ends the read early, the part before the error is kept.
    let _ = File::open(path).map(|file| file.take(most).read_to_end(&mut bytes));
    String::from_utf8_lossy(&bytes).replace('\0', " ").trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_knows_its_command_and_its_machine() {
        let here = Origin::here();
        let program = std::env::args().next().unwrap();
        assert!(here.command.starts_with(&program), "{here:?}");
        assert!(!here.host.is_empty() && here.kernel.contains('.'), "{here:?}");
    }
}
