//! The arguments of the command line, and the events that they ask for.

use crate::event::{Event, Value};
use hypertrace::abi::schema::{MAX_FIELDS, MAX_NAME, is_name};
use std::ffi::OsString;
use std::path::Path;

/// Field by which readers match a region's begin and its end if two processes record them.
const ANY_CLIENT: &str = "any_client";

/// Request of the command line.
#[derive(Debug, PartialEq)]
pub enum Wanted {
    Marks(Arguments),
    Help,
    Version,
}

/// Events to record, and the way to record them.
#[derive(Debug, PartialEq)]
pub struct Arguments {
    pub action: Action,
    /// Whether events are reference points.
    pub is_point: bool,
    /// Whether the program fails if the events cannot be recorded.
    pub is_required: bool,
}

#[derive(Debug, PartialEq)]
pub enum Action {
    Event(Event),
    /// A region around a command. The last field of the region's end is the command's exit status.
    Command {
        begin: Event,
        end: Event,
        command: Vec<OsString>,
    },
}

/// Whether an event is a region's begin or its end.
#[derive(Clone, Copy, PartialEq)]
enum Part {
    Begin,
    End,
}

/// Parses the arguments.
///
/// # Errors
/// If the arguments are wrong: a sentence that says what is wrong.
pub fn parse(arguments: impl Iterator<Item = OsString>) -> Result<Wanted, String> {
    let (mut name, mut part, mut fields) = (None, None, Vec::new());
    let (mut is_point, mut is_required, mut command) = (false, false, None);
    let mut arguments = arguments.peekable();
    while let Some(argument) = arguments.next() {
        let text = argument.to_string_lossy();
        match &*text {
            "--help" | "-h" => return Ok(Wanted::Help),
            "--version" | "-V" => return Ok(Wanted::Version),
            "--sync" => is_point = true,
            "--ring" => is_point = false,
            "--require" => is_required = true,
            "--begin" | "--end" if part.is_none() && name.is_none() => {
                part = Some(if text == "--begin" { Part::Begin } else { Part::End });
                let of = arguments.next().ok_or_else(|| format!("{text} needs a name"))?;
                name = Some(of.to_string_lossy().into_owned());
            }
            "--" => {
                command = Some(Vec::from_iter(arguments.by_ref()));
            }
            _ if text.starts_with('-') => return Err(format!("{text} is not understood")),
            _ => match text.split_once('=') {
                Some((key, value)) => fields.push((key.to_owned(), Value::of(value))),
                None if name.is_none() => name = Some(text.into_owned()),
                None => return Err(format!("{text} is no KEY=VALUE")),
            },
        }
    }
    let action = match (command, part) {
        (Some(_), Some(_)) => {
            return Err("a region around a command has no --begin or --end".into());
        }
        (Some(command), None) => around(command, name, fields)?,
        (None, part) => Action::Event(event(&name.ok_or("a name is needed")?, part, fields)?),
    };
    Ok(Wanted::Marks(Arguments { action, is_point, is_required }))
}

/// Returns the event of a mark.
fn event(
    name: &str,
    part: Option<Part>,
    mut fields: Vec<(String, Value)>,
) -> Result<Event, String> {
    let suffix = match part {
        None => "",
        Some(Part::Begin) => "_begin",
        Some(Part::End) => "_end",
    };
    if part.is_some() {
        let id = id(&mut fields)?.unwrap_or(0);
        fields.insert(0, ("id".into(), Value::Unsigned(id)));
    }
    fields.push((ANY_CLIENT.into(), Value::Bool(true)));
    made(&identifier(name, suffix), &fields)
}

/// Returns the region around a command. A region without a name has the program's name.
fn around(
    command: Vec<OsString>,
    name: Option<String>,
    mut fields: Vec<(String, Value)>,
) -> Result<Action, String> {
    let program = command.first().ok_or("there is no command after --")?;
    let file = Path::new(program).file_name().unwrap_or(program).to_string_lossy();
    let name = name.unwrap_or_else(|| file.into_owned());
    let id = id(&mut fields)?.unwrap_or_else(|| std::process::id().into());
    let id = ("id".to_owned(), Value::Unsigned(id));
    let words = command.iter().map(|word| word.to_string_lossy());
    let line = Value::Text(Vec::from_iter(words).join(" "));
    fields.splice(0..0, [id.clone(), ("command".into(), line)]);
    let begin = made(&identifier(&name, "_begin"), &fields)?;
    let status = ("status".to_owned(), Value::Signed(0));
    let end = made(&identifier(&name, "_end"), &[id, status])?;
    Ok(Action::Command { begin, end, command })
}

