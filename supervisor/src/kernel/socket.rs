//! Datagrams with descriptors between a supervisor and its warden, and sealed memory files for what is large.
//!
//! SOCK_SEQPACKET keeps the borders of frames and reports the end of the peer. Nothing here waits. Limits: a frame of
//! 128 KiB (the kernel refuses more than about 200 KB), 8 descriptors a frame, 32 MiB a memory file.
#![expect(unsafe_code, reason = "descriptors that arrive with a datagram are bare numbers")]

use std::fs::File;
use std::io;
use std::io::IoSlice;
use std::io::IoSliceMut;
use std::io::Write;
use std::os::fd::AsFd;
use std::os::fd::AsRawFd;
use std::os::fd::BorrowedFd;
use std::os::fd::FromRawFd;
use std::os::fd::OwnedFd;
use std::os::fd::RawFd;
use std::os::unix::fs::FileExt;

use nix::fcntl::FcntlArg;
use nix::fcntl::SealFlag;
use nix::fcntl::fcntl;
use nix::sys::memfd::MFdFlags;
use nix::sys::memfd::memfd_create;
use nix::sys::socket::AddressFamily;
use nix::sys::socket::ControlMessage;
use nix::sys::socket::ControlMessageOwned;
use nix::sys::socket::MsgFlags;
use nix::sys::socket::SockFlag;
use nix::sys::socket::SockType;
use nix::sys::socket::recv;
use nix::sys::socket::recvmsg;
use nix::sys::socket::sendmsg;
use nix::sys::socket::socketpair;

use crate::kernel::KernelError;
use crate::kernel::process::call_error;

/// Longest frame in bytes.
pub const MAX_FRAME: usize = 128 * 1024;

/// Most descriptors with one frame.
const MAX_DESCRIPTORS: usize = 8;

/// Longest content of a memory file that is read back.
const MAX_SEALED: u64 = 32 * 1024 * 1024;

/// A frame as it arrived.
#[derive(Debug)]
pub struct Received {
    /// Its bytes.
    pub bytes: Vec<u8>,
    /// What came with it, in the order in which it was sent.
    pub descriptors: Vec<OwnedFd>,
}

/// Two connected ends, not passed on to children.
///
/// # Errors
/// The table of descriptors is full.
pub fn pair() -> Result<(OwnedFd, OwnedFd), KernelError> {
    socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC).map_err(call_error("socketpair"))
}

/// Sends one frame.
///
/// # Errors
/// `WouldBlock`: the peer has to read first; `BrokenPipe`: it is gone.
pub fn send(socket: BorrowedFd<'_>, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
    let numbers: Vec<RawFd> = descriptors.iter().map(AsRawFd::as_raw_fd).collect();
    let rights = [ControlMessage::ScmRights(&numbers)];
    let control = if numbers.is_empty() { &[][..] } else { &rights[..] };
    let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
    sendmsg::<()>(socket.as_raw_fd(), &[IoSlice::new(bytes)], control, flags, None)?;
    Ok(())
}

/// Takes the next frame; `None`: the peer is gone and nothing is left. Descriptors for which this process has no room
/// are missing from the frame: it is for the caller to miss them.
///
/// # Errors
/// `WouldBlock`: nothing is there yet; `InvalidData`: the frame was longer than allowed.
pub fn receive(socket: BorrowedFd<'_>) -> io::Result<Option<Received>> {
    // Most looks find nothing and most frames are small: no room is made before it is known how much.
    let look = MsgFlags::MSG_PEEK | MsgFlags::MSG_TRUNC | MsgFlags::MSG_DONTWAIT;
    let length = recv(socket.as_raw_fd(), &mut [], look)?;
    let mut bytes = vec![0_u8; length.min(MAX_FRAME)];
    let mut control = nix::cmsg_space!([RawFd; MAX_DESCRIPTORS]);
    let mut slices = [IoSliceMut::new(&mut bytes)];
    let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_CMSG_CLOEXEC;
    let message = recvmsg::<()>(socket.as_raw_fd(), &mut slices, Some(&mut control), flags)?;
    let mut descriptors = Vec::new();
    for entry in message.cmsgs()? {
        if let ControlMessageOwned::ScmRights(numbers) = entry {
            // SAFETY: the kernel has just made these descriptors for us; nobody else owns them.
            descriptors.extend(numbers.into_iter().map(|fd| unsafe { OwnedFd::from_raw_fd(fd) }));
        }
    }
    let cut = message.flags.contains(MsgFlags::MSG_TRUNC);
    let length = message.bytes;
    if cut {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "a frame longer than allowed"));
    }
    bytes.truncate(length);
    Ok((length > 0).then_some(Received { bytes, descriptors }))
}

