//! The decoder accepts any bytes.

use hypertrace_functions::decode::{Architecture, decode};
use proptest::prelude::*;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(20_000))]

    #[test]
    fn any_bytes_are_an_instruction_within_them_or_none(
        bytes in proptest::collection::vec(any::<u8>(), 0..20),
        prefix in proptest::option::of(prop_oneof![Just(0xe8_u8), Just(0xff), Just(0x0f), Just(0x66)]),
        address: u64,
    ) {
        let bytes: Vec<u8> = prefix.into_iter().chain(bytes).collect();
        for architecture in [Architecture::X86_64, Architecture::Aarch64] {
            if let Some(found) = decode(architecture, &bytes, address) {
                prop_assert!(usize::from(found.length) <= bytes.len().min(15));
                prop_assert!(found.length > 0);
                // Bytes after the instruction do not matter.
                let alone = &bytes[..found.length.into()];
                prop_assert_eq!(decode(architecture, alone, address), Some(found));
            }
        }
    }
}
