//! A parser of a strict subset of HTML, because all browsers read this subset alike: elements that are closed
//! in order, quoted attributes, and no plain `<` or `&` in text.

use std::collections::BTreeMap;

/// An element.
#[derive(Debug, Default)]
pub struct Element {
    pub name: String,
    pub attributes: BTreeMap<String, String>,
    pub children: Vec<Child>,
}

#[derive(Debug)]
pub enum Child {
    Text(String),
    Element(Element),
}

impl Element {
    /// Returns all text in the element, also in the elements within.
    pub fn text(&self) -> String {
        let texts = self.children.iter().map(|child| match child {
            Child::Text(text) => text.clone(),
            Child::Element(element) => element.text(),
        });
        texts.collect()
    }

    /// Returns the element and all elements within, in order.
    pub fn everything(&self) -> Vec<&Element> {
        let within = self.children.iter().flat_map(|child| match child {
            Child::Element(element) => element.everything(),
            Child::Text(_) => Vec::new(),
        });
        [self].into_iter().chain(within).collect()
    }

    /// Returns all elements of a name.
    pub fn all(&self, name: &str) -> Vec<&Element> {
        let mut all = self.everything();
        all.retain(|element| element.name == name);
        all
    }

    /// Returns the value of an attribute, or an empty text if the element lacks it.
    pub fn get(&self, attribute: &str) -> &str {
        self.attributes.get(attribute).map_or("", |value| value)
    }
}

/// Parses the rest of a page after its beginning.
#[track_caller]
pub fn parse(page: &str, beginning: &str) -> Element {
    let mut rest = page.strip_prefix(beginning).unwrap();
    let mut open = vec![Element::default()];
    while !rest.is_empty() {
        let end = rest.find('<').unwrap_or(rest.len());
        let text = decoded(&rest[..end]);
        rest = &rest[end..];
        let last = open.last_mut().unwrap();
        last.children.push(Child::Text(text));
        if let Some(after) = rest.strip_prefix("</") {
            let (name, after) = after.split_once('>').unwrap();
            close(&mut open, name);
            rest = after;
        } else if let Some(after) = rest.strip_prefix('<') {
            let (element, is_closed, after) = begin(after);
            rest = after;
            let name = element.name.clone();
            open.push(element);
            if ["script", "style"].contains(&&*name) {
                let end = rest.find(&format!("</{name}")).unwrap();
                open.last_mut().unwrap().children.push(Child::Text(rest[..end].into()));
                rest = &rest[end..];
            } else if is_closed || name == "meta" {
                close(&mut open, &name);
            }
        }
    }
    assert_eq!(open.len(), 1, "{:?} is not closed", open.last().map(|element| &element.name));
    open.remove(0)
}

fn close(open: &mut Vec<Element>, name: &str) {
    let element = open.pop().unwrap();
    assert_eq!(element.name, name);
    open.last_mut().unwrap_or_else(|| panic!("{name}")).children.push(Child::Element(element));
}

/// Takes a start tag after its `<`. Returns the element, whether it ends at once, and the rest.
fn begin(tag: &str) -> (Element, bool, &str) {
    let end = tag.find(|c: char| !c.is_ascii_alphanumeric()).unwrap();
    let mut element = Element { name: tag[..end].into(), ..Element::default() };
    assert!(element.name.starts_with(|c: char| c.is_ascii_lowercase()), "<{}", &tag[..20]);
    let mut rest = &tag[end..];
    loop {
        if let Some(after) = rest.strip_prefix('>') {
            return (element, false, after);
        }
        if let Some(after) = rest.strip_prefix("/>") {
            return (element, true, after);
        }
        let after = rest.strip_prefix(' ').unwrap_or_else(|| panic!("<{}", &tag[..60]));
        let (name, after) = after.split_once("=\"").unwrap();
        let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '-';
        assert!(name.chars().all(is_plain), "{name}");
        let (value, after) = after.split_once('"').unwrap();
        assert!(!value.contains(['<', '>']), "{value}");
        assert!(element.attributes.insert(name.into(), decoded(value)).is_none(), "{name} twice");
        rest = after;
    }
}

/// Replaces references to characters by number.
fn decoded(text: &str) -> String {
    let mut parts = text.split('&');
    let mut out = parts.next().unwrap_or_default().to_owned();
    assert!(!text.contains('>'), "{text}");
    for part in parts {
        let (number, after) = part.split_once(';').unwrap();
        let number: u32 = number.strip_prefix('#').unwrap().parse().unwrap();
        out.push(char::from_u32(number).unwrap());
        out.push_str(after);
    }
    out
}
