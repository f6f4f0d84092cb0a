// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Sends requests to a collector over HTTP/1.1 without TLS. Each request has a connection of its own and ends
//! in bounded time.

use crate::escape::Escaped;
use serde_json::Value;
use std::fmt;
use std::io::{self, ErrorKind, Read};
use std::net::{Ipv6Addr, ToSocketAddrs};
use std::str::FromStr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::sleep;
use std::time::{Duration, Instant};
use ureq::Agent;
use ureq::config::Config;
use ureq::http::Uri;
use ureq::unversioned::resolver::{DefaultResolver, ResolvedSocketAddrs, Resolver};
use ureq::unversioned::transport::{
    Buffers, ConnectionDetails, Connector, NextTimeout, TcpConnector, Transport,
};

/// Maximum number of bytes of an answer that are read.
const MAX_ANSWER: usize = 64 << 10;
/// Maximum number of bytes of an answer that an error shows.
const MAX_SHOWN: usize = 200;
/// Minimum pause before a request is sent a second time. The pause doubles with each further repetition.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
/// Path to which OTLP sends spans, relative to a collector's address.
const PATH: &str = "/v1/traces";
/// Default port of a collector in OTLP.
const PORT: u16 = 4318;

/// A collector's address: `http://HOST:PORT/PATH`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    host: String,
    port: u16,
    path: String,
}

/// Error: a text is not the address of a collector.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EndpointError {
    /// The address needs TLS.
    #[error(
        "there is no TLS: send to a collector on this machine, such as http://127.0.0.1:4318, that sends on by https"
    )]
    Tls,
    /// The address does not have the expected form.
    #[error("expected http://HOST:PORT or http://HOST:PORT/PATH")]
    Form,
}

impl FromStr for Endpoint {
    type Err = EndpointError;

    fn from_str(text: &str) -> Result<Endpoint, EndpointError> {
        if text.to_ascii_lowercase().starts_with("https://") {
            return Err(EndpointError::Tls);
        }
        let rest = text.strip_prefix("http://").ok_or(EndpointError::Form)?;
        let at = rest.find('/').unwrap_or(rest.len());
        let (authority, path) = rest.split_at(at);
        // Only plain characters are accepted, because the address is written into the request's head.
        let is_plain = |byte: u8| byte.is_ascii_graphic() && !b"\"<>\\^`{|}#".contains(&byte);
        let bracket = authority.rfind(']').unwrap_or(0);
        let (host, port) = match authority[bracket..].rfind(':') {
            Some(colon) => authority.split_at(bracket + colon),
            None => (authority, ""),
        };
        let port = match port.strip_prefix(':') {
            Some(port) => port.parse().map_err(|_| EndpointError::Form)?,
            None => PORT,
        };
        let is_host = match host.strip_prefix('[') {
            None => !host.is_empty() && !host.contains(['@', '?', '[', ']', ':']),
            Some(rest) => rest.strip_suffix(']').is_some_and(is_version_6),
        };
        let path = if path.len() > 1 { path } else { PATH };
        let endpoint = Endpoint { host: host.to_owned(), port, path: path.to_owned() };
        let is_uri = is_host && text.bytes().all(is_plain) && endpoint.uri().parse::<Uri>().is_ok();
        if is_uri { Ok(endpoint) } else { Err(EndpointError::Form) }
    }
}

/// Returns whether a text is an address of IP version 6. The address may end with a `%` and the name of an
/// interface.
fn is_version_6(text: &str) -> bool {
    text.split('%').next().is_some_and(|address| address.parse::<Ipv6Addr>().is_ok())
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "http://{}:{}{}", self.host, self.port, self.path)
    }
}

/// Limits of the time that a request may take.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Maximum time of a connection attempt to one address. A host's name may have several addresses.
    pub connect: Duration,
    /// Maximum time of a whole request, including pauses and repetitions.
    pub total: Duration,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { connect: Duration::from_secs(5), total: Duration::from_secs(30) }
    }
}

/// Error: a collector did not accept a request.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HttpError {
    /// The collector cannot be reached.
    #[error("cannot connect to {0}")]
    Connect(Endpoint, #[source] io::Error),
    /// The connection failed.
    #[error("{0} gave no answer")]
    Connection(Endpoint, #[source] io::Error),
    /// The collector refused the request.
    #[error("{endpoint} answered {status}{reason}")]
    Status {
        /// Address of the collector.
        endpoint: Endpoint,
        /// Status code of HTTP.
        status: u16,
        /// Beginning of the collector's answer, escaped.
        reason: String,
    },
    /// The end of the collector's answer is missing. The missing end may have said that the collector
    /// rejected spans.
    #[error("{endpoint} answered {status}, but not all of it came: spans may have been rejected")]
    Cut {
        /// Address of the collector.
        endpoint: Endpoint,
        /// Status code of HTTP.
        status: u16,
    },
    /// The collector answered something other than HTTP.
    #[error("{0} does not answer by HTTP: {1}")]
    NotHttp(Endpoint, String),
}

/// The answer of a collector that has accepted a request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Accepted {
    /// Count of the request's spans that the collector has rejected.
    pub rejected: u64,
    /// The collector's reason for the rejection, escaped.
    pub why: Option<String>,
}