/// Takes a region's id out of the fields.
fn id(fields: &mut Vec<(String, Value)>) -> Result<Option<u64>, String> {
    let Some(at) = fields.iter().position(|(key, _)| key == "id") else { return Ok(None) };
    match fields.remove(at).1 {
        Value::Unsigned(id) | Value::Hex(id) => Ok(Some(id)),
        _ => Err("the id of a region is a number".into()),
    }
}

fn made(name: &str, fields: &[(String, Value)]) -> Result<Event, String> {
    for (at, (key, _)) in fields.iter().enumerate() {
        if !is_name(key) {
            return Err(format!(
                "{key} is no name of a field: letters, digits and _, at most {MAX_NAME}"
            ));
        }
        if fields[..at].iter().any(|(other, _)| other == key) {
            return Err(format!("there are two fields {key}"));
        }
    }
    let named = Vec::from_iter(fields.iter().map(|(key, value)| (key.as_str(), value.clone())));
    let made = Event::new(name, &named);
    made.map_err(|why| format!("{why}, of {MAX_FIELDS} at most"))
}

/// Returns a valid name of an event: characters that such a name cannot have become `_`.
fn identifier(name: &str, suffix: &str) -> String {
    let first = name.chars().next().filter(char::is_ascii_digit).map(|_| '_');
    let of = |c: char| if c.is_ascii_alphanumeric() { c } else { '_' };
    let characters = first.into_iter().chain(name.chars().map(of));
    let mut identifier: String = characters.take(MAX_NAME - suffix.len()).collect();
    if identifier.is_empty() {
        identifier.push('_');
    }
    identifier + suffix
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<Wanted, String> {
        parse(line.split_whitespace().map(OsString::from))
    }

    fn marks(line: &str) -> Arguments {
        match parsed(line) {
            Ok(Wanted::Marks(arguments)) => arguments,
            other => panic!("{line}: {other:?}"),
        }
    }

    fn made(name: &str, fields: &[(&str, Value)]) -> Event {
        Event::new(name, fields).unwrap()
    }

    #[test]
    fn a_name_and_fields_are_an_event() {
        let any = (ANY_CLIENT, Value::Bool(true));
        let fields = [("stage", Value::Unsigned(3)), ("of", Value::Text("a=b".into())), any];

        let arguments = marks("--sync boot-done stage=3 of=a=b --require");

        assert_eq!(arguments.action, Action::Event(made("boot_done", &fields)));
        assert!(arguments.is_point && arguments.is_required);
    }

    #[test]
    fn a_region_has_an_id_and_any_client() {
        let any = (ANY_CLIENT, Value::Bool(true));
        let begin = made("net_begin", &[("id", Value::Unsigned(0)), any.clone()]);
        assert_eq!(marks("--begin net").action, Action::Event(begin));
        let fields = [("id", Value::Unsigned(7)), ("if", Value::Text("eth0".into())), any];
        assert_eq!(marks("--end net if=eth0 id=7").action, Action::Event(made("net_end", &fields)));
    }

    #[test]
    fn a_command_is_a_region_with_its_status() {
        let Action::Command { begin, end, command } =
            marks("id=5 -- /sbin/fsck.ext4 -p a=b").action
        else {
            panic!("no region");
        };
        let id = ("id", Value::Unsigned(5));
        let line = ("command", Value::Text("/sbin/fsck.ext4 -p a=b".into()));
        assert_eq!(begin, made("fsck_ext4_begin", &[id.clone(), line]));
        assert_eq!(end, made("fsck_ext4_end", &[id, ("status", Value::Signed(0))]));
        assert_eq!(command, ["/sbin/fsck.ext4", "-p", "a=b"]);
    }

    #[test]
    fn what_makes_no_event_is_refused() {
        let many = Vec::from_iter((0..16).map(|n| format!("f{n}=0"))).join(" ");
        for line in [
            "",
            "n=1",
            "--begin",
            "--bogin x",
            "a b",
            "a 1=2",
            "a n=1 n=2",
            "--begin a id=eth0",
            "--",
            "--begin a -- true",
            "a any_client=1",
            "--begin a --end b",
            &format!("a {many}"),
        ] {
            assert!(parsed(line).is_err(), "{line}");
        }
    }

    #[test]
    fn names_become_identifiers() {
        assert_eq!(identifier("boot-done", ""), "boot_done");
        assert_eq!(identifier("3rd", "_begin"), "_3rd_begin");
        assert_eq!(identifier("", ""), "_");
        assert_eq!(identifier(&"x".repeat(100), "_begin").len(), MAX_NAME);
    }
}
