//! Registers of a vCPU.
//!
//! QEMU passes the registers in arrays of glib. This library is not linked to glib. The library looks glib's
//! functions up at run time, as it looks QEMU's functions up, because QEMU itself is linked to glib.
//!
//! The code is unsafe because the API's functions are C functions.
#![allow(unsafe_code)]

use super::symbol::Symbol;
use std::ffi::{CStr, c_char, c_uint, c_void};
use std::mem::transmute;

/// The public part of `GArray` and of `GByteArray`.
#[repr(C)]
struct Array {
    data: *mut u8,
    len: c_uint,
}

/// `qemu_plugin_reg_descriptor`: the part that all versions have. A descriptor has a third word from API 4
/// on, and a fourth word from API 7 on. Therefore this library asks glib for the size of the elements.
#[repr(C)]
struct Descriptor {
    handle: *mut c_void,
    name: *const c_char,
}

static GET_REGISTERS: Symbol = Symbol::new(c"qemu_plugin_get_registers");
static READ_REGISTER: Symbol = Symbol::new(c"qemu_plugin_read_register");
static ELEMENT_SIZE: Symbol = Symbol::new(c"g_array_get_element_size");
static ARRAY_FREE: Symbol = Symbol::new(c"g_array_free");
static BYTES_NEW: Symbol = Symbol::new(c"g_byte_array_new");
static BYTES_FREE: Symbol = Symbol::new(c"g_byte_array_free");
static BYTES_SET_SIZE: Symbol = Symbol::new(c"g_byte_array_set_size");

/// Registers of a vCPU, by name. Only the thread that runs the vCPU may use the vCPU's registers.
#[derive(Debug)]
pub struct Registers {
    all: Vec<(String, Register)>,
    /// A `GByteArray` for values.
    buffer: *mut c_void,
}

/// A register that all vCPUs of the same kind have.
#[derive(Clone, Copy, Debug)]
pub struct Register(*mut c_void);

impl Registers {
    /// Lists the registers of the vCPU that the calling thread runs. This function may be called in
    /// [`Events::vcpu_started`] and later callbacks of that vCPU. Returns `None` before API 2.
    ///
    /// [`Events::vcpu_started`]: super::Events::vcpu_started
    pub fn list() -> Option<Registers> {
        let (list, element_size) = (GET_REGISTERS.find()?, ELEMENT_SIZE.find()?);
        let (free, new) = (ARRAY_FREE.find()?, BYTES_NEW.find()?);
        let later = [&READ_REGISTER, &BYTES_SET_SIZE, &BYTES_FREE];
        if later.iter().any(|symbol| symbol.find().is_none()) {
            return None;
        }
        // SAFETY: the functions have these types in all versions that have the functions.
        let (list, element_size, free, new) = unsafe {
            (
                transmute::<*const (), extern "C" fn() -> *mut Array>(list),
                transmute::<*const (), extern "C" fn(*mut Array) -> c_uint>(element_size),
                transmute::<*const (), extern "C" fn(*mut Array, c_uint) -> *mut u8>(free),
                transmute::<*const (), extern "C" fn() -> *mut c_void>(new),
            )
        };
        let array = list();
        if array.is_null() {
            return None;
        }
        let step = element_size(array) as usize;
        // SAFETY: the array has `len` elements of `step` bytes. Each element begins with the words of
        // `Descriptor`. The names live as long as the process, because the names are constants of QEMU.
        let all = unsafe {
            let Array { data, len } = array.read();
            let elements = (0..len as usize).map(|index| data.add(index * step));
            elements
                .map(|element| element.cast::<Descriptor>().read_unaligned())
                .map(|Descriptor { handle, name }| {
                    let name = CStr::from_ptr(name).to_string_lossy().into_owned();
                    (name, Register(handle))
                })
                .collect()
        };
        free(array, 1);
        Some(Registers { all, buffer: new() })
    }

    /// Returns the register of this name, as gdb names it.
    pub fn find(&self, name: &str) -> Option<Register> {
        self.all.iter().find(|(known, _)| known == name).map(|&(_, register)| register)
    }

    /// Reads the lowest 64 bits of a register. This method may be called in callbacks of this vCPU that are
    /// registered with [`Reads::Registers`](super::Reads::Registers). While QEMU translates a block for this
    /// vCPU, ordinary registers may have old values. Only registers that ordinary instructions do not change
    /// have their right values. An example is a segment register of x86.
    pub fn read(&mut self, register: Register) -> Option<u64> {
        let (read, set_size) = (READ_REGISTER.find()?, BYTES_SET_SIZE.find()?);
        // SAFETY: the functions have these types, as in `list`. The type of `read`'s result differs between
        // versions, and the result is not used. `read` appends the value to the buffer, and `set_size` has
        // emptied the buffer before.
        unsafe {
            let set_size: extern "C" fn(*mut c_void, c_uint) -> *mut c_void = transmute(set_size);
            let read: extern "C" fn(*mut c_void, *mut c_void) = transmute(read);
            set_size(self.buffer, 0);
            read(register.0, self.buffer);
            let Array { data, len } = self.buffer.cast::<Array>().read();
            let mut bytes = [0; 8];
            let count = (len as usize).min(bytes.len());
            if count == 0 {
                return None;
            }
            std::ptr::copy_nonoverlapping(data, bytes.as_mut_ptr(), count);
            // The bytes are in the guest's order, which is little-endian on both targets.
            Some(u64::from_le_bytes(bytes))
        }
    }
}

impl Drop for Registers {
    fn drop(&mut self) {
        let Some(free) = BYTES_FREE.find() else { return };
        // SAFETY: the function has this type, as in `list`, and the buffer is not used again.
        unsafe {
            let free: extern "C" fn(*mut c_void, c_uint) -> *mut u8 = transmute(free);
            free(self.buffer, 1);
        }
    }
}
