//! The fuzz target `chip`, for a while, on a stable compiler.

use proptest::collection::vec;
use proptest::prelude::*;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(debug_assertions) { 1500 } else { 10_000 }))]

    #[test]
    fn a_hostile_guest_harms_nobody(data in vec(any::<u8>(), 0..3000)) {
        hypertrace_fuzz_inputs::chip(&data);
    }
}
