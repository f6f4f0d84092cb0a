// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The map from a guest's clock to its host's, as trace-cmd measured it.

/// Corrections of a guest's times, by the guest's CPUs.
#[derive(Clone, Debug)]
pub(crate) struct TimeShift {
    /// Id of the host's trace.
    pub peer: u64,
    /// Whether offsets between two corrections are on a line. If not, the offset is
    /// that of the correction before.
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
    /// Time of the guest from which it is valid.
    pub time: u64,
    pub offset: i64,
    /// 0 or 1 without a fraction: the same rate.
    pub ratio: u64,
    pub fraction: u32,
}

impl TimeShift {
    /// Returns the host's time of a guest's time on one of its CPUs.
    pub fn host(&self, cpu: u32, guest: u64) -> i128 {
        let samples = self.cpus.get(cpu as usize).or(self.cpus.first());
        let Some(samples) = samples.filter(|samples| !samples.is_empty()) else {
            return guest.into();
        };
        let after = samples.partition_point(|sample| sample.time <= guest);
        let sample = samples[after.saturating_sub(1)];
        let mut offset = i128::from(sample.offset);
        if let Some(next) = samples.get(after).filter(|_| self.interpolated && after > 0) {
            // Both times are different, because only one is after the guest's.
            let (elapsed, all) = (guest - sample.time, next.time - sample.time);
            let grown = i128::from(next.offset) - offset;
            // Numbers too large for this are no times.
            offset += grown.checked_mul(elapsed.into()).unwrap_or(0) / i128::from(all);
        }
        let guest = i128::from(guest) + offset;
        let host = match (sample.ratio, sample.fraction) {
            (0, _) | (1, 0) => guest,
            // 66 bits shifted by at most 60: within 128 bits.
            (ratio, fraction) => (guest << fraction.min(60)).div_euclid(ratio.into()),
        };
        // Room for the factors that follow.
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
        assert_eq!(shift.host(0, 300), 350);
        assert_eq!(shift.host(0, 10), 10);
    }

    #[test]
    fn kvms_scaling_is_inverted() {
        // Intel's fraction; a guest at 0.8 of the host's rate, started at host tick 10^15.
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