/// A memory file with this content that nobody can change any more.
///
/// # Errors
/// A system call fails.
pub fn sealed(content: &[u8]) -> Result<OwnedFd, KernelError> {
    let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
    let fd = memfd_create(c"jobvisor", flags).map_err(call_error("memfd_create"))?;
    let mut file = File::from(fd);
    file.write_all(content).map_err(|source| KernelError::Call { call: "write(memfd)", source })?;
    let seals = SealFlag::F_SEAL_WRITE | SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_SEAL;
    fcntl(&file, FcntlArg::F_ADD_SEALS(seals)).map_err(call_error("fcntl(F_ADD_SEALS)"))?;
    Ok(file.into())
}

/// Reads a memory file from its beginning, wherever its position is.
///
/// # Errors
/// It is longer than 32 MiB, or cannot be read.
pub fn read_sealed(fd: OwnedFd) -> io::Result<Vec<u8>> {
    let file = File::from(fd);
    let length = file.metadata()?.len();
    let length = if length > MAX_SEALED { None } else { usize::try_from(length).ok() };
    let mut content = vec![0; length.ok_or_else(|| io::Error::other("a memory file of over 32 MiB"))?];
    file.read_exact_at(&mut content, 0)?;
    Ok(content)
}

/// Whether this descriptor is a socket of the kind made by [`pair`].
#[must_use]
pub fn is_pair_end(fd: impl AsFd) -> bool {
    let kind = nix::sys::socket::getsockopt(&fd.as_fd(), nix::sys::socket::sockopt::SockType);
    kind.is_ok_and(|kind| kind == SockType::SeqPacket)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_keep_their_borders_and_descriptors_and_the_end_is_told() {
        let (ours, theirs) = pair().unwrap();
        let file = sealed(b"large").unwrap();
        send(ours.as_fd(), b"one", &[file.as_fd(), ours.as_fd()]).unwrap();
        send(ours.as_fd(), b"two", &[]).unwrap();
        let first = receive(theirs.as_fd()).unwrap().unwrap();
        assert_eq!((first.bytes.as_slice(), first.descriptors.len()), (&b"one"[..], 2));
        assert_eq!(read_sealed(first.descriptors.into_iter().next().unwrap()).unwrap(), b"large");
        assert_eq!(receive(theirs.as_fd()).unwrap().unwrap().bytes, b"two");
        assert_eq!(receive(theirs.as_fd()).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        drop(ours);
        assert!(receive(theirs.as_fd()).unwrap().is_none());
    }

    #[test]
    fn a_sealed_file_cannot_be_written_and_a_full_socket_says_so() {
        let mut file = File::from(sealed(b"x").unwrap());
        assert!(file.write_all(b"y").is_err());
        let (ours, theirs) = pair().unwrap();
        assert!(is_pair_end(&theirs) && !is_pair_end(&file));
        let full = (0..10_000).find_map(|_| send(ours.as_fd(), &[0; 1024], &[]).err()).unwrap();
        assert_eq!(full.kind(), io::ErrorKind::WouldBlock);
    }
}
