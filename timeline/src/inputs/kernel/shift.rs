// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The map from a guest's clock to the host's clock that trace-cmd has measured.

/// Corrections of a guest's times, with a separate list for each CPU of the guest.
#[derive(Clone, Debug)]
pub(crate) struct TimeShift {
    /// Id of the host's trace.
    pub peer: u64,
    /// Whether offsets are interpolated linearly between the corrections before and after a time. Before the
    /// first correction and after the last correction, the line through the nearest two corrections is
    /// extended, because the difference between the rates of both clocks is the same there. If false, the
    /// offset of the correction before the time is used.
    pub interpolated: bool,
    /// Corrections of each CPU, in order of time.
    pub cpus: Vec<Vec<Correction>>,
}

/// A correction: the host's time is `((guest + offset) << fraction) / ratio`.
///
/// KVM computes `guest = (host * ratio >> fraction) - offset`, with a fraction of
/// 48 bits on Intel and 32 on AMD.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Correction {
    /// Time of the guest from which the correction is valid.
    pub time: u64,
    pub offset: i64,
    /// Ratio of the guest's rate to the host's rate, with `fraction` fraction bits. If both rates are the
    /// same, the ratio is 0, or is 1 and `fraction` is 0.
    pub ratio: u64,
    pub fraction: u32,
}

/// Maximum absolute value of a time that is divided by a ratio: twice the sum of a 64-bit time and an offset.
const MAX: i128 = 1 << 66;

impl TimeShift {
    /// Returns the corrections of a CPU. A CPU without corrections uses the corrections of the first CPU.
    fn samples(&self, cpu: u32) -> &[Correction] {
        self.cpus.get(cpu as usize).or(self.cpus.first()).map_or(&[], |samples| samples)
    }

    /// Returns whether a guest's time is before the first or after the last correction.
    pub fn is_outside(&self, cpu: u32, guest: u64) -> bool {
        let samples = self.samples(cpu);
        let ends = samples.first().zip(samples.last());
        ends.is_some_and(|(first, last)| guest < first.time || guest > last.time)
    }

    /// Converts a guest's time on one of the guest's CPUs to the host's time.
    pub fn host(&self, cpu: u32, guest: u64) -> i128 {
        let samples = self.samples(cpu);
        if samples.is_empty() {
            return guest.into();
        }
        let after = samples.partition_point(|sample| sample.time <= guest);
        let before = after.saturating_sub(1);
        let from =
            if self.interpolated { before.min(samples.len().saturating_sub(2)) } else { before };
        let sample = samples[from];
        let mut offset = i128::from(sample.offset);
        let next =
            samples.get(from + 1).filter(|next| self.interpolated && next.time > sample.time);
        if let Some(next) = next {
            let elapsed = i128::from(guest) - i128::from(sample.time);
            let grown = i128::from(next.offset) - offset;
            // If the product overflows, it counts as 0, because such large numbers are no real times.
            let grown =
                grown.checked_mul(elapsed).unwrap_or(0) / i128::from(next.time - sample.time);
            offset = offset.saturating_add(grown);
        }
        let guest = i128::from(guest).saturating_add(offset).clamp(-MAX, MAX);
        let host = match (sample.ratio, sample.fraction) {
            (0, _) | (1, 0) => guest,
            // 67 bits shifted by at most 60 fit in 128 bits.
            (ratio, fraction) => (guest << fraction.min(60)).div_euclid(ratio.into()),
        };
        // The result is limited, so that later multiplications do not overflow.
        host.clamp(i64::MIN.into(), u64::MAX.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(time: u64, offset: i64) -> Correction {
        Correction { time, offset, ratio: 1, fraction: 0 }
    }

    #[test]
    fn an_offset_is_valid_from_its_time_on() {
        let cpus = vec![vec![sample(100, 5), sample(200, -7)], vec![sample(0, 1_000)]];
        let shift = TimeShift { peer: 1, interpolated: false, cpus };
        assert_eq!(shift.host(0, 50), 55);
        assert_eq!(shift.host(0, 199), 204);
        assert_eq!(shift.host(0, 200), 193);
        assert_eq!(shift.host(1, 3), 1_003);
        assert_eq!(shift.host(7, 150), 155, "CPUs without corrections have those of the first");
    }

    #[test]
    fn interpolated_offsets_lie_on_a_line() {
        let cpus = vec![vec![sample(100, 0), sample(200, 50)]];
        let shift = TimeShift { peer: 1, interpolated: true, cpus };
        assert_eq!(shift.host(0, 100), 100);
        assert_eq!(shift.host(0, 150), 175);
    }

    #[test]
    fn before_the_first_and_after_the_last_correction_the_line_of_the_nearest_two_goes_on() {
        // `trace-cmd report` shows these times of such a file.
        let cpus = vec![vec![sample(300_000, 0), sample(500_000, 2_000), sample(700_000, 10_000)]];
        let mut shift = TimeShift { peer: 1, interpolated: true, cpus };
        assert_eq!(shift.host(0, 100_000), 98_000);
        assert_eq!(shift.host(0, 400_000), 401_000);
        assert_eq!(shift.host(0, 800_000), 814_000);
        assert_eq!(shift.host(0, 1_000_000), 1_022_000);
        let outside = [299_999, 300_000, 700_000, 700_001].map(|time| shift.is_outside(0, time));
        assert_eq!(outside, [true, false, false, true]);
        // Without interpolation, an offset is valid until the next correction.
        shift.interpolated = false;
        assert_eq!((shift.host(0, 100_000), shift.host(0, 800_000)), (100_000, 810_000));
    }

    #[test]
    fn corrections_of_any_numbers_give_a_time() {
        for (times, offsets) in [
            ([0, 0], [i64::MIN, i64::MAX]),
            ([u64::MAX - 1, u64::MAX], [i64::MAX, i64::MIN]),
            ([0, 1], [i64::MIN, i64::MAX]),
        ] {
            let correction = |n: usize| {
                let (time, offset) = (times[n], offsets[n]);
                Correction { time, offset, ratio: 1, fraction: 60 }
            };
            let cpus = vec![vec![correction(0), correction(1)]];
            let shift = TimeShift { peer: 1, interpolated: true, cpus };
            for guest in [0, 1, 1 << 40, u64::MAX] {
                let host = shift.host(0, guest);
                assert!((i64::MIN.into()..=u64::MAX.into()).contains(&host), "{guest}");
            }
        }
    }

    #[test]
    fn kvms_scaling_is_inverted() {
        // KVM uses 48 fraction bits on Intel. The guest runs at 0.8 of the host's rate.
        let (fraction, host) = (48, 1_000_000_123_456_789u64);
        let ratio = (1u64 << fraction) / 5 * 4;
        let offset = 3_000_000_000i64;
        let guest = ((u128::from(host) * u128::from(ratio)) >> fraction) as i64 - offset;
        let correction = Correction { time: 0, offset, ratio, fraction };
        let shift = TimeShift { peer: 1, interpolated: false, cpus: vec![vec![correction]] };
        let mapped = shift.host(0, guest as u64);
        assert!((mapped - i128::from(host)).abs() <= 2, "{mapped}");
    }
}
