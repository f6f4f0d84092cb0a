// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Checks that the types that serialize to JSON have the members of docs/json.md. In tests, these types also
//! implement `Deserialize`, because this implementation lists the members.

use crate::info::Session;
use crate::inputs::kernel::KernelStat;
use crate::regions::{Group, IntervalLine, PARTS, Part, Summary, Times};
use crate::stat::{self, StreamStat};
use hypertrace_test_support::json_md::Members;
use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use std::fmt;

#[test]
fn the_types_of_json_are_those_of_the_documentation() {
    Members::of::<Summary>().with::<Vec<Group>>("regions").is_documented_as("regions");
    Members::of::<IntervalLine>().is_documented_as("regions --intervals");
    let info =
        Members::default().with::<Vec<Session>>("sessions").with::<Vec<KernelStat>>("kernels");
    info.are_documented_in("info", &["sessions", "kernels"]);
}

impl<'de> Deserialize<'de> for StreamStat {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<StreamStat, D::Error> {
        stat::Members::deserialize(from).map(|_| StreamStat::default())
    }
}

impl<'de> Deserialize<'de> for Part {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Part, D::Error> {
        String::deserialize(from).map(|_| Part::Unknown)
    }
}

impl<'de> Deserialize<'de> for Times {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Times, D::Error> {
        static KEYS: [&str; PARTS] = {
            let (mut keys, mut at) = ([""; PARTS], 0);
            while at < PARTS {
                keys[at] = Part::ALL[at].key_ns();
                at += 1;
            }
            keys
        };
        struct Members;
        impl<'de> Visitor<'de> for Members {
            type Value = Times;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("times by parts")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Times, A::Error> {
                while map.next_entry::<String, u64>()?.is_some() {}
                Ok(Times::default())
            }
        }
        from.deserialize_struct("Times", &KEYS, Members)
    }
}
