//! Search for the hypertrace device on bare metal, in its window or on the PCI bus.
#![allow(unsafe_code)]

use core::fmt::Write;

use hypertrace::abi::config::ConfigPage;
use hypertrace::abi::layout::{PCI_DEVICE, PCI_VENDOR, Region};
use hypertrace::{Channel, OpenError};

use crate::pci::Function;
use crate::{Args, Board, Console, layout};

/// Opens the device that `args` describes, if there is one. Every vCPU calls this; vCPU 0 sets the
/// device up.
pub fn find(cpu: u32, args: &Args, board: &Board) -> Option<Channel<'static>> {
    let opened = if args.device != 0 {
        in_window(args.device, board)
    } else if args.ecam != 0 {
        if cpu == 0 {
            enable_pci(args.ecam, board);
        }
        board.meet(args.vcpus);
        on_pci(board)?
    } else {
        return None;
    };
    match opened {
        Ok(channel) => Some(channel),
        Err(why) => {
            // SAFETY: `Args` says that this is the control page.
            let _ = writeln!(unsafe { Console::new(args.control) }, "vCPU {cpu}: {why}");
            None
        }
    }
}

fn in_window(base: u64, board: &Board) -> Result<Channel<'static>, OpenError> {
    // SAFETY: `Args` says that the window is there, and the window is never removed.
    let channel = unsafe { Channel::at_window(base as *mut u8) }?;
    // SAFETY: the library has just read a valid config page at this address.
    let word = |n| unsafe { (base as *const u64).wrapping_add(n).read_volatile() };
    let page = ConfigPage::from_words(&core::array::from_fn(word));
    let geometry = page.geometry().map_err(OpenError::Config)?;
    board.set_regions(Region::ALL.map(|region| base + geometry.window_offset(region)));
    Ok(channel)
}

/// Gives the BARs their addresses, as firmware would.
fn enable_pci(ecam: u64, board: &Board) {
    // SAFETY: `Args` says that the ECAM window is there.
    if let Some(function) = unsafe { Function::find(ecam, PCI_VENDOR, PCI_DEVICE) } {
        let bars = function.enable(layout::DEVICE);
        board.set_regions([bars[0], bars[1], bars[2], bars[4]]);
    }
}

fn on_pci(board: &Board) -> Option<Result<Channel<'static>, OpenError>> {
    let regions = board.regions();
    if regions.contains(&0) {
        return None;
    }
    let [bar0, bar1, bar2, bar4] = regions.map(|address| address as *mut u8);
    // SAFETY: vCPU 0 has put the BARs at these addresses, and nobody moves them.
    Some(unsafe { Channel::at_bars(bar0, bar1, bar2, bar4) })
}
