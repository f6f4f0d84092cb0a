// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Requests to a collector: HTTP/1.1 without TLS, a connection for each, all in bounded time.

use crate::escape::Escaped;
use serde_json::Value;
use std::fmt;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv6Addr, SocketAddr, TcpStream, ToSocketAddrs};
use std::str::FromStr;
use std::sync::mpsc::channel;
use std::thread::{sleep, spawn};
use std::time::{Duration, Instant};

/// Most bytes of an answer that are read.
const MOST_ANSWER: usize = 64 << 10;
/// Most bytes of an answer that an error shows.
const MOST_SHOWN: usize = 200;
/// Least pause before a request is sent again; it doubles.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
/// Path of spans below a collector's address, by OTLP.
const PATH: &str = "/v1/traces";
/// A collector's port, by OTLP.
const PORT: u16 = 4318;

/// A collector's address: `http://HOST:PORT/PATH`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    host: String,
    port: u16,
    path: String,
}

/// Error: a text is no address of a collector.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EndpointError {
    /// It needs TLS.
    #[error(
        "there is no TLS: send to a collector on this machine, such as http://127.0.0.1:4318, that sends on by https"
    )]
    Tls,
    /// It has another form.
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
        // Each character stands in the request's head.
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
        if !is_host || !text.bytes().all(is_plain) {
            return Err(EndpointError::Form);
        }
        let path = if path.len() > 1 { path } else { PATH };
        Ok(Endpoint { host: host.to_owned(), port, path: path.to_owned() })
    }
}

/// Returns whether a text is an address of IP version 6, which may name the interface after a `%`.
fn is_version_6(text: &str) -> bool {
    text.split('%').next().is_some_and(|address| address.parse::<Ipv6Addr>().is_ok())
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "http://{}:{}{}", self.host, self.port, self.path)
    }
}

/// Times that a request may take.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// To connect to an address.
    pub connect: Duration,
    /// All of a request: with pauses, and sent again.
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
    /// It cannot be reached.
    #[error("cannot connect to {0}")]
    Connect(Endpoint, #[source] io::Error),
    /// The connection failed.
    #[error("{0} gave no answer")]
    Connection(Endpoint, #[source] io::Error),
    /// It said no.
    #[error("{endpoint} answered {status}{reason}")]
    Status {
        /// Who.
        endpoint: Endpoint,
        /// Status of HTTP.
        status: u16,
        /// The beginning of its answer, escaped.
        reason: String,
    },
    /// The end of its answer is missing, which may say that it has rejected spans.
    #[error("{endpoint} answered {status}, but not all of it came: spans may have been rejected")]
    Cut {
        /// Who.
        endpoint: Endpoint,
        /// Status of HTTP.
        status: u16,
    },
    /// It answered something else than HTTP.
    #[error("{0} does not answer by HTTP: {1}")]
    NotHttp(Endpoint, String),
}

/// A collector's answer that it has accepted a request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Accepted {
    /// Spans of it that it has rejected.
    pub rejected: u64,
    /// Why, in its words: escaped.
    pub why: Option<String>,
}

