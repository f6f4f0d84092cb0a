//! Tests requests to a server that breaks the protocol on purpose: each request has to end in bounded time
//! with an error that says why.

use hypertrace_export::otlp::http::{Accepted, Endpoint, Limits};
use std::error::Error;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, channel};
use std::thread::{sleep, spawn};
use std::time::{Duration, Instant};

const LIMITS: Limits =
    Limits { connect: Duration::from_secs(5), total: Duration::from_millis(1500) };

/// Starts a server that reads each request to its end and calls a function with the request. Returns the
/// server's address, and the requests.
fn server(
    mut answer: impl FnMut(usize, &mut TcpStream) + Send + 'static,
) -> (Endpoint, Receiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap()).parse().unwrap();
    let (sender, requests) = channel();
    spawn(move || {
        for (n, stream) in listener.incoming().enumerate() {
            let mut stream = stream.unwrap();
            let mut request = Vec::new();
            while !request.ends_with(b"{body}") {
                let mut buffer = [0; 1024];
                match stream.read(&mut buffer).unwrap() {
                    0 => break,
                    read => request.extend_from_slice(&buffer[..read]),
                }
            }
            let _ = sender.send(String::from_utf8(request).unwrap());
            answer(n, &mut stream);
        }
    });
    (endpoint, requests)
}

/// Starts a server that gives these answers in order, and then repeats the last answer.
fn answering(answers: &'static [&'static str]) -> (Endpoint, Receiver<String>) {
    server(move |n, stream| {
        let text = answers[n.min(answers.len() - 1)];
        let _ = stream.write_all(text.as_bytes());
    })
}

/// Sends a request. Returns the result; an error's text includes the error's causes.
fn post(endpoint: &Endpoint) -> Result<Accepted, String> {
    let begin = Instant::now();
    let done = endpoint.post("{body}", &LIMITS).map_err(|why| {
        let cause = why.source().map_or(String::new(), |cause| format!(": {cause}"));
        format!("{why}{cause}").replace(&endpoint.to_string(), "E")
    });
    // The test allows far more time than the limit, because the machine may be busy.
    assert!(begin.elapsed() < Duration::from_secs(20), "{done:?}");
    done
}

#[test]
fn a_request_is_one_of_http_with_json() {
    let (endpoint, requests) = answering(&["HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"]);

    assert_eq!(post(&endpoint), Ok(Accepted::default()));

    let request = requests.recv().unwrap();
    // The case of HTTP's field names does not matter.
    let (head, body) = request.split_once("\r\n\r\n").unwrap();
    let head = head.to_ascii_lowercase();
    let mut lines = head.lines();
    assert_eq!((lines.next(), body), (Some("post /v1/traces http/1.1"), "{body}"));
    let host = endpoint.to_string().replace("http://", "host: ").replace("/v1/traces", "");
    let fields: Vec<&str> = lines.collect();
    for field in [&host, "content-type: application/json", "content-length: 6", "connection: close"]
    {
        assert_eq!(fields.iter().filter(|of| *of == &field).count(), 1, "{field} {request}");
    }
}

#[test]
fn an_answer_that_refuses_is_shown_with_its_status_and_escaped() {
    for (answer, expected) in [
        ("HTTP/1.1 400 Bad Request\r\n\r\nno \x1b[2Jhex", "E answered 400: no \\x1b[2Jhex"),
        ("HTTP/1.1 500 No\r\nContent-Length: 0\r\n\r\n", "E answered 500"),
        ("HTTP/1.1 301 Moved\r\nLocation: /x\r\n\r\n", "E answered 301"),
        (
            "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{\"partialSuccess\":{\"reje",
            "E answered 200, but not all of it came: spans may have been rejected",
        ),
        (
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{}",
            "E answered 200, but not all of it came: spans may have been rejected",
        ),
        (
            "HTTP/1.1 400 no\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n1;x\r\nd\r\n0\r\n\r\n",
            "E answered 400: abcd",
        ),
        ("SSH-2.0-OpenSSH\r\n\r\n", "E does not answer by HTTP: SSH-2.0-OpenSSH"),
        ("HTTP/1.1 2x0 a\r\n\r\n", "E does not answer by HTTP: HTTP/1.1 2x0 a"),
    ] {
        let (endpoint, requests) = server(move |_, stream| {
            let _ = stream.write_all(answer.as_bytes());
        });
        assert_eq!(post(&endpoint), Err(expected.into()));
        assert_eq!(requests.try_iter().count(), 1, "it is not sent again");
    }
}

#[test]
fn an_answer_that_comes_before_the_last_one_is_not_it() {
    let (endpoint, _requests) = answering(&[
        "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early\r\nA: b\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}",
    ]);
    assert_eq!(post(&endpoint), Ok(Accepted::default()));
}

