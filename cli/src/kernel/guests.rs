//! Messages about the recordings of guests' kernels in a session.

use crate::output::say;
use hypertrace_format::error::error_chain;
use hypertrace_kernel::Summary;
use hypertrace_timeline::{Error, Recording, Session, UnreadPart};

/// Reports what the recordings of guests' kernels lost. The function also reports which other recordings of
/// guests' kernels the command leaves out, and why. `shown` is a word for the command's use of recordings,
/// such as `exported`.
pub fn say_guests(recording: &Recording, shown: &str) {
    let lost = recording.guest_kernels.iter().filter(|summary| has_losses(summary));
    lost.for_each(|summary| say(format_args!("a guest's kernel: {}", super::line(summary, None))));
    for unread in recording.unread.iter().filter(|unread| unread.what == UnreadPart::Guest) {
        say_unread(&recording.sessions[unread.session].0, &unread.why, shown);
    }
}

fn has_losses(summary: &Summary) -> bool {
    summary.asked.lost() > 0 || !summary.asked.losses_known || !summary.damage.is_empty()
}

/// Reports why the command leaves out recordings of guests' kernels that a session holds. `shown` is what the
/// command does with recordings, such as `exported`.
pub fn say_unread(session: &Session, why: &Error, shown: &str) {
    let dir = session.dir().display();
    match why {
        Error::GuestKernels { why, is_coming: true } => {
            say(format_args!("{dir}: {why}: its events are not {shown} yet"));
        }
        why => {
            let why = error_chain(why);
            say(format_args!("{dir}: events of a guest's kernel are not {shown}: {why}"));
        }
    }
}