impl Endpoint {
    /// Sends a request. It is sent again where the collector says that it is busy.
    ///
    /// # Errors
    /// If it is not accepted in time.
    pub fn post(&self, body: &str, limits: &Limits) -> Result<Accepted, HttpError> {
        let until = Instant::now() + limits.total;
        let mut pause = FIRST_PAUSE;
        loop {
            let answer = self.send(body, until, limits.connect)?;
            let Some(Answer { status, after, body: said }) = Answer::parse(&answer) else {
                return Err(HttpError::NotHttp(self.clone(), shown(&answer)));
            };
            if (200..300).contains(&status) {
                return match is_cut(&answer) {
                    false => Ok(accepted(&said)),
                    true => Err(HttpError::Cut { endpoint: self.clone(), status }),
                };
            }
            // A collector that asks for no pause gets one.
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

    /// Sends a request once. Returns the beginning of the answer.
    fn send(&self, body: &str, until: Instant, connect: Duration) -> Result<Vec<u8>, HttpError> {
        let mut stream =
            self.connect(until, connect).map_err(|why| HttpError::Connect(self.clone(), why))?;
        let Endpoint { host, port, path } = self;
        let head = format!(
            "POST {path} HTTP/1.1\r\nHost: {host}:{port}\r\nUser-Agent: hypertrace/{}\r\n\
             Content-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
            env!("CARGO_PKG_VERSION"),
            body.len()
        );
        let sent = [head.as_bytes(), body.as_bytes()]
            .into_iter()
            .try_for_each(|bytes| write_until(&mut stream, bytes, until));
        // It may have answered, and not read the rest.
        match (read_until(&mut stream, until), sent) {
            (Ok(answer), _) if !answer.is_empty() => Ok(answer),
            (_, Err(why)) | (Err(why), Ok(())) => Err(HttpError::Connection(self.clone(), why)),
            (Ok(_), Ok(())) => {
                Err(HttpError::Connection(self.clone(), ErrorKind::UnexpectedEof.into()))
            }
        }
    }

    fn connect(&self, until: Instant, most: Duration) -> io::Result<TcpStream> {
        let host = self.host.trim_start_matches('[').trim_end_matches(']').to_owned();
        let port = self.port;
        let addresses = in_time(until, move || {
            let addresses = (host, port).to_socket_addrs()?;
            Ok(addresses.collect::<Vec<SocketAddr>>())
        })?;
        let mut failed = io::Error::from(ErrorKind::NotFound);
        for address in addresses {
            match TcpStream::connect_timeout(&address, left(until)?.min(most)) {
                Ok(stream) => return Ok(stream),
                Err(why) => failed = why,
            }
        }
        Err(failed)
    }
}

/// Returns the time that is left.
fn left(until: Instant) -> io::Result<Duration> {
    let left = until.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(ErrorKind::TimedOut.into()) } else { Ok(left) }
}

/// Does work that has no limit of its own, such as to ask for a name's addresses. What comes too late is forgotten.
fn in_time<T: Send + 'static>(
    until: Instant,
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    let (sender, done) = channel();
    let left = left(until)?;
    spawn(move || sender.send(work()));
    done.recv_timeout(left).unwrap_or_else(|_| Err(ErrorKind::TimedOut.into()))
}

/// A timeout of a socket is `WouldBlock`.
fn timed(why: io::Error) -> io::Error {
    if why.kind() == ErrorKind::WouldBlock { ErrorKind::TimedOut.into() } else { why }
}

fn write_until(stream: &mut TcpStream, mut bytes: &[u8], until: Instant) -> io::Result<()> {
    while !bytes.is_empty() {
        stream.set_write_timeout(Some(left(until)?))?;
        match stream.write(bytes) {
            Ok(0) => return Err(ErrorKind::WriteZero.into()),
            Ok(written) => bytes = &bytes[written..],
            Err(why) if why.kind() == ErrorKind::Interrupted => {}
            Err(why) => return Err(timed(why)),
        }
    }
    Ok(())
}

/// Reads an answer to its end, or as much of it as is wanted.
fn read_until(stream: &mut TcpStream, until: Instant) -> io::Result<Vec<u8>> {
    let mut answer = Vec::new();
    let mut buffer = [0; 4096];
    while answer.len() < MOST_ANSWER && !is_whole(&answer) {
        stream.set_read_timeout(Some(left(until)?))?;
        match stream.read(&mut buffer) {
            Ok(0) => break,
            Ok(read) => answer.extend_from_slice(&buffer[..read]),
            Err(why) if why.kind() == ErrorKind::Interrupted => {}
            // What has come says more.
            Err(why) if why.kind() == ErrorKind::ConnectionReset && !answer.is_empty() => break,
            Err(why) => return Err(timed(why)),
        }
    }
    Ok(answer)
}

/// The head of an answer, and its body.
struct Answer {
    status: u16,
    /// When the request may be sent again.
    after: Option<Duration>,
    body: Vec<u8>,
}

/// Splits an answer into its head and its body. Answers of status 1xx before it, as `100 Continue`, say nothing.
fn split(mut answer: &[u8]) -> Option<(&str, &[u8])> {
    loop {
        let at = answer.windows(4).position(|bytes| bytes == b"\r\n\r\n")?;
        let (head, body) = (std::str::from_utf8(&answer[..at]).ok()?, &answer[at + 4..]);
        if head.get(8..10) != Some(" 1") {
            return Some((head, body));
        }
        answer = body;
    }
}

fn header<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    let mut lines = head.lines().skip(1).filter_map(|line| line.split_once(':'));
    lines.find(|(of, _)| of.trim().eq_ignore_ascii_case(name)).map(|(_, value)| value.trim())
}

fn is_chunked(head: &str) -> bool {
    header(head, "transfer-encoding").is_some_and(|how| how.eq_ignore_ascii_case("chunked"))
}