impl Endpoint {
    /// Sends a request, and repeats the request while the collector answers that the collector is busy.
    ///
    /// # Errors
    /// If the collector does not accept the request in time.
    pub fn post(&self, body: &str, limits: &Limits) -> Result<Accepted, HttpError> {
        let until = Instant::now() + limits.total;
        let mut pause = FIRST_PAUSE;
        loop {
            let answer = self.send(body, until, limits.connect)?;
            let Answer { status, after, body: said, is_cut } = answer;
            if (200..300).contains(&status) {
                return match is_cut {
                    false => Ok(accepted(&said)),
                    true => Err(HttpError::Cut { endpoint: self.clone(), status }),
                };
            }
            // There is a pause even if the collector asks for no pause.
            let wait = after.unwrap_or_default().max(pause);
            let left = until.saturating_duration_since(Instant::now());
            if !matches!(status, 429 | 502..=504) || wait >= left {
                let reason = match shown(&said) {
                    said if said.is_empty() => String::new(),
                    said => format!(": {said}"),
                };
                return Err(HttpError::Status { endpoint: self.clone(), status, reason });
            }
            sleep(wait);
            pause = pause.saturating_mul(2);
        }
    }

    /// Sends a request once.
    fn send(&self, body: &str, until: Instant, connect: Duration) -> Result<Answer, HttpError> {
        let heard = Heard::default();
        let failed = |why: ureq::Error| {
            let why = match why {
                ureq::Error::Protocol(_) | ureq::Error::LargeResponseHeader(..) => None,
                ureq::Error::Timeout(_) => Some(ErrorKind::TimedOut.into()),
                why => Some(why.into_io()),
            };
            match (why, heard.lock().clone()) {
                (None, first) => {
                    HttpError::NotHttp(self.clone(), shown(&first.unwrap_or_default()))
                }
                (Some(why), None) => HttpError::Connect(self.clone(), why),
                (Some(why), Some(_)) => HttpError::Connection(self.clone(), why),
            }
        };
        let left = until.saturating_duration_since(Instant::now());
        let config = Config::builder()
            .proxy(None)
            .http_status_as_error(false)
            .max_redirects(0)
            .max_redirects_will_error(false)
            .timeout_global(Some(left))
            .timeout_connect(Some(connect))
            .user_agent(concat!("hypertrace/", env!("CARGO_PKG_VERSION")))
            .build();
        let connector = ().chain(TcpConnector::default()).chain(heard.clone());
        let request = Agent::with_parts(config, connector, self.clone()).post(self.uri());
        let request = request.header("Content-Type", "application/json");
        let mut answer = request.header("Connection", "close").send(body).map_err(failed)?;
        let mut said = Vec::new();
        let mut reader = answer.body_mut().as_reader().take(MAX_ANSWER as u64);
        let is_cut = match reader.read_to_end(&mut said).map_err(ureq::Error::from) {
            Ok(read) => read == MAX_ANSWER,
            Err(why @ ureq::Error::Timeout(_)) => return Err(failed(why)),
            // The error is ignored, because the part of the answer that has come says more than the error.
            Err(_) => true,
        };
        let after = answer.headers().get("retry-after").and_then(|after| after.to_str().ok());
        let after = after.and_then(|after| after.parse().ok()).map(Duration::from_secs);
        Ok(Answer { status: answer.status().as_u16(), after, body: said, is_cut })
    }

    /// Returns the address in the form that ureq parses, without an interface such as `%eth0` in
    /// `[fe80::1%eth0]`.
    fn uri(&self) -> String {
        let Endpoint { host, port, path } = self;
        match host.split_once('%') {
            Some((host, _)) => format!("http://{host}]:{port}{path}"),
            None => format!("http://{host}:{port}{path}"),
        }
    }
}

impl Resolver for Endpoint {
    fn resolve(
        &self,
        uri: &Uri,
        config: &Config,
        timeout: NextTimeout,
    ) -> Result<ResolvedSocketAddrs, ureq::Error> {
        if !self.host.contains('%') {
            return DefaultResolver::default().resolve(uri, config, timeout);
        }
        // This call asks no name server, because the host is a numeric address with an interface.
        let host = self.host.trim_start_matches('[').trim_end_matches(']');
        let mut addresses = self.empty();
        (host, self.port).to_socket_addrs()?.take(1).for_each(|address| addresses.push(address));
        Ok(addresses)
    }
}

/// The first bytes that came over a connection, or `None` before there is a connection. If the bytes are not
/// HTTP, an error shows them.
#[derive(Clone, Debug, Default)]
struct Heard(Arc<Mutex<Option<Vec<u8>>>>);

