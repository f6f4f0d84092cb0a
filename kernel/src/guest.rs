//! The recordings that a client of a guest has sent: which of them become files.

use crate::assembly::Assembly;
use crate::complete::Summary;
use crate::error::Error;
use crate::forward::Piece;
use hypertrace_format::folder::Folder;
use std::collections::BTreeMap;

/// Most recordings of a lease: any program of the guest can send some, and root's recorder has a lease of its own.
const MOST_OF_LEASE: usize = 4;

/// Most recordings of a session: an equal number of each client that sends some, one at least.
const MOST: usize = 1024;

/// The recordings of a client of a guest, from their pieces. Each that has ended becomes a file.
#[derive(Debug)]
pub struct GuestRecordings<'a> {
    folder: &'a Folder,
    client: u32,
    most: usize,
    has_ended: bool,
    /// By clock and number.
    coming: BTreeMap<(u32, u64), Assembly>,
    lease: u64,
    ended: usize,
    made: GuestFiles,
}

/// The files of recordings, and why others have none.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct GuestFiles {
    /// What is in each file, or why it could not be made.
    pub files: Vec<Result<Summary, Error>>,
    /// Whether the guest has not described some.
    pub undescribed: bool,
    /// Whether some have not ended.
    pub unended: bool,
    /// How many there may be of a client, if it has sent more.
    pub beyond: Option<usize>,
}

impl<'a> GuestRecordings<'a> {
    /// Begins without any. The files are made in this folder. `senders` is the number of the session's clients that
    /// have sent some. If the session `has_ended`, so has what comes no more.
    pub fn new(
        folder: &'a Folder,
        client: u32,
        senders: usize,
        has_ended: bool,
    ) -> GuestRecordings<'a> {
        let most = (MOST / senders.max(1)).max(1);
        let (coming, made) = (BTreeMap::new(), GuestFiles::default());
        GuestRecordings { folder, client, most, has_ended, coming, lease: 0, ended: 0, made }
    }

    /// Adds a piece that came under this lease and clock of the session, of so many ticks per second. Pieces come in
    /// the order in which they were sent.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn add(
        &mut self,
        lease: u64,
        (clock, frequency): (u32, u64),
        piece: &Piece<'_>,
    ) -> Result<(), Error> {
        if std::mem::replace(&mut self.lease, lease) != lease {
            self.end_all()?;
        }
        let key = (clock, piece.recording);
        if !self.coming.contains_key(&key) {
            // Only one at a time is being described: one without descriptions before another has none.
            let mut undescribed = Vec::new();
            for (key, assembly) in &mut self.coming {
                if !assembly.is_described()? {
                    undescribed.push(*key);
                }
            }
            undescribed.iter().for_each(|key| drop(self.coming.remove(key)));
            if self.coming.len() == MOST_OF_LEASE {
                return Ok(());
            }
            if self.ended + self.coming.len() >= self.most {
                self.made.beyond = Some(self.most);
                return Ok(());
            }
            let (client, recording) = (self.client, piece.recording);
            let name = format!("guest-kernel-{clock}-{client}-{lease:016x}-{recording:016x}.dat");
            self.coming.insert(key, Assembly::new(self.folder, &name, (clock, frequency), client));
        }
        self.coming.get_mut(&key).map_or(Ok(()), |assembly| assembly.add(piece))
    }

    /// Makes the files of the last recordings.
    ///
    /// # Errors
    /// If nothing can be written in the folder.
    pub fn finish(mut self) -> Result<GuestFiles, Error> {
        self.end_all()?;
        Ok(self.made)
    }

    fn end_all(&mut self) -> Result<(), Error> {
        for mut assembly in std::mem::take(&mut self.coming).into_values() {
            self.ended += usize::from(assembly.is_described()?);
            if !assembly.is_ended() && !self.has_ended {
                self.made.unended = true;
                assembly.discard()?;
                continue;
            }
            match assembly.finish().transpose() {
                Some(file) => self.made.files.push(file),
                None => self.made.undescribed = true,
            }
        }
        Ok(())
    }
}
