//! Keeps the library in memory. The library may be linked into a plugin, and the program may unload the
//! plugin. Even then, the library's thread needs the library's code, as do the functions that run when a
//! thread of the program ends.
//!
//! The code is unsafe because of the dynamic loader's C functions.
#![allow(unsafe_code)]

use libc::{Dl_info, c_int, c_void, dl_phdr_info, size_t};
use std::ffi::{CStr, c_char};
use std::mem::{MaybeUninit, transmute};

/// Keeps the shared object with this code loaded until the process ends. Does nothing if nobody can unload
/// the code. Nobody can unload code that is part of the program, static or not, or of an object that was
/// loaded when the program started.
///
/// A thread in `dlopen` holds the dynamic loader's lock while the object's constructors run, so a constructor
/// must not wait for the first event of another thread.
pub(super) fn pin() {
    if !may_be_unloaded() {
        return;
    }
    type Address = unsafe extern "C" fn(*const c_void, *mut Dl_info) -> c_int;
    type Open = unsafe extern "C" fn(*const c_char, c_int) -> *mut c_void;
    let (Some(dladdr), Some(dlopen)) = (function(c"dladdr"), function(c"dlopen")) else { return };
    let mut found = MaybeUninit::<Dl_info>::uninit();
    // SAFETY: both addresses are addresses of the C library's functions `dladdr` and `dlopen`. dladdr fills
    // `found` if dladdr does not return 0; the name lives as long as the object, which is loaded. If dlopen
    // does not find the object, the object is not pinned.
    unsafe {
        let dladdr: Address = transmute(dladdr);
        let dlopen: Open = transmute(dlopen);
        if dladdr(here().cast(), found.as_mut_ptr()) != 0 {
            let flags = libc::RTLD_LAZY | libc::RTLD_NOLOAD | libc::RTLD_NODELETE;
            dlopen(found.assume_init().dli_fname, flags);
        }
    }
}

/// Returns an address in this code.
fn here() -> *const () {
    pin as fn() as *const ()
}

/// Finds the function with this name. A direct call would need a static program to be linked with the dynamic
/// loader.
fn function(name: &CStr) -> Option<*mut c_void> {
    // SAFETY: dlsym looks for a name in this process.
    Some(unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) }).filter(|found| !found.is_null())
}

/// The objects of the process, in the order in which the dynamic loader has found them.
#[derive(Default)]
struct Search {
    objects: usize,
    /// Place of the object with this code. `loader` is the place of the dynamic loader, which a static
    /// program lacks.
    own: Option<usize>,
    loader: Option<usize>,
}

/// Returns true if `dlopen` may have loaded the object with this code, because the object comes after the
/// dynamic loader. An interposer of malloc, which is called within `dlopen`, comes before the loader.
fn may_be_unloaded() -> bool {
    let mut search = Search::default();
    // SAFETY: `look` is called with each object and the address of `search`, and `search` lives until the
    // call has ended.
    unsafe { libc::dl_iterate_phdr(Some(look), (&raw mut search).cast()) };
    matches!((search.own, search.loader), (Some(own), Some(loader)) if own > loader)
}

unsafe extern "C" fn look(info: *mut dl_phdr_info, _: size_t, search: *mut c_void) -> c_int {
    // SAFETY: `dl_iterate_phdr` passes a valid `info`, and `may_be_unloaded` passes the address of a
    // `Search`. The headers belong to a loaded object.
    let (info, search, headers) = unsafe {
        let info = &*info;
        let headers = std::slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum.into());
        (info, &mut *search.cast::<Search>(), headers)
    };
    let place = search.objects;
    search.objects += 1;
    // SAFETY: getauxval takes a number.
    let loader = unsafe { libc::getauxval(libc::AT_BASE) };
    if loader != 0 && info.dlpi_addr == loader {
        search.loader = Some(place);
    }
    let own = (here() as u64).wrapping_sub(info.dlpi_addr);
    let has_own = |header: &libc::Elf64_Phdr| {
        header.p_type == libc::PT_LOAD && own.wrapping_sub(header.p_vaddr) < header.p_memsz
    };
    if headers.iter().any(has_own) {
        search.own = Some(place);
    }
    0
}
