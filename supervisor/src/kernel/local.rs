//! A socket in a folder that only its owner may speak to.
//!
//! The address of such a socket has room for 107 bytes, and folders of supervisors are longer than that: the folder is opened,
//! and the socket named through `/proc/self/fd`, whatever its length.

use std::fs::File;
use std::fs::OpenOptions;
use std::io;
use std::os::fd::AsRawFd;
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixListener;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::path::PathBuf;
use std::time::Duration;

use nix::libc::O_DIRECTORY;
use nix::libc::O_PATH;
use nix::sys::socket::AddressFamily;
use nix::sys::socket::Backlog;
use nix::sys::socket::SockFlag;
use nix::sys::socket::SockType;
use nix::sys::socket::UnixAddr;
use nix::sys::socket::bind;
use nix::sys::socket::connect as connect_to;
use nix::sys::socket::listen as listen_on;
use nix::sys::socket::setsockopt;
use nix::sys::socket::socket;
use nix::sys::socket::sockopt::ReceiveTimeout;
use nix::sys::socket::sockopt::SendTimeout;
use nix::sys::stat::Mode;
use nix::sys::stat::fchmod;
use nix::sys::time::TimeVal;

/// Listens at `folder/name`, mode 0600 from the first moment, in place of whatever file a dead listener left there. The caller
/// knows that no living one does. It does not wait.
///
/// # Errors
/// The folder is not there, or cannot be written.
pub fn listen(folder: &Path, name: &str) -> io::Result<UnixListener> {
    let (_folder, path) = through_descriptor(folder, name)?;
    let socket = unix_socket(SockFlag::SOCK_NONBLOCK)?;
    // Before it has a name: the file takes its mode from the socket.
    fchmod(&socket, Mode::S_IRUSR | Mode::S_IWUSR)?;
    match std::fs::remove_file(&path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        Ok(()) | Err(_) => {}
    }
    bind(socket.as_raw_fd(), &UnixAddr::new(&path)?)?;
    listen_on(&socket, Backlog::new(4)?)?;
    Ok(UnixListener::from(socket))
}

/// Connects to `folder/name`. Neither this nor any call on the stream takes longer than `patience`.
///
/// # Errors
/// `NotFound` and `ConnectionRefused`: nobody listens; `PermissionDenied`: somebody else's; `WouldBlock`: it takes too long.
pub fn connect(folder: &Path, name: &str, patience: Duration) -> io::Result<UnixStream> {
    let (_folder, path) = through_descriptor(folder, name)?;
    let socket = unix_socket(SockFlag::empty())?;
    let seconds = i64::try_from(patience.as_secs()).unwrap_or(i64::MAX);
    let limit = TimeVal::new(seconds, i64::from(patience.subsec_micros()));
    setsockopt(&socket, SendTimeout, &limit)?;
    setsockopt(&socket, ReceiveTimeout, &limit)?;
    connect_to(socket.as_raw_fd(), &UnixAddr::new(&path)?)?;
    Ok(UnixStream::from(socket))
}

fn unix_socket(flags: SockFlag) -> io::Result<OwnedFd> {
    Ok(socket(AddressFamily::Unix, SockType::Stream, flags | SockFlag::SOCK_CLOEXEC, None)?)
}

/// The path is good for as long as the folder's descriptor is open.
fn through_descriptor(folder: &Path, name: &str) -> io::Result<(File, PathBuf)> {
    let folder = OpenOptions::new().read(true).custom_flags(O_PATH | O_DIRECTORY).open(folder)?;
    let path = format!("/proc/self/fd/{}/{name}", folder.as_raw_fd()).into();
    Ok((folder, path))
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::io::Write;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    const SOON: Duration = Duration::from_secs(5);

    #[test]
    fn a_socket_is_its_owners_alone_and_replaces_what_a_dead_one_left() {
        let folder = tempfile::tempdir().unwrap();
        // Longer than any address.
        let deep = folder.path().join("a".repeat(100)).join("b".repeat(100));
        std::fs::create_dir_all(&deep).unwrap();
        assert_eq!(connect(&deep, "control", SOON).unwrap_err().kind(), io::ErrorKind::NotFound);
        drop(listen(&deep, "control").unwrap());
        assert!(deep.join("control").exists());
        assert_eq!(connect(&deep, "control", SOON).unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
        let listener = listen(&deep, "control").unwrap();
        assert_eq!(deep.join("control").metadata().unwrap().permissions().mode() & 0o777, 0o600);
        let mut asking = connect(&deep, "control", SOON).unwrap();
        let (mut answering, _) = listener.accept().unwrap();
        answering.write_all(b"x").unwrap();
        asking.read_exact(&mut [0]).unwrap();
    }

    #[test]
    fn nobody_is_waited_for_longer_than_patience() {
        let folder = tempfile::tempdir().unwrap();
        let _listener = listen(folder.path(), "control").unwrap();
        let short = Duration::from_millis(20);
        // Nobody accepts: at last the queue is full.
        let asked: Vec<_> = (0..16).map(|_| connect(folder.path(), "control", short)).collect();
        let full = asked.into_iter().find_map(Result::err);
        assert_eq!(full.unwrap().kind(), io::ErrorKind::WouldBlock);
    }
}
