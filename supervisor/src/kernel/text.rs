//! Reads files that the kernel makes up as they are read (`/proc`, groups): small, and of no length that could be asked for.

use std::fs::File;
use std::io;
use std::io::Read;
use std::path::Path;

/// Room for all that is read of them, so that one call takes it and one more finds the end.
const ROOM: usize = 8 * 1024;

/// The whole file as bytes.
pub(super) fn bytes(path: &Path) -> io::Result<Vec<u8>> {
    let mut content = Vec::with_capacity(ROOM);
    // `take` keeps the library from asking for the length and from growing the buffer in small steps.
    File::open(path)?.take(u64::MAX).read_to_end(&mut content)?;
    Ok(content)
}

/// The whole file as text.
pub(super) fn text(path: &Path) -> io::Result<String> {
    String::from_utf8(bytes(path)?).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}
