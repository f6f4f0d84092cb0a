// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! A request of bounded size: spans, with the resources to which they belong.

use super::value::string;
use std::collections::HashMap;
use std::rc::Rc;

/// Maximum number of spans of a request.
pub const MAX_SPANS: usize = 512;
/// Maximum size of a request in bytes, unless a single span is larger.
pub const MAX_BYTES: usize = 1 << 20;
/// Size in bytes that is reserved for the constant text around the spans of a request, and again for the
/// constant text around each resource.
const FRAME: usize = 256;

/// Spans that are not yet written.
#[derive(Debug, Default)]
pub struct Request {
    /// Attributes of each resource.
    resources: Vec<Rc<str>>,
    numbers: HashMap<Rc<str>, usize>,
    /// Attributes of resources that the caller has added before, with the indices of the resources. If the
    /// same `Rc` is given again, the resource is found by comparing pointers, which is faster than comparing
    /// texts.
    given: Vec<(Rc<str>, usize)>,
    /// Spans, each with the index of the span's resource.
    spans: Vec<(usize, String)>,
    bytes: usize,
}

impl Request {
    /// Returns whether the request has room for this span. `resource` has the attributes of the span's
    /// resource.
    pub fn has_room(&self, resource: &Rc<str>, span: &str) -> bool {
        let new = if self.number(resource).is_some() { 0 } else { resource.len() + FRAME };
        let fits = self.bytes + new + span.len() + FRAME <= MAX_BYTES;
        self.spans.is_empty() || self.spans.len() < MAX_SPANS && fits
    }

    /// Adds a span. `resource` has the attributes of the span's resource.
    pub fn add(&mut self, resource: &Rc<str>, span: String) {
        let number = self.number(resource).unwrap_or_else(|| {
            self.bytes += resource.len() + FRAME;
            self.resources.push(resource.clone());
            self.numbers.insert(resource.clone(), self.resources.len() - 1);
            self.resources.len() - 1
        });
        if self.given(resource).is_none() {
            self.given.push((resource.clone(), number));
        }
        self.bytes += span.len() + 1;
        self.spans.push((number, span));
    }

    fn number(&self, resource: &Rc<str>) -> Option<usize> {
        self.given(resource).or_else(|| self.numbers.get(resource).copied())
    }

    fn given(&self, resource: &Rc<str>) -> Option<usize> {
        let same = self.given.iter().rev().find(|(given, _)| Rc::ptr_eq(given, resource));
        same.map(|(_, number)| *number)
    }

    /// Returns the text of the request and how many spans the request has, and begins another request.
    /// Returns `None` if there are no spans.
    pub fn take(&mut self) -> Option<(String, u64)> {
        let Request { resources, mut spans, bytes, .. } = std::mem::take(self);
        if spans.is_empty() {
            return None;
        }
        spans.sort_by_key(|(resource, _)| *resource);
        let mut out = String::with_capacity(bytes + FRAME);
        out.push_str("{\"resourceSpans\":[");
        let mut last = None;
        for (resource, span) in &spans {
            if last == Some(*resource) {
                out.push(',');
            } else {
                out.push_str(if last.is_some() { "]}]}," } else { "" });
                out.push_str("{\"resource\":{\"attributes\":[");
                out.push_str(&resources[*resource]);
                out.push_str("]},\"scopeSpans\":[{\"scope\":{\"name\":\"hypertrace\",\"version\":");
                string(&mut out, env!("CARGO_PKG_VERSION").as_bytes());
                out.push_str("},\"spans\":[");
                last = Some(*resource);
            }
            out.push_str(span);
        }
        out.push_str("]}]}]}");
        Some((out, spans.len() as u64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    #[test]
    fn spans_stand_with_their_resource_and_in_their_order() {
        let resource = |name: &str| -> Rc<str> {
            format!("{{\"key\":\"service.name\",\"value\":{{\"stringValue\":\"{name}\"}}}}").into()
        };
        let mut request = Request::default();
        assert_eq!(request.take(), None);
        for (name, span) in [("a", "1"), ("b", "2"), ("a", "3")] {
            assert!(request.has_room(&resource(name), span));
            request.add(&resource(name), span.into());
        }

        let (text, spans) = request.take().unwrap();

        let json: Value = serde_json::from_str(&text).unwrap();
        let all = json["resourceSpans"].as_array().unwrap();
        let of = |at: usize| all[at]["scopeSpans"][0]["spans"].to_string();
        assert_eq!((spans, all.len(), of(0), of(1)), (3, 2, "[1,3]".into(), "[2]".into()));
        assert_eq!(all[1]["resource"]["attributes"][0]["value"]["stringValue"], "b");
        assert_eq!(request.take(), None);
    }

    #[test]
    fn a_request_is_full_by_spans_or_by_bytes() {
        let mut request = Request::default();
        let (span, resource) = ("1".repeat(MAX_BYTES), "".into());
        assert!(request.has_room(&resource, &span), "one always fits");
        request.add(&resource, span);
        assert!(!request.has_room(&resource, "1"));
        request.take();
        for _ in 0..MAX_SPANS {
            assert!(request.has_room(&resource, "1"));
            request.add(&resource, "1".into());
        }
        assert!(!request.has_room(&resource, "1"));
    }
}
