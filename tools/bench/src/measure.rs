//! Runs of a row and of its floor, and their medians.

use super::row::{Context, Row, is_met};
use anyhow::Result;
use serde::Serialize;

/// One measured row, as `--json` shows it.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Measured {
    pub name: &'static str,
    /// Median time in nanoseconds; null if not measured.
    pub ns: Option<f64>,
    /// Row with which this row is compared.
    pub floor: Option<&'static str>,
    /// Median of paired ratios.
    pub ratio: Option<f64>,
    /// Interquartile range of the paired ratios or, if the row has no floor, interquartile range of the
    /// times.
    pub iqr: Option<f64>,
    pub runs: usize,
    pub target: Option<&'static str>,
    pub met: Option<bool>,
    /// What the row measures, and the versions of programs; or why the row was not measured.
    pub note: String,
    /// How the row is measured, and what bounds its time.
    #[serde(skip)]
    pub details: &'static str,
}

/// Measures a row and its floor alternately. Calls `begin` with the number of each run.
pub fn measure(
    row: &Row,
    runs: usize,
    context: &mut Context,
    begin: impl FnMut(usize),
) -> Measured {
    let measured = Measured {
        name: row.name,
        floor: row.floor.map(|(name, _)| name),
        target: row.target,
        details: row.note,
        ..Measured::default()
    };
    let alternated = alternate(row, runs, context, begin);
    let remark = context.take_remark();
    let (mut times, mut ratios) = match alternated {
        Ok(found) => found,
        Err(why) => return Measured { note: format!("not measured: {why:#}"), ..measured },
    };
    let (ns, iqr) = median_and_iqr(&mut times);
    let ratio = row.floor.map(|_| median_and_iqr(&mut ratios));
    let compared = ratio.map_or(ns, |(ratio, _)| ratio);
    Measured {
        ns: Some(ns),
        ratio: ratio.map(|(ratio, _)| ratio),
        iqr: Some(ratio.map_or(iqr, |(_, iqr)| iqr)),
        runs,
        met: row.target.and_then(|target| is_met(target, compared)),
        note: match remark {
            Some(remark) => format!("{}; {remark}", row.what),
            None => row.what.to_owned(),
        },
        ..measured
    }
}

/// Returns the times of all runs. If the row has a floor, also returns the ratios of the times to the floor's
/// times.
fn alternate(
    row: &Row,
    runs: usize,
    context: &mut Context,
    mut begin: impl FnMut(usize),
) -> Result<(Vec<f64>, Vec<f64>)> {
    let (mut times, mut ratios) = (Vec::new(), Vec::new());
    for number in 0..runs {
        begin(number);
        let floor = row.floor.map(|(_, run)| run(context)).transpose()?;
        let ns = (row.run)(context)?;
        times.push(ns);
        ratios.extend(floor.map(|floor| (row.compare)(ns, floor)));
    }
    Ok((times, ratios))
}

/// Returns the median and the distance between the quartiles.
fn median_and_iqr(values: &mut [f64]) -> (f64, f64) {
    let mut at = |part| quantile(values, part);
    (at(0.5), at(0.75) - at(0.25))
}

/// Returns the interpolated quantile of the values: the share `part` of the values is smaller.
pub fn quantile(values: &mut [f64], part: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    let position = part * (values.len() - 1) as f64;
    let (low, high) = (values[position as usize], values[position.ceil() as usize]);
    low + (high - low) * position.fract()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn median_and_quartiles_are_interpolated() {
        assert_eq!(median_and_iqr(&mut [4.0, 1.0, 3.0, 2.0]), (2.5, 1.5));
        assert_eq!(median_and_iqr(&mut [7.0]), (7.0, 0.0));
    }
}