#[test]
fn an_answer_without_a_body_needs_no_end_of_the_connection() {
    let (endpoint, _requests) = server(|_, stream| {
        let _ = stream.write_all(b"HTTP/1.1 204 No Content\r\n\r\n");
        sleep(Duration::from_secs(60));
    });
    assert_eq!(post(&endpoint), Ok(Accepted::default()));
}

#[test]
fn a_busy_collector_gets_the_request_again_when_it_says() {
    let busy = "HTTP/1.1 429 Slow down\r\nRetry-After: 1\r\nContent-Length: 0\r\n\r\n";
    let good = "HTTP/1.1 200 OK\r\n\r\n{\"partialSuccess\":{\"rejectedSpans\":\"2\",\"errorMessage\":\"old\"}}";
    let answers: &'static [&'static str] = Box::leak(Box::new([busy, good]));
    let (endpoint, requests) = answering(answers);
    let begin = Instant::now();

    let limits = Limits { total: Duration::from_secs(30), ..LIMITS };
    let accepted = endpoint.post("{body}", &limits).unwrap();

    assert_eq!(accepted, Accepted { rejected: 2, why: Some("old".into()) });
    assert!(begin.elapsed() >= Duration::from_secs(1));
    assert_eq!(requests.try_iter().count(), 2);
}

#[test]
fn a_collector_that_stays_busy_is_given_up() {
    let later = "HTTP/1.1 429 Slow down\r\nRetry-After: 3600\r\nContent-Length: 0\r\n\r\n";
    let (endpoint, requests) = answering(Box::leak(Box::new([later])));
    assert_eq!(post(&endpoint), Err("E answered 429".into()));
    assert_eq!(requests.try_iter().count(), 1, "it would be too late");

    let busy = "HTTP/1.1 503 Busy\r\nContent-Length: 4\r\n\r\nbusy";
    let (endpoint, requests) = answering(Box::leak(Box::new([busy])));
    assert_eq!(post(&endpoint), Err("E answered 503: busy".into()));
    assert!(requests.try_iter().count() > 1);

    let at_once = "HTTP/1.1 429 Slow down\r\nRetry-After: 0\r\nContent-Length: 0\r\n\r\n";
    let (endpoint, requests) = answering(Box::leak(Box::new([at_once])));
    assert_eq!(post(&endpoint), Err("E answered 429".into()));
    assert!((2..5).contains(&requests.try_iter().count()), "with pauses");
}

#[test]
fn a_server_that_says_nothing_or_too_little_or_too_much_ends() {
    let timed_out = Err("E gave no answer: timed out".into());
    let (silent, _requests) = server(|_, _| sleep(Duration::from_secs(60)));
    assert_eq!(post(&silent), timed_out);

    // The server sends a byte at a time, and each byte comes in time.
    let (slow, _requests) = server(|_, stream| {
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\n");
        while stream.write_all(b"H").is_ok() {
            sleep(Duration::from_millis(100));
        }
    });
    assert_eq!(post(&slow), timed_out);

    let (gone, _requests) = server(|_, stream| stream.shutdown(Shutdown::Both).unwrap());
    let gone = post(&gone).unwrap_err();
    assert!(gone.starts_with("E gave no answer: "), "{gone}");

    let (huge, _requests) = server(|_, stream| {
        let _ = stream.write_all(b"HTTP/1.1 400 No\r\n\r\n");
        while stream.write_all(&[b'x'; 4096]).is_ok() {}
    });
    let huge = post(&huge).unwrap_err();
    assert_eq!(huge, format!("E answered 400: {} ...", "x".repeat(200)));
}

#[test]
fn a_server_that_does_not_read_ends_in_time() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint: Endpoint = format!("http://{}", listener.local_addr().unwrap()).parse().unwrap();
    let body = "x".repeat(64 << 20);

    let why = endpoint.post(&body, &LIMITS).unwrap_err();

    assert_eq!(why.source().unwrap().to_string(), "timed out");
}

#[test]
fn an_answer_that_comes_before_the_request_is_read_is_shown() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint: Endpoint = format!("http://{}", listener.local_addr().unwrap()).parse().unwrap();
    let server = spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.write_all(b"HTTP/1.1 413 Large\r\nContent-Length: 5\r\n\r\nlarge").unwrap();
        // The server closes the connection without reading all bytes of the request. So the client gets a
        // reset, but can still read the answer. After `shutdown`, a client that has filled the buffers would
        // wait.
        drop(stream);
    });

    let why = endpoint.post(&"x".repeat(64 << 20), &LIMITS).unwrap_err();

    assert_eq!(why.to_string(), format!("{endpoint} answered 413: large"));
    server.join().unwrap();
}

#[test]
fn nobody_at_the_port_is_an_error() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap()).parse().unwrap();
    drop(listener);

    let why = post(&endpoint).unwrap_err();

    assert!(why.starts_with("cannot connect to E: "), "{why}");
}
