//! Rows about comparisons: how often a comparison of two sets of runs is wrong. The runs are drawn at random
//! from recorded runs. Shares are in percent.

use super::row::{Context, Row, row};
use anyhow::Result;
use hypertrace_compare::stats::benjamini_hochberg;
use hypertrace_test_support::simulation::{NAMES, PARTS, Simulation};

pub const ROWS: &[Row] = &[
    row(
        "compare_false_alarms",
        |context| false_alarms(context, 1.0),
        "false alarms at 1 %, of 1,000 comparisons of a build with itself: furthest from 1 (not ns)",
    )
    .target("<= 0.7 percentage points")
    .note(NOTE),
    row(
        "compare_false_alarms_at_5",
        |context| false_alarms(context, 5.0),
        "`compare_false_alarms` at 5 %: furthest from 5 (not ns)",
    )
    .target("<= 2 percentage points")
    .note(NOTE),
    row(
        "compare_coverage",
        coverage,
        "95 % intervals with the true difference in them, in percent: least of 5, 10, 20 runs and all parts (not ns)",
    )
    .target(">= 93 %"),
    row(
        "compare_power",
        power,
        "a child slower by 5 % that 10 runs a side find at 1 %, one of four names, in percent (not ns)",
    )
    .target(">= 95 %")
    .note("The recorded runs had a load of 13 to 16 on two CPUs: some typical means are 10 % more than others."),
];

const NOTE: &str = "5, 10 and 20 runs a side, drawn anew in each run. With 5 a side, p values are multiples of 2/252: \
                    the true levels are 0.79 and 4.76 %.";

/// Number of comparisons of each kind in a run.
const COMPARISONS: usize = 1_000;
/// Numbers of runs of each side.
const SIDES: [usize; 3] = [5, 10, 20];

fn simulation(context: &mut Context) -> Result<&mut Simulation> {
    context.resource(|| Ok(Simulation::new(34)))
}

/// Returns the largest distance, in percentage points, between `level` and the share of false alarms about
/// the region `request`.
fn false_alarms(context: &mut Context, level: f64) -> Result<f64> {
    let simulation = simulation(context)?;
    let (mut furthest, mut shares) = (0.0_f64, Vec::new());
    for side in SIDES {
        let p_values = simulation.of_one_build(side, COMPARISONS);
        let share = |is_alarm: &dyn Fn(&Vec<f64>) -> bool| {
            100.0 * p_values.iter().filter(|p| is_alarm(p)).count() as f64 / COMPARISONS as f64
        };
        let one = share(&|p| p[0] <= level / 100.0);
        let any = share(&|p| benjamini_hochberg(p).iter().any(|&p| p <= level / 100.0));
        furthest = furthest.max((one - level).abs());
        shares.push(format!("{one:.1} ({any:.1}) with {side}"));
    }
    let shares = shares.join(", ");
    context
        .remark(format!("the last run: {shares} a side, in brackets any of four names, adjusted"));
    Ok(furthest)
}

/// Returns the least share of intervals that contain the true difference, in percent.
fn coverage(context: &mut Context) -> Result<f64> {
    let simulation = simulation(context)?;
    let mut least = (f64::INFINITY, "", 0);
    for side in SIDES {
        for (part, share) in PARTS.into_iter().zip(simulation.coverage(side, COMPARISONS)) {
            if share < least.0 {
                least = (share, part, side);
            }
        }
    }
    let (share, part, side) = least;
    context.remark(format!("the last run: {part}, {side} runs a side"));
    Ok(100.0 * share)
}

/// Returns the share of comparisons that find the slower child, in percent.
fn power(context: &mut Context) -> Result<f64> {
    let shares = simulation(context)?.called_slower(10, 0.01, COMPARISONS);
    let shares: Vec<_> = NAMES.into_iter().zip(shares.iter().map(|share| 100.0 * share)).collect();
    let text: Vec<_> = shares.iter().map(|(name, share)| format!("{name} {share:.1}")).collect();
    context.remark(format!("the last run: {}", text.join(", ")));
    Ok(shares[1].1)
}
