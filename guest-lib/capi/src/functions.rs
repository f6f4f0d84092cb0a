//! Function traces that are compiled in: the events of functions that a compiler has instrumented.
//!
//! If the program defines HYPERTRACE_FUNCTIONS, the header defines the two functions that
//! instrumented code calls. These two functions call the functions of this module. Only
//! [`hypertrace_function_modules`] opens a channel, so that a program may call instrumented
//! functions at any time: before `main`, in a memory allocator, in a signal handler.
//!
//! The code is unsafe because the C library lists the loaded files.
#![allow(unsafe_code)]

use hypertrace::abi::event::Bytes;
use hypertrace::abi::event_type;
use hypertrace::abi::schema;
use hypertrace::{Emit, Hex, Site, this_thread};
use std::ffi::{CStr, OsString, c_int, c_void};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering, Ordering::Relaxed};

/// Records the event `function_entry`, for HYPERTRACE_FUNCTIONS.
#[unsafe(no_mangle)]
pub extern "C" fn hypertrace_function_entry(function: *const c_void) {
    if hypertrace::is_on(const { schema::mask_slot("function_entry") }) {
        entered(function);
    }
}

/// Records the event `function_exit`, for HYPERTRACE_FUNCTIONS.
#[unsafe(no_mangle)]
pub extern "C" fn hypertrace_function_exit(function: *const c_void) {
    if hypertrace::is_on(const { schema::mask_slot("function_exit") }) {
        left(function);
    }
}

// The work is in separate functions, so that an event that is off saves no registers. The
// functions use C's calling convention, so that the compiler can turn calls of the functions into
// jumps.

#[inline(never)]
extern "C" fn entered(function: *const c_void) {
    let (site, (address,)) = event_type!("function_entry", address = Hex(function as u64));
    record(site, address);
}

#[inline(never)]
extern "C" fn left(function: *const c_void) {
    let (site, (address,)) = event_type!("function_exit", address = Hex(function as u64));
    record(site, address);
}

#[inline(always)]
fn record<S: Site>(site: S, address: Hex) {
    match this_thread::emit_leased(site, (address,)) {
        Emit::Recorded | Emit::Full => {}
        why => again(why, site, address),
    }
}

/// Records an event of a thread that had no client, if the thread has a client now. This function
/// is separate so that other events need not save registers across a call.
#[cold]
#[inline(never)]
fn again<S: Site>(why: Emit, site: S, address: Hex) {
    if this_thread::can_retry(why) {
        this_thread::emit_leased(site, (address,));
    }
}

/// Records an event `function_module` for each file of code that is loaded into the process. The
/// event's fields are the file's path, the difference between an address in memory and the same
/// address in the file, and the file's begin and end in memory. Like the first event, this
/// function opens the channel.
///
/// HYPERTRACE_FUNCTIONS calls this function before `main`. A program that later loads libraries with
/// instrumented functions (`dlopen`) calls this function again. Without new libraries, a call records
/// nothing.
#[unsafe(no_mangle)]
pub extern "C" fn hypertrace_function_modules() {
    let mut found = Modules { all: Vec::new(), changes: 0 };
    // SAFETY: `add` gets this address back, and no other reference exists meanwhile.
    unsafe { libc::dl_iterate_phdr(Some(add), (&raw mut found).cast()) };
    if Modules::known().is_none_or(|known| known.changes != found.changes) {
        // The old value is never freed, because another thread may still use it. ORDERING: pairs with the
        // Acquire in `known`.
        MODULES.store(Box::into_raw(Box::new(found)), Ordering::Release);
        RECORDED_BY.store(0, Relaxed);
    }
    // In a forked child, or if the channel is opened later, the first thread that gets a client records the
    // files.
    this_thread::on_new_client(record_modules);
    hypertrace::with_client(|_| record_modules());
}

/// Records the files of code, if this process has not recorded them. The caller's thread has a
/// client.
fn record_modules() {
    let process = std::process::id();
    if let Some(modules) = Modules::known()
        && hypertrace::is_on(schema::mask_slot("function_module"))
        && RECORDED_BY.swap(process, Relaxed) != process
    {
        modules.record();
    }
}

/// A file of code in memory.
struct Module {
    path: OsString,
    /// Difference of addresses in memory and in the file.
    offset: u64,
    begin: u64,
    end: u64,
}

/// The files of code in memory.
struct Modules {
    all: Vec<Module>,
    /// Number of files that were loaded and unloaded so far.
    changes: u64,
}

static MODULES: AtomicPtr<Modules> = AtomicPtr::new(null_mut());
/// Id of the process that has recorded [`MODULES`], 0 if no process has.
static RECORDED_BY: AtomicU32 = AtomicU32::new(0);

impl Modules {
    fn known() -> Option<&'static Modules> {
        // SAFETY: null or a leaked value. ORDERING: pairs with the Release of the store: the list
        // is complete.
        unsafe { MODULES.load(Ordering::Acquire).as_ref() }
    }

    fn record(&self) {
        for Module { path, offset, begin, end } in &self.all {
            let (site, fields) = event_type!(
                "function_module",
                path = Bytes(path.as_bytes()),
                offset = Hex(*offset),
                begin = Hex(*begin),
                end = Hex(*end)
            );
            this_thread::emit_leased(site, fields);
        }
    }
}

/// Adds a loaded file to the [`Modules`] at `found`.
unsafe extern "C" fn add(info: *mut libc::dl_phdr_info, _: usize, found: *mut c_void) -> c_int {
    // SAFETY: the C library passes `info`, and `hypertrace_function_modules` has passed `found`.
    let (info, found) = unsafe { (&*info, &mut *found.cast::<Modules>()) };
    found.changes = info.dlpi_adds.wrapping_add(info.dlpi_subs);
    let is_program = found.all.is_empty();
    let name = match info.dlpi_name.is_null() {
        true => c"",
        // SAFETY: the name is a string of the C library, which does not unload the file
        // meanwhile.
        false => unsafe { CStr::from_ptr(info.dlpi_name) },
    };
    let path = match name.to_bytes() {
        [] if is_program => program(),
        name => OsString::from_vec(name.to_vec()),
    };
    // SAFETY: the C library says that these are the file's program headers.
    let headers = unsafe { std::slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum.into()) };
    let loaded = headers.iter().filter(|header| header.p_type == libc::PT_LOAD);
    let begin = loaded.clone().map(|header| header.p_vaddr).min();
    let end = loaded.clone().map(|header| header.p_vaddr.wrapping_add(header.p_memsz)).max();
    let has_code = loaded.clone().any(|header| header.p_flags & libc::PF_X != 0);
    // The vDSO, the kernel's code in the process, has no path.
    let is_file = path.as_bytes().contains(&b'/');
    if let (Some(begin), Some(end), true) = (begin, end, has_code && is_file) {
        let offset = info.dlpi_addr;
        let [begin, end] = [begin, end].map(|address| offset.wrapping_add(address));
        found.all.push(Module { path, offset, begin, end });
    }
    0
}

/// Returns the path of the program. Without `/proc`, returns the path by which the program was started.
fn program() -> OsString {
    if let Ok(path) = std::env::current_exe() {
        return path.into_os_string();
    }
    // SAFETY: `getauxval` takes a number.
    let started = unsafe { libc::getauxval(libc::AT_EXECFN) } as usize as *const libc::c_char;
    match started.is_null() {
        true => OsString::new(),
        // SAFETY: the address is that of a string of the kernel, which lives as long as the
        // process.
        false => OsString::from_vec(unsafe { CStr::from_ptr(started) }.to_bytes().to_vec()),
    }
}
