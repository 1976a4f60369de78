//! `/proc`: who runs, whose child it is, and how much memory it holds.
//!
//! The warden reads only files that answer at once (`stat`, `statm`, `status`, `loadavg`, `vmstat`, `wchan`); `environ`
//! and `smaps_rollup` can block for seconds on a busy process and are not read. The root is a parameter, so that tests
//! can give a folder of fixtures. A process that vanishes while it is read is "not there", never an error.

use std::fs;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use crate::kernel::text;

/// Set in the flags of a process that has not called `exec` since it was forked; the process cannot set it back.
const PF_FORKNOEXEC: u64 = 0x40;

/// One line of `/proc/PID/stat`, the fields that are used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stat {
    /// Its number.
    pub pid: i32,
    /// Its name as `ps` shows it.
    pub comm: String,
    /// One letter: `R`, `S`, `D`, `T`, `Z`, …
    pub state: char,
    /// Its parent.
    pub ppid: i32,
    /// Its process group.
    pub pgrp: i32,
    /// Its session.
    pub session: i32,
    /// Kernel flags.
    pub flags: u64,
    /// Its threads.
    pub threads: u32,
    /// Clock ticks after boot at which it was made; with the pid its identity.
    pub start: u64,
}

impl Stat {
    /// Reads the line. The name stands in parentheses and may hold any character, parentheses too.
    #[must_use]
    pub fn parse(line: &str) -> Option<Self> {
        let (pid, rest) = line.split_once(" (")?;
        let (comm, rest) = rest.rsplit_once(") ")?;
        let mut fields = rest.split_ascii_whitespace();
        let state = fields.next()?.chars().next()?;
        let numbers: Vec<i64> = fields.take(19).map(|field| field.parse().unwrap_or(0)).collect();
        let number = |field: usize| numbers.get(field - 4).copied();
        let pid_at = |field: usize| number(field).and_then(|n| i32::try_from(n).ok());
        Some(Self {
            pid: pid.parse().ok()?,
            comm: comm.to_owned(),
            state,
            ppid: pid_at(4)?,
            pgrp: pid_at(5)?,
            session: pid_at(6)?,
            flags: u64::try_from(number(9)?).ok()?,
            threads: u32::try_from(number(20)?).ok()?,
            start: u64::try_from(number(22)?).ok()?,
        })
    }

    /// Whether it died, or lives, before its `exec` succeeded.
    #[must_use]
    pub const fn before_exec(&self) -> bool {
        self.flags & PF_FORKNOEXEC != 0
    }

    /// Whether any of its threads still runs. A leader that ended before its threads is shown as a zombie, too.
    #[must_use]
    pub const fn is_alive(&self) -> bool {
        !matches!(self.state, 'Z' | 'X') || self.threads > 1
    }
}

/// A `/proc`.
#[derive(Debug, Clone)]
pub struct Proc {
    root: PathBuf,
}

impl Default for Proc {
    fn default() -> Self {
        Self::at("/proc")
    }
}

