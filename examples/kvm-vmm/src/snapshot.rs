//! Snapshots: a paused machine and its hypertrace device in a directory, for a restore in another process.
//!
//! The directory has the guest's RAM in `ram`, and the registers and the device in `state.json`.

#[cfg_attr(target_arch = "x86_64", path = "snapshot/x86_64.rs")]
#[cfg_attr(target_arch = "aarch64", path = "snapshot/aarch64.rs")]
mod registers;

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use hypertrace_guest::layout;
use hypertrace_vmm::Saved;
use serde::{Deserialize, Serialize};
use vm_memory::{Bytes, GuestAddress};

use crate::error::Error;
use crate::machine::Machine;
use registers::VcpuState;

/// Error of a snapshot.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    /// The machine or KVM failed.
    #[error(transparent)]
    Machine(#[from] Error),
    /// A file could not be written or read.
    #[error("cannot access {path}")]
    File {
        /// The file.
        path: PathBuf,
        /// Cause.
        #[source]
        source: io::Error,
    },
    /// The file `state.json` has no state of a snapshot.
    #[error("{path} has no state of a machine")]
    State {
        /// The file.
        path: PathBuf,
        /// Cause.
        #[source]
        source: serde_json::Error,
    },
}

/// A snapshot: registers of the vCPUs, and the device.
#[derive(Debug, Serialize, Deserialize)]
pub struct Snapshot {
    vcpus: Vec<VcpuState>,
    device: Saved,
    /// The snapshot's directory.
    #[serde(skip)]
    dir: PathBuf,
}

/// Returns a function that names the file in its error.
fn of(path: &Path) -> impl FnOnce(io::Error) -> SnapshotError {
    let path = path.to_owned();
    |source| SnapshotError::File { path, source }
}

impl Snapshot {
    /// Saves a paused machine and its device in a directory, and makes the directory if needed.
    ///
    /// # Errors
    /// If KVM refuses, or a file cannot be written.
    pub fn save(machine: &Machine, device: Saved, dir: &Path) -> Result<(), SnapshotError> {
        fs::create_dir_all(dir).map_err(of(dir))?;
        let vcpus = machine.vcpus.iter().map(VcpuState::save).collect::<Result<_, _>>()?;
        let snapshot = Snapshot { vcpus, device, dir: dir.to_owned() };

        let path = dir.join("ram");
        let mut ram = vec![0; layout::RAM_SIZE as usize];
        machine.vm().ram().read_slice(&mut ram, GuestAddress(0)).map_err(Error::from)?;
        fs::write(&path, &ram).map_err(of(&path))?;

        let path = dir.join("state.json");
        let mut file = File::create(&path).map_err(of(&path))?;
        let json = serde_json::to_vec(&snapshot);
        let json = json.map_err(|source| SnapshotError::State { path: path.clone(), source })?;
        file.write_all(&json).map_err(of(&path))
    }

    /// Opens the snapshot in a directory.
    ///
    /// # Errors
    /// If the snapshot cannot be read, or has no state of a machine.
    pub fn open(dir: &Path) -> Result<Snapshot, SnapshotError> {
        let path = dir.join("state.json");
        let json = fs::read(&path).map_err(of(&path))?;
        let snapshot: Snapshot = serde_json::from_slice(&json)
            .map_err(|source| SnapshotError::State { path, source })?;
        Ok(Snapshot { dir: dir.to_owned(), ..snapshot })
    }

    /// Returns the number of vCPUs.
    pub fn vcpus(&self) -> usize {
        self.vcpus.len()
    }

    /// Makes a machine with the saved RAM and registers, and an empty bus.
    ///
    /// # Errors
    /// If [`Machine::new`] fails, or the saved RAM cannot be read.
    pub fn machine(&self) -> Result<Machine, SnapshotError> {
        let mut machine = Machine::new(self.vcpus.len())?;
        let path = self.dir.join("ram");
        let mut ram = vec![0; layout::RAM_SIZE as usize];
        let read = File::open(&path).and_then(|mut file| file.read_exact(&mut ram));
        read.map_err(of(&path))?;
        machine.vm().ram().write_slice(&ram, GuestAddress(0)).map_err(Error::from)?;
        for (vcpu, state) in machine.vcpus.iter_mut().zip(&self.vcpus) {
            state.restore(vcpu)?;
        }
        Ok(machine)
    }

    /// Returns the device.
    pub fn device(&self) -> &Saved {
        &self.device
    }
}
