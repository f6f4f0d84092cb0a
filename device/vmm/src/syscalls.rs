// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The system calls of each thread, for seccomp filters, on x86-64 with glibc.
//!
//! A thread's filter needs [`RUNTIME`] and the lists for everything that the thread does. A new thread
//! inherits the filter of the thread that starts it. A thread that calls
//! [`Hypertrace::start`](crate::Hypertrace::start) therefore also needs the drain thread's calls. A thread
//! that calls [`Session::serve_after`](crate::Session::serve_after) also needs the monitor's calls.
//!
//! glibc's allocator opens a file when the arena of a thread shrinks for the first time in a process. Call
//! `libc::mallopt(libc::M_TRIM_THRESHOLD, i32::MAX)` before the first filter, so that arenas do not shrink.

macro_rules! lists {
    ($($(#[$doc:meta])* $name:ident: $($call:ident)*;)*) => {
        $(
            $(#[$doc])*
            ///
            #[doc = concat!($("`", stringify!($call), "` "),*)]
            pub const $name: &[i64] = &[$(libc::$call),*];
        )*

        /// The name of each list, and the names of the calls in the list: `("VCPU", ["write"])`. Filters that
        /// are text need these names.
        pub const BY_NAME: &[(&str, &[&str])] =
            &[$((stringify!($name), &[$(without_prefix(stringify!($call))),*])),*];
    };
}

/// Returns the name of a call without `SYS_`.
const fn without_prefix(call: &str) -> &str {
    call.split_at("SYS_".len()).1
}

lists! {
    /// Start of the device: memory, eventfd, drain thread. The starting thread also needs one of the next
    /// three lists.
    START: SYS_memfd_create SYS_prlimit64 SYS_ftruncate SYS_fcntl SYS_eventfd2
        SYS_clone3 SYS_set_robust_list SYS_prctl SYS_sched_getaffinity SYS_gettid SYS_getrandom SYS_clock_gettime SYS_write;
    /// Start of a session with [`Destination::Path`](crate::Destination::Path).
    START_DIR: SYS_newfstatat SYS_statx SYS_openat SYS_fstat SYS_fchmod SYS_flock SYS_mkdirat SYS_getdents64
        SYS_unlinkat SYS_renameat SYS_pwrite64 SYS_read SYS_close SYS_geteuid;
    /// Start of a session with [`Destination::Fd`](crate::Destination::Fd).
    START_DIR_FD: SYS_statx SYS_openat SYS_fstat SYS_fchmod SYS_flock SYS_mkdirat SYS_getdents64 SYS_unlinkat SYS_renameat
        SYS_pwrite64 SYS_read SYS_close SYS_geteuid;
    /// Start of a session with [`Destination::Journal`](crate::Destination::Journal).
    START_JOURNAL: SYS_close SYS_getsockopt SYS_setsockopt SYS_ppoll SYS_sendto;
    /// Drain thread of a session in a directory.
    DRAIN: SYS_fstat SYS_getrandom SYS_ppoll SYS_read SYS_openat SYS_fchmod SYS_ftruncate
        SYS_pwrite64 SYS_renameat SYS_unlinkat SYS_close SYS_prlimit64 SYS_clock_gettime;
    /// Drain thread of a session in a journal.
    DRAIN_JOURNAL: SYS_getrandom SYS_ppoll SYS_read SYS_sendto SYS_close SYS_prlimit64
        SYS_clock_gettime;
    /// Event loop of a VMM in which the adapter for `event-manager` drains. The event loop's thread also
    /// needs a list for drain threads.
    EVENT_LOOP: SYS_timerfd_settime SYS_epoll_ctl SYS_epoll_wait SYS_epoll_pwait SYS_write;
    /// Reset, save, load and finish of the device. The calling thread also needs a list for drain threads,
    /// because these functions drain on the calling thread.
    RESET_SAVE_FINISH: SYS_fallocate SYS_pread64 SYS_pwrite64 SYS_write;
    /// [`attach`](crate::attach), on a thread that already has its filter.
    ATTACH: SYS_getpid SYS_gettid SYS_write;
    /// Thread of a vCPU, after [`Session::attach`](crate::Session::attach).
    VCPU: SYS_write;
    /// Start of the monitor with [`Session::serve`](crate::Session::serve) or
    /// [`serve_after`](crate::Session::serve_after), and its thread.
    SERVE: SYS_getpid SYS_openat SYS_fchmod SYS_statx SYS_socket SYS_bind SYS_listen SYS_ioctl SYS_newfstatat
        SYS_flock SYS_connect SYS_close SYS_renameat SYS_unlinkat SYS_socketpair SYS_clone3
        SYS_set_robust_list SYS_prctl SYS_sched_getaffinity SYS_gettid SYS_ppoll SYS_accept4 SYS_recvfrom SYS_sendto
        SYS_getrandom SYS_clock_gettime SYS_clock_nanosleep;
    /// End of the monitor: the drop of [`Monitor`](crate::Monitor).
    SERVE_END: SYS_getpid SYS_newfstatat SYS_unlinkat SYS_close;
    /// Thread of the monitor, for its clients and their commands, except the commands that write files:
    /// `snapshot` and `trace-file set`.
    MONITOR: SYS_ppoll SYS_accept4 SYS_ioctl SYS_recvfrom SYS_sendto SYS_close SYS_clock_nanosleep SYS_clock_gettime
        SYS_getrandom;
    /// Calls that Rust and the C library make in every thread: for memory, for locks, and to end the thread.
    /// Builds with debug assertions call `fcntl` at each close.
    RUNTIME: SYS_fcntl SYS_futex SYS_mmap SYS_mremap SYS_munmap SYS_madvise SYS_mprotect SYS_brk
        SYS_rt_sigprocmask SYS_sigaltstack SYS_rseq SYS_exit;
}
