//! A collector of OpenTelemetry: the program rotel, which writes all spans that it receives to its log.

use hypertrace_export::otlp::http::{Endpoint, Limits};
use hypertrace_test_support::{capability, wait_until};
use std::fs::{self, File};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use tempfile::TempDir;

/// Name of the collector's program.
const ROTEL: &str = "rotel-agent";

/// A running collector.
pub struct Collector {
    process: Child,
    folder: TempDir,
    pub endpoint: Endpoint,
}

impl Collector {
    /// Starts the collector, if the collector's program is installed.
    pub fn start() -> Option<Collector> {
        let program = capability::program(ROTEL)?;
        let folder = tempfile::tempdir().unwrap();
        let listeners = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
        let [http, grpc] = listeners.map(|listener| listener.local_addr().unwrap().to_string());
        let log = File::create(folder.path().join("log")).unwrap();
        let mut command = Command::new(program);
        command.args(["start", "--exporter", "blackhole", "--debug-log", "traces"]);
        command.args(["--debug-log-verbosity", "detailed", "--otlp-http-endpoint", &http]);
        command.args(["--otlp-grpc-endpoint", &grpc]).current_dir(folder.path());
        command.stdin(Stdio::null()).stderr(log.try_clone().unwrap()).stdout(log);
        let process = command.spawn().unwrap();
        let endpoint = format!("http://{http}").parse().unwrap();
        let mut collector = Collector { process, folder, endpoint };
        wait_until("the collector listens", || {
            assert_eq!(collector.process.try_wait().unwrap(), None, "{}", collector.log());
            TcpStream::connect(&http).is_ok()
        });
        capability::used(ROTEL);
        Some(collector)
    }

    /// Returns what the collector has logged so far.
    pub fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("log")).unwrap()
    }

    /// Sends a request. Returns the collector's status as an error if the collector refuses the request.
    pub fn post(&self, text: &str) -> Result<(), String> {
        let accepted = self.endpoint.post(text, &Limits::default()).map_err(|why| why.to_string());
        accepted.map(|accepted| assert_eq!(accepted.rejected, 0))
    }
}

impl Drop for Collector {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
