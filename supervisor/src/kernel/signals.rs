//! The supervisor's own signals, with who sent them.

use std::io;
use std::thread;

use signal_hook::consts::SIGHUP;
use signal_hook::consts::SIGINT;
use signal_hook::consts::SIGTERM;
use signal_hook::consts::SIGUSR1;
use signal_hook::iterator::SignalsInfo;
use signal_hook::iterator::exfiltrator::WithOrigin;

/// A signal that arrived.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Received {
    /// SIGTERM or SIGINT: stop. Holds the signal's name and who sent it, where the kernel tells.
    Stop(String),
    /// SIGHUP: read the configuration again.
    Reload,
    /// SIGUSR1: say how things stand.
    Report,
}

/// Hands every such signal to `tell`, from a thread of its own, for the life of the process.
///
/// # Errors
/// The handlers cannot be installed.
pub fn listen(mut tell: impl FnMut(Received) + Send + 'static) -> io::Result<()> {
    let mut signals = SignalsInfo::<WithOrigin>::new([SIGTERM, SIGINT, SIGHUP, SIGUSR1])?;
    thread::Builder::new().name("signals".to_owned()).spawn(move || {
        for origin in &mut signals {
            match origin.signal {
                SIGHUP => tell(Received::Reload),
                SIGUSR1 => tell(Received::Report),
                signal => {
                    let name = if signal == SIGTERM { "SIGTERM" } else { "SIGINT" };
                    let from =
                        origin.process.map(|process| format!(" from pid {} of uid {}", process.pid, process.uid));
                    tell(Received::Stop(format!("{name}{}", from.unwrap_or_default())));
                }
            }
        }
    })?;
    Ok(())
}
