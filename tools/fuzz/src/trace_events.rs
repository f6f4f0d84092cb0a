//! Target `trace_events`. The parser either parses a file of declarations, or returns an error that says
//! where the fault is. If parsed declarations are printed and parsed again, then the result is the same.

use hypertrace_trace_build::{EventDecl, MAX_ERRORS, generate, parse};

/// Panics if the reader of declarations breaks a promise.
pub fn run(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    match parse("f", &text) {
        Ok(events) => {
            let source = generate("f", &events);
            assert!(events.iter().all(|event| source.contains(&event.signature())));
            events.iter().for_each(reads_back);
        }
        Err(errors) => {
            assert!((1..=MAX_ERRORS).contains(&errors.errors().len()));
            for error in errors.errors() {
                let line = text.lines().nth(error.line - 1).expect("a line of the file");
                assert!((1..=line.chars().count() + 1).contains(&error.column), "{error}");
            }
        }
    }
}

fn reads_back(event: &EventDecl) {
    let declaration = event.declaration();
    let again = parse("f", &declaration).expect("what was read");
    assert_eq!(again.len(), 1);
    assert_eq!(again[0].declaration(), declaration);
    let types =
        |event: &EventDecl| event.arguments().iter().map(|a| a.ty().kind().c()).collect::<Vec<_>>();
    assert_eq!(types(&again[0]), types(event));
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use proptest::sample::{Index, select};

    /// File with declarations of every kind.
    const FILE: &[u8] = include_bytes!("../../../trace/build/tests/data/trace-events");

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..500)) {
            run(&bytes);
        }

        #[test]
        fn damage_is_read_or_refused(
            damage in prop::collection::vec((any::<Index>(), select(&b"\"%*(),#\n\\ ax08d\xff"[..])), 0..20),
        ) {
            let mut file = FILE.to_vec();
            for (at, byte) in damage {
                *at.get_mut(&mut file) = byte;
            }
            run(&file);
        }
    }

    #[test]
    fn a_file_is_read() {
        run(FILE);
        let text = String::from_utf8_lossy(FILE);
        assert!(parse("f", &text).is_ok());
    }
}
