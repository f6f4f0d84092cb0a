//! Target `vfio_user`: a hostile VMM against the server of vfio-user.
#![cfg_attr(fuzzing, no_main)]

hypertrace_fuzz::target!(vfio_user);
