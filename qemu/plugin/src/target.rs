//! The guest's architecture.

/// Architecture of the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// Guests of `qemu-x86_64` and `qemu-system-x86_64`.
    X86_64,
    /// Guests of `qemu-aarch64` and `qemu-system-aarch64`.
    Aarch64,
}

/// The guest has another architecture. The text is QEMU's name of the architecture.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("guests of the kind {0:?} are not known: x86_64 and aarch64 are")]
pub struct UnknownTarget(String);

impl Target {
    /// Returns the architecture to which QEMU gives this name.
    ///
    /// # Errors
    /// If `name` is the name of another architecture.
    pub fn of(name: &str) -> Result<Target, UnknownTarget> {
        match name {
            "x86_64" => Ok(Target::X86_64),
            "aarch64" => Ok(Target::Aarch64),
            other => Err(UnknownTarget(other.to_owned())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_architectures_are_refused_by_name() {
        assert_eq!(Target::of("aarch64"), Ok(Target::Aarch64));
        assert_eq!(
            Target::of("riscv64").unwrap_err().to_string(),
            "guests of the kind \"riscv64\" are not known: x86_64 and aarch64 are"
        );
    }
}