/// Returns whether nothing of an answer is missing.
fn is_whole(answer: &[u8]) -> bool {
    let Some((head, _)) = split(answer) else { return false };
    let has_no_body = head.get(9..12) == Some("204");
    let has_end = is_chunked(head) || header(head, "content-length").is_some();
    has_no_body || has_end && !is_cut(answer)
}

/// Returns whether an answer is shorter than its head says, or than one that is read to its end.
fn is_cut(answer: &[u8]) -> bool {
    let Some((head, body)) = split(answer) else { return true };
    match header(head, "content-length").map(str::parse) {
        _ if is_chunked(head) => !body.ends_with(b"0\r\n\r\n"),
        Some(Ok(length)) => body.len() < length,
        Some(Err(_)) => true,
        None => answer.len() >= MOST_ANSWER,
    }
}

impl Answer {
    /// Parses an answer, whose end may be missing.
    fn parse(answer: &[u8]) -> Option<Answer> {
        let (head, body) = split(answer)?;
        let status = head.strip_prefix("HTTP/1.")?.get(2..5)?.parse().ok()?;
        let after = header(head, "retry-after").and_then(|after| after.parse().ok());
        let body = if is_chunked(head) { unchunked(body) } else { body.to_owned() };
        Some(Answer { status, after: after.map(Duration::from_secs), body })
    }
}

/// Returns the contents of chunks, up to one that is none.
fn unchunked(mut body: &[u8]) -> Vec<u8> {
    let mut whole = Vec::new();
    while let Some(at) = body.windows(2).position(|bytes| bytes == b"\r\n") {
        let size = std::str::from_utf8(&body[..at]).unwrap_or_default();
        let size = size.split(';').next().unwrap_or_default().trim();
        let size = usize::from_str_radix(size, 16).unwrap_or(0);
        let rest = &body[at + 2..];
        whole.extend_from_slice(&rest[..size.min(rest.len())]);
        match rest.get(size.saturating_add(2)..) {
            Some(next) if size > 0 => body = next,
            _ => break,
        }
    }
    whole
}

/// Returns what a body says of spans that were rejected.
fn accepted(body: &[u8]) -> Accepted {
    let body: Value = serde_json::from_slice(body).unwrap_or_default();
    let partial = &body["partialSuccess"];
    let rejected = &partial["rejectedSpans"];
    let rejected = rejected.as_u64().or_else(|| rejected.as_str()?.parse().ok());
    let why = partial["errorMessage"].as_str().filter(|why| !why.is_empty());
    Accepted { rejected: rejected.unwrap_or(0), why: why.map(|why| shown(why.as_bytes())) }
}

/// Returns the beginning of what a collector says, escaped.
fn shown(bytes: &[u8]) -> String {
    let cut = &bytes[..bytes.len().min(MOST_SHOWN)];
    let dots = if bytes.len() > MOST_SHOWN { " ..." } else { "" };
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
    fn a_name_server_that_says_nothing_ends_in_time() {
        let (never, asked) = channel::<()>();
        let until = Instant::now() + Duration::from_millis(50);

        let done = in_time(until, move || asked.recv().map_err(io::Error::other));

        assert_eq!(done.unwrap_err().kind(), ErrorKind::TimedOut);
        drop(never);
    }

    #[test]
    fn answers_of_any_form_are_read() {
        let parse =
            |text: &str| Answer::parse(text.as_bytes()).map(|a| (a.status, a.after, a.body));
        let chunked = "HTTP/1.1 400 no\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n1;x\r\nd\r\n0\r\n\r\n";
        assert!(is_whole(chunked.as_bytes()));
        assert_eq!(parse(chunked), Some((400, None, b"abcd".to_vec())));
        let busy = "HTTP/1.0 503\r\nretry-after: 7\r\ncontent-length: 2\r\n\r\nab";
        assert!(is_whole(busy.as_bytes()) && !is_whole(&busy.as_bytes()[..busy.len() - 1]));
        let interim =
            format!("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early\r\nA: b\r\n\r\n{busy}");
        assert_eq!(parse(&interim), parse(busy));
        assert!(!is_whole(&interim.as_bytes()[..interim.len() - busy.len()]));
        assert_eq!(parse(busy), Some((503, Some(Duration::from_secs(7)), b"ab".to_vec())));
        for wrong in ["", "\r\n\r\n", "HTTP/1.1 200", "SSH-2.0-x\r\n\r\n", "HTTP/1.1 2x0 a\r\n\r\n"]
        {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
        for wrong in ["ffffffffffffffff\r\nab", "-1\r\nab", "x\r\n", "3\r\na"] {
            assert!(unchunked(wrong.as_bytes()).len() <= 2, "{wrong}");
        }
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