impl Proc {
    /// The one that is mounted, or a copy, at `root`.
    #[must_use]
    pub fn at(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// One process; `None`: not there.
    #[must_use]
    pub fn stat(&self, pid: i32) -> Option<Stat> {
        let bytes = text::bytes(&self.of(pid, "stat")).ok()?;
        Stat::parse(&String::from_utf8_lossy(&bytes))
    }

    /// Everybody, in no order. Takes some 10 µs a process.
    #[must_use]
    pub fn scan(&self) -> Vec<Stat> {
        let Ok(entries) = fs::read_dir(&self.root) else { return Vec::new() };
        let mut pids: Vec<i32> =
            entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
        // The listing is of one moment, and the newest are the soonest gone: they are read first.
        pids.reverse();
        pids.into_iter().filter_map(|pid| self.stat(pid)).collect()
    }

    /// A reader of one process's resident size that keeps its file open; `None`: not there.
    #[must_use]
    pub fn resident(&self, pid: i32) -> Option<Resident> {
        File::open(self.of(pid, "statm")).ok().map(|file| Resident { file })
    }

    /// The largest resident size that a living process ever had, in bytes; `None` for a zombie.
    #[must_use]
    pub fn high_water(&self, pid: i32) -> Option<u64> {
        let status = text::bytes(&self.of(pid, "status")).ok()?;
        let status = String::from_utf8_lossy(&status);
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
        line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
    }

    /// The kernel function in which a process waits; `None`: it runs, or we may not know.
    #[must_use]
    pub fn wait_channel(&self, pid: i32) -> Option<String> {
        let name = text::text(&self.of(pid, "wchan")).ok()?;
        (!name.is_empty() && name != "0").then_some(name)
    }

    /// The number given to the newest process of this pid namespace.
    #[must_use]
    pub fn last_pid(&self) -> Option<i32> {
        text::text(&self.root.join("loadavg")).ok()?.split_ascii_whitespace().last()?.parse().ok()
    }

    /// The host's count of OOM kills since boot.
    #[must_use]
    pub fn oom_kills(&self) -> Option<u64> {
        let stats = text::text(&self.root.join("vmstat")).ok()?;
        stats.lines().find_map(|line| line.strip_prefix("oom_kill "))?.trim().parse().ok()
    }

    fn of(&self, pid: i32, file: &str) -> PathBuf {
        self.root.join(pid.to_string()).join(file)
    }
}

/// An open `statm`: bound to the process, not to its number, and 1 µs a reading.
#[derive(Debug)]
pub struct Resident {
    file: File,
}

impl Resident {
    /// Resident bytes now, shared pages included; `None`: the process is gone.
    #[must_use]
    pub fn bytes(&self) -> Option<u64> {
        let mut buffer = [0_u8; 128];
        let length = self.file.read_at(&mut buffer, 0).ok()?;
        let text = std::str::from_utf8(buffer.get(..length)?).ok()?;
        text.split_ascii_whitespace().nth(1)?.parse::<u64>().ok()?.checked_mul(page_size())
    }
}

/// Bytes a page.
fn page_size() -> u64 {
    let size = nix::unistd::sysconf(nix::unistd::SysconfVar::PAGE_SIZE).ok().flatten();
    size.and_then(|size| u64::try_from(size).ok()).unwrap_or(4096)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: &str = "4711 (a) b (c) S 12 4711 4710 0 -1 4194368 100 0 3 0 5 6 0 0 20 0 3 0 987654 1000 200 \
                        18446744073709551615";

    #[test]
    fn a_name_with_parentheses_and_spaces_does_not_shift_the_fields() {
        let stat = Stat::parse(LINE).unwrap();
        assert_eq!((stat.pid, stat.comm.as_str(), stat.state), (4711, "a) b (c", 'S'));
        assert_eq!((stat.ppid, stat.pgrp, stat.session, stat.threads, stat.start), (12, 4711, 4710, 3, 987_654));
        assert!(stat.before_exec() && stat.is_alive());
        assert_eq!(Stat::parse("4711 (x) S"), None);
    }

    #[test]
    fn a_zombie_leader_with_running_threads_is_alive() {
        let leader = Stat::parse(&LINE.replace(" S ", " Z ")).unwrap();
        assert!(leader.is_alive());
        assert!(!Stat { threads: 1, ..leader }.is_alive());
    }

    #[test]
    fn files_are_read_below_the_given_root() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir(root.path().join("7")).unwrap();
        fs::write(root.path().join("7/status"), "Name:\tx\nVmHWM:\t    2048 kB\n").unwrap();
        fs::write(root.path().join("7/statm"), "100 25 3 1 0 9 0\n").unwrap();
        fs::write(root.path().join("loadavg"), "0.1 0.2 0.3 2/300 4242\n").unwrap();
        fs::write(root.path().join("vmstat"), "nr_free 1\noom_kill 17\n").unwrap();
        let proc = Proc::at(root.path());
        assert_eq!(proc.high_water(7), Some(2048 * 1024));
        assert_eq!(proc.resident(7).and_then(|reader| reader.bytes()), Some(25 * page_size()));
        assert_eq!((proc.last_pid(), proc.oom_kills()), (Some(4242), Some(17)));
        assert_eq!(proc.stat(7), None);
    }

    #[test]
    fn this_process_is_found_after_its_exec() {
        let proc = Proc::default();
        let own = i32::try_from(std::process::id()).unwrap();
        let stat = proc.scan().into_iter().find(|stat| stat.pid == own).unwrap();
        assert!(!stat.before_exec() && stat.is_alive());
    }
}
