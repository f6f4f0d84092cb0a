//! Snapshots: a paused machine and its hypertrace device in a directory, for a restore in another process.
//!
//! The directory has the guest's RAM (`ram`), and registers and the device (`state.json`).

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use hypertrace_guest::layout;
use hypertrace_vmm::Saved;
use kvm_bindings::{Msrs, kvm_fpu, kvm_msr_entry, kvm_regs, kvm_sregs};
use serde::{Deserialize, Serialize};
use vm_memory::{Bytes, GuestAddress};
use vmm_sys_util::errno::Error as Errno;

use crate::error::{Error, kvm};
use crate::machine::{Machine, Vcpu};

/// Time stamp counter, as a model-specific register (Intel SDM vol. 4).
const MSR_TSC: u32 = 0x10;

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
    /// The file `state.json` is no snapshot's.
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

#[derive(Debug, Serialize, Deserialize)]
struct VcpuState {
    has_ended: bool,
    regs: kvm_regs,
    sregs: kvm_sregs,
    #[serde(with = "Fpu")]
    fpu: kvm_fpu,
    tsc: u64,
}

/// The members of `kvm_fpu`, which has no serialization of its own.
#[derive(Serialize, Deserialize)]
#[serde(remote = "kvm_fpu")]
struct Fpu {
    fpr: [[u8; 16]; 8],
    fcw: u16,
    fsw: u16,
    ftwx: u8,
    pad1: u8,
    last_opcode: u16,
    last_ip: u64,
    last_dp: u64,
    xmm: [[u8; 16]; 16],
    mxcsr: u32,
    pad2: u32,
}

impl VcpuState {
    fn save(vcpu: &Vcpu) -> Result<VcpuState, Error> {
        let fd = &vcpu.fd;
        let mut msrs = tsc(0)?;
        fd.get_msrs(&mut msrs).map_err(kvm("KVM_GET_MSRS"))?;
        Ok(VcpuState {
            has_ended: vcpu.has_ended,
            regs: fd.get_regs().map_err(kvm("KVM_GET_REGS"))?,
            sregs: fd.get_sregs().map_err(kvm("KVM_GET_SREGS"))?,
            fpu: fd.get_fpu().map_err(kvm("KVM_GET_FPU"))?,
            tsc: msrs.as_slice().first().map_or(0, |msr| msr.data),
        })
    }

    fn restore(&self, vcpu: &mut Vcpu) -> Result<(), Error> {
        let fd = &vcpu.fd;
        fd.set_sregs(&self.sregs).map_err(kvm("KVM_SET_SREGS"))?;
        fd.set_regs(&self.regs).map_err(kvm("KVM_SET_REGS"))?;
        fd.set_fpu(&self.fpu).map_err(kvm("KVM_SET_FPU"))?;
        fd.set_msrs(&tsc(self.tsc)?).map_err(kvm("KVM_SET_MSRS"))?;
        vcpu.has_ended = self.has_ended;
        Ok(())
    }
}

fn tsc(data: u64) -> Result<Msrs, Error> {
    let entry = kvm_msr_entry { index: MSR_TSC, data, ..Default::default() };
    // Fails for more entries than KVM takes only.
    Msrs::from_entries(&[entry]).map_err(|_| kvm("KVM_GET_MSRS")(Errno::new(libc::E2BIG)))
}

/// Returns a function that names the file in its error.
fn of(path: &Path) -> impl FnOnce(io::Error) -> SnapshotError {
    let path = path.to_owned();
    |source| SnapshotError::File { path, source }
}

impl Snapshot {
    /// Saves a paused machine and its device in a directory, which is made.
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
    /// If it cannot be read, or has no state of a machine.
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
    /// If it cannot be made as [`Machine::new`] does, or the saved RAM cannot be read.
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
