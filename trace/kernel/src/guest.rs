//! The recordings that a client of a guest has sent, as files.

use crate::assembly::{Assembly, GuestFile, MAX_SMALL, PieceLocation};
use crate::forward::Piece;
use std::collections::BTreeMap;

/// Maximum number of recordings in a lease. Any program of the guest can send recordings, but cannot use up
/// the recordings of root's recorder, which has its own lease.
const MAX_OF_LEASE: usize = 4;

/// Maximum number of recordings in a session. The clients that send recordings share this number equally, but
/// each of these clients may send at least one recording.
const MAX: usize = 1024;

/// The recordings that a client of a guest has sent, assembled from their pieces. A recording that has ended
/// becomes a file.
#[derive(Debug)]
pub struct GuestRecordings {
    client: u32,
    most: usize,
    has_ended: bool,
    /// Recordings whose pieces are still arriving, by clock and number.
    coming: BTreeMap<(u32, u64), Assembly>,
    lease: u64,
    /// Number of small pages for which this lease still has room, and number of small pages for which all
    /// later leases together still have room.
    small: (u32, u32),
    ended: usize,
    found: GuestFiles,
}

/// The files of the recordings that have ended since the last call, and the reasons why other recordings have
/// not become files.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct GuestFiles {
    /// The files that no earlier call has returned.
    pub files: Vec<GuestFile>,
    /// True if the guest has not described some recordings.
    pub undescribed: bool,
    /// True if some recordings have not ended.
    pub unended: bool,
    /// If the guest has sent too many recordings: the maximum number of recordings, and a text that says
    /// whose maximum this is, such as `a client`.
    pub beyond: Option<(usize, &'static str)>,
}

impl GuestRecordings {
    /// Begins without a recording. `senders` is the number of the session's clients that have sent
    /// recordings. If the session `has_ended`, all recordings have ended, even recordings without their last
    /// pieces.
    pub fn new(client: u32, senders: usize, has_ended: bool) -> GuestRecordings {
        let most = (MAX / senders.max(1)).max(1);
        let (coming, found) = (BTreeMap::new(), GuestFiles::default());
        let small = halves(MAX_SMALL / senders.max(1) as u32);
        GuestRecordings { client, most, has_ended, coming, lease: 0, small, ended: 0, found }
    }

    /// Adds a piece that a holder of this lease sent. `clock` is the id of the session's clock that stamped
    /// the piece, and `frequency` is the clock's ticks per second. The piece's bytes lie at `location`. The
    /// caller must add the pieces in the order in which the guest sent them.
    pub fn add(
        &mut self,
        lease: u64,
        (clock, frequency): (u32, u64),
        piece: &Piece<'_>,
        location: PieceLocation,
    ) {
        if self.lease != lease {
            self.end_all();
            self.lease = lease;
            self.small = halves(self.small.0 + self.small.1);
        }
        let key = (clock, piece.recording);
        if !self.coming.contains_key(&key) {
            // A guest describes its recordings one after the other. So if another recording begins, an older
            // recording without a description will never get one.
            self.coming.retain(|_, assembly| assembly.is_described());
            if self.coming.len() == MAX_OF_LEASE {
                self.found.beyond = Some((MAX_OF_LEASE, "a client's holder"));
                return;
            }
            if self.ended + self.coming.len() >= self.most {
                self.found.beyond = Some((self.most, "a client"));
                return;
            }
            self.coming.insert(key, Assembly::new((clock, frequency), self.client));
        }
        if let Some(assembly) = self.coming.get_mut(&key) {
            assembly.add(piece, location, &mut self.small.0);
        }
    }

    /// Removes and returns the files of the recordings that have ended since the last call.
    pub fn take(&mut self) -> Vec<GuestFile> {
        std::mem::take(&mut self.found.files)
    }

    /// Ends the last recordings.
    pub fn finish(mut self) -> GuestFiles {
        self.end_all();
        self.found
    }

    fn end_all(&mut self) {
        let (client, lease) = (self.client, self.lease);
        for ((clock, recording), mut assembly) in std::mem::take(&mut self.coming) {
            self.ended += usize::from(assembly.is_described());
            if !assembly.is_ended() && !self.has_ended {
                self.found.unended = true;
                continue;
            }
            let name = format!("guest-kernel-{clock}-{client}-{lease:016x}-{recording:016x}.dat");
            match assembly.finish(&name, &mut self.small.0) {
                Some(file) => self.found.files.push(file),
                None => self.found.undescribed = true,
            }
        }
    }
}

/// Divides a number of small pages between a lease and the later leases.
fn halves(all: u32) -> (u32, u32) {
    (all - all / 2, all / 2)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::assembly::tests::{head, json};
    use crate::forward::PIECE;
    use crate::state::{HEAD, JSON};

    #[test]
    fn recordings_beyond_those_of_a_lease_are_said() {
        let described = [(HEAD, head()), (JSON, serde_json::to_vec(&json()).unwrap())];
        let found = |count| {
            let mut recordings = GuestRecordings::new(9, 1, true);
            for (number, (file, bytes)) in
                (0..count).flat_map(|n| described.iter().map(move |d| (n, d)))
            {
                for (at, part) in (0..).step_by(PIECE).zip(bytes.chunks(PIECE)) {
                    let piece = Piece::new(number, file, at, part);
                    recordings.add(1, (4, 1_000), &piece, PieceLocation { file: 0, at: 0 });
                }
            }
            let found = recordings.finish();
            (found.files.len(), found.beyond)
        };

        assert_eq!(found(4), (4, None));
        assert_eq!(found(5), (4, Some((4, "a client's holder"))));
    }

    #[test]
    fn a_lease_has_half_of_its_clients_small_pages_that_are_left() {
        let mut recordings = GuestRecordings::new(9, 4, true);
        let add = |recordings: &mut GuestRecordings, lease| {
            let location = PieceLocation { file: 0, at: 0 };
            recordings.add(lease, (4, 1_000), &Piece::new(7, "cpu0", 0, &[]), location);
            recordings.small
        };

        assert_eq!(add(&mut recordings, 1), (1 << 20, 1 << 20));
        recordings.small.0 = 0;
        assert_eq!(add(&mut recordings, 2), (1 << 19, 1 << 19));
        assert_eq!(add(&mut recordings, 3), (1 << 19, 1 << 19), "what is not used is left");
    }
}