impl Heard {
    fn lock(&self) -> MutexGuard<'_, Option<Vec<u8>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T: Transport> Connector<T> for Heard {
    type Out = Connection<T>;

    fn connect(
        &self,
        _: &ConnectionDetails<'_>,
        made: Option<T>,
    ) -> Result<Option<Connection<T>>, ureq::Error> {
        *self.lock() = Some(Vec::new());
        Ok(made.map(|made| Connection { made, heard: self.clone() }))
    }
}

#[derive(Debug)]
struct Connection<T> {
    made: T,
    heard: Heard,
}

impl<T: Transport> Transport for Connection<T> {
    fn buffers(&mut self) -> &mut dyn Buffers {
        self.made.buffers()
    }

    fn transmit_output(&mut self, amount: usize, timeout: NextTimeout) -> Result<(), ureq::Error> {
        match self.made.transmit_output(amount, timeout) {
            // The error is ignored, because the collector may have answered without reading the rest of the
            // request.
            Err(ureq::Error::Io(why))
                if matches!(why.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset) =>
            {
                Ok(())
            }
            sent => sent,
        }
    }

    fn await_input(&mut self, timeout: NextTimeout) -> Result<bool, ureq::Error> {
        let has_more = self.made.await_input(timeout)?;
        if let Some(first) = self.heard.lock().as_mut().filter(|first| first.is_empty()) {
            first.extend_from_slice(self.made.buffers().input());
        }
        Ok(has_more)
    }

    fn is_open(&mut self) -> bool {
        false
    }
}

/// A collector's answer to a request.
struct Answer {
    status: u16,
    /// Pause that the collector asks for before the request is sent again.
    after: Option<Duration>,
    /// Beginning of the answer's body.
    body: Vec<u8>,
    /// Whether `body` is incomplete, because the connection failed before the end of the body or the rest was
    /// not read.
    is_cut: bool,
}

/// Returns the number of rejected spans and the reason from the body of an answer.
fn accepted(body: &[u8]) -> Accepted {
    let body: Value = serde_json::from_slice(body).unwrap_or_default();
    let partial = &body["partialSuccess"];
    let rejected = &partial["rejectedSpans"];
    let rejected = rejected.as_u64().or_else(|| rejected.as_str()?.parse().ok());
    let why = partial["errorMessage"].as_str().filter(|why| !why.is_empty());
    Accepted { rejected: rejected.unwrap_or(0), why: why.map(|why| shown(why.as_bytes())) }
}

/// Returns the beginning of the bytes from a collector, escaped.
fn shown(bytes: &[u8]) -> String {
    let cut = &bytes[..bytes.len().min(MAX_SHOWN)];
    let dots = if bytes.len() > MAX_SHOWN { " ..." } else { "" };
    match cut.trim_ascii() {
        [] => String::new(),
        cut => format!("{}{dots}", Escaped(cut)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_a_host_a_port_and_a_path() {
        let shown = |text: &str| text.parse::<Endpoint>().map(|endpoint| endpoint.to_string());
        for (text, expected) in [
            ("http://127.0.0.1:4318", "http://127.0.0.1:4318/v1/traces"),
            ("http://collector", "http://collector:4318/v1/traces"),
            ("http://[::1]:80/", "http://[::1]:80/v1/traces"),
            ("http://[::1]", "http://[::1]:4318/v1/traces"),
            ("http://[fe80::1%eth0]:1", "http://[fe80::1%eth0]:1/v1/traces"),
            ("http://a:1/otlp/v1/traces?x=y", "http://a:1/otlp/v1/traces?x=y"),
        ] {
            assert_eq!(shown(text).unwrap(), expected);
        }
        for text in [
            "",
            "a:1",
            "http://",
            "http://:1",
            "http://a:x",
            "http://a:70000",
            "http://u@a:1",
            "http://a:1/ b",
            "http://a:1/\r\nX: y",
            "ftp://a",
            "http://a?b:1",
            "http://[::1",
            "http://::1]:1",
            "http://::1",
            "http://[]:1",
            "http://[a]:1",
        ] {
            assert_eq!(shown(text), Err(EndpointError::Form), "{text}");
        }
        assert_eq!(shown("HTTPS://a:1"), Err(EndpointError::Tls));
    }

    #[test]
    fn rejected_spans_are_read_as_a_number_or_a_text() {
        let of = |text: &str| accepted(text.as_bytes());
        let why = Some(r"too \x1bold".to_owned());
        let partial = r#"{"partialSuccess":{"rejectedSpans":"3","errorMessage":"too \u001bold"}}"#;
        assert_eq!(of(partial), Accepted { rejected: 3, why });
        assert_eq!(of(r#"{"partialSuccess":{"rejectedSpans":2}}"#).rejected, 2);
        for none in ["", "{}", "null", "[1]", "\u{0}", r#"{"partialSuccess":null}"#] {
            assert_eq!(of(none), Accepted::default(), "{none}");
        }
    }
}
