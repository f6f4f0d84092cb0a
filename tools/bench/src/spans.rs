//! Rows of spans of the crate `tracing`: a child process that traces into a session.

use super::child::Child;
use super::row::{Context, Row, row};
use super::scratch::Scratch;
use super::timing::{BURST_RING, timed};
use anyhow::{Context as _, Result, bail, ensure};
use hypertrace_device::Geometry;
use hypertrace_trace::Output;
use hypertrace_tracing::HypertraceLayer;
use hypertrace_user::{Config, Session};
use std::fs::File;
use std::hint::black_box;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;
use tracing::info_span;
use tracing_subscriber::Layer;
use tracing_subscriber::fmt::format::FmtSpan;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::registry::Registry;

pub const ROWS: &[Row] = &[
    row("tracing_span", layer, "a span with `HypertraceLayer`: two events")
        .over(("region! in a span", region), "<= 1.2 x an empty layer and region!")
        .note(
            "Compared with a layer that does nothing on the same registry, and `region!` of \
             the guest library in the span.",
        ),
    row("tracing_span_fmt", layer, "`tracing_span`, against the text of `tracing_subscriber::fmt`")
        .over(("fmt layer", text), "<= 0.2 x the fmt layer to /dev/null")
        .note(
            "It writes the entry and the exit (`FmtSpan::ACTIVE`) to `/dev/null`, without \
             colours.",
        ),
];

/// Number of spans of a burst. The ring holds one and a half bursts.
const SPANS: u64 = 20_000;
const BURSTS: u64 = 10;
/// Number of words of the longer event of a span's two events. The event has two numbers, a field, and the
/// target.
const WORDS: u64 = 7;

/// Measures a span with [`HypertraceLayer`].
pub fn layer(_: &mut Context) -> Result<f64> {
    ask("layer", true)
}

/// Measures a span with an empty layer, and a region.
pub fn region(_: &mut Context) -> Result<f64> {
    ask("region", true)
}

/// Measures a span with the layer that writes text.
pub fn text(_: &mut Context) -> Result<f64> {
    ask("text", false)
}

/// Measures a part in a child. Returns the time of a span.
fn ask(part: &str, is_traced: bool) -> Result<f64> {
    let scratch = Scratch::new()?;
    let mut config = Config::new(scratch.path().join("session"));
    config.trace.output = Output::Nothing;
    config.geometry = Geometry { clients: 1, ring_bytes: BURST_RING, ..Geometry::default() };
    config.policy.drain.period = Duration::from_micros(200);
    let session = Session::create(config)?;
    let mut command = Command::new(std::env::current_exe()?);
    session.pass_to(command.arg("--serve"));
    let mut child = Child::start(&mut command)?;
    // The first run touches the ring's pages.
    let answers = [(); 2].map(|()| child.ns(&format!("spans {part}")));
    drop(child);
    let summary = session.finish()?;
    let [first, second] = answers;
    first?;
    // The first span at each place in the code records one extra event.
    let first = u64::from(part == "layer");
    let all = if is_traced { 2 * 2 * SPANS * BURSTS + first } else { 0 };
    ensure!(summary.lost == 0, "{} records lost", summary.lost);
    ensure!(summary.ring_events == all, "{} of {all} were recorded", summary.ring_events);
    second
}

/// A layer that does nothing.
struct Empty;

impl Layer<Registry> for Empty {}

/// Measures a part in this process. Returns ticks and turns.
pub fn answer(part: &str) -> Result<(u64, u64)> {
    let registry = tracing_subscriber::registry();
    // Only the first call has an effect.
    let _ = match part {
        "layer" => tracing::subscriber::set_global_default(registry.with(HypertraceLayer::guest())),
        "region" => tracing::subscriber::set_global_default(registry.with(Empty)),
        "text" => {
            let null = Arc::new(File::options().write(true).open("/dev/null")?);
            let layer = tracing_subscriber::fmt::layer()
                .with_ansi(false)
                .with_span_events(FmtSpan::ACTIVE)
                .with_writer(null);
            tracing::subscriber::set_global_default(registry.with(layer))
        }
        _ => bail!("no part {part:?}"),
    };
    let mut total = 0;
    for _ in 0..BURSTS {
        let has_room = hypertrace::with_client(|client| client.wait_for_room(2 * SPANS, WORDS));
        ensure!(has_room.context("no client")?, "no room for a burst");
        total += match part {
            "region" => timed(SPANS, |n| with_region(black_box(n))),
            _ => timed(SPANS, |n| span(black_box(n))),
        };
    }
    Ok((total, SPANS * BURSTS))
}

#[inline(never)]
fn span(n: u64) {
    let _span = info_span!("request", n).entered();
    black_box(());
}

#[inline(never)]
fn with_region(n: u64) {
    let _span = info_span!("request", n).entered();
    let _region = hypertrace::region!("request", id = n);
    black_box(());
}
