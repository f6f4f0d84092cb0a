// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Decompresses frames whose decompressed length is known in advance.
//!
//! trace-cmd leaves out the first four bytes of each frame of zstd, which are always the
//! same.

use ruzstd::decoding::{FrameDecoder, StreamingDecoder};
use std::io::Read;

/// First bytes of each frame of zstd. A frame that was written without these bytes cannot begin with 0x28 by
/// accident, because this value at the beginning would set a reserved bit.
const MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];
/// Maximum window of a frame in bytes: the window of level 19 of zstd.
const MAX_WINDOW: u64 = 8 << 20;

/// Decompresses a frame of `len` decompressed bytes into `out`, and reuses the memory of `out`.
///
/// # Errors
/// The fault of the frame.
pub(crate) fn decompress(
    decoder: &mut FrameDecoder,
    bytes: &[u8],
    len: usize,
    out: &mut Vec<u8>,
) -> Result<(), String> {
    let magic: &[u8] = if bytes.starts_with(&MAGIC) { &[] } else { &MAGIC };
    // The window is limited, because a frame needs no window that is larger than the frame's content.
    let most_window = (len as u64).next_power_of_two().clamp(128 << 10, MAX_WINDOW);
    decoder.set_max_window_size(most_window);
    out.clear();
    let mut frame = StreamingDecoder::new_with_decoder(magic.chain(bytes), decoder)
        .map_err(|e| e.to_string())?;
    // Up to `len + 1` bytes are read, to find out whether the frame is longer than `len`.
    frame.by_ref().take(len as u64 + 1).read_to_end(out).map_err(|e| e.to_string())?;
    match out.len() {
        n if n == len => Ok(()),
        n if n > len => Err(format!("more than {len} bytes")),
        n => Err(format!("{n} bytes instead of {len}")),
    }
}
