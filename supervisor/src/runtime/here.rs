//! Who this supervisor is: what tells its process, its state folder and its boot from all others.
//!
//! Names and pids are used again, by containers above all, so they prove nothing (D6). What proves a predecessor gone is
//! [`Here::has_survived`]: it worked from this very state folder, whose lock we hold and its warden's children would still
//! hold, and its process is not there any more.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use uuid::Uuid;

use crate::config::Config;
use crate::kernel::KernelError;
use crate::kernel::durable;
use crate::kernel::host;
use crate::kernel::proc::Proc;
use crate::store::Identity;
use crate::store::TermRow;

/// See the module's head.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Here {
    /// `[supervisor] name`.
    pub name: String,
    /// Host name.
    pub host: String,
    /// Its pid.
    pub pid: i32,
    /// This boot.
    pub boot_id: String,
    /// State folder and process.
    pub identity: Identity,
}

/// What of it could not be found out.
#[derive(Debug, thiserror::Error)]
pub enum HereError {
    /// The boot id.
    #[error("cannot tell which boot this is")]
    Boot(#[source] KernelError),
    /// The own process.
    #[error("cannot tell which process this is")]
    Process(#[source] io::Error),
    /// The id of the state folder.
    #[error("cannot read or make the id of the state folder `{folder}`")]
    State {
        /// The folder.
        folder: String,
        /// The system's error.
        #[source]
        source: io::Error,
    },
}

impl Here {
    /// Finds out. The caller holds the lock of the state folder; its id is made when it is first asked for.
    ///
    /// # Errors
    /// As the variants say.
    pub fn find(config: &Config) -> Result<Self, HereError> {
        let folder = &config.supervisor.state_dir;
        let state = |source| HereError::State { folder: folder.display().to_string(), source };
        let pid = i32::try_from(std::process::id()).unwrap_or(0);
        let stat = Proc::default().stat(pid).ok_or_else(|| HereError::Process(io::ErrorKind::NotFound.into()))?;
        Ok(Self {
            name: config.supervisor.name.clone(),
            host: host::name(),
            pid,
            boot_id: host::boot_id(Path::new("/proc")).map_err(HereError::Boot)?,
            identity: Identity {
                state_id: state_id(folder).map_err(state)?,
                pid_ns: fs::metadata("/proc/self/ns/pid").map_err(HereError::Process)?.ino(),
                start_time: stat.start,
            },
        })
    }

    /// Whether a term was begun from this state folder, under this name, on this host.
    #[must_use]
    pub fn is_predecessor(&self, row: &TermRow) -> bool {
        let same_folder = !row.identity.state_id.is_empty() && row.identity.state_id == self.identity.state_id;
        same_folder && row.name == self.name && row.host == self.host
    }

    /// Whether the host was started anew since a term of ours was begun. Another host's boot id proves nothing.
    #[must_use]
    pub fn has_rebooted_since(&self, row: &TermRow) -> bool {
        self.is_predecessor(row) && row.boot_id != self.boot_id
    }

    /// Whether whoever began a term is proven gone, and its children with it, so that its lease need not run out.
    #[must_use]
    pub fn has_survived(&self, row: &TermRow, proc: &Proc) -> bool {
        if row.boot_id != self.boot_id {
            return self.has_rebooted_since(row);
        }
        let same_folder = !row.identity.state_id.is_empty() && row.identity.state_id == self.identity.state_id;
        let same_pids = row.identity.pid_ns == self.identity.pid_ns;
        let lives = || proc.stat(row.pid).is_some_and(|stat| stat.start == row.identity.start_time && stat.is_alive());
        same_folder && same_pids && !lives()
    }
}

/// The number of a state folder, made once.
fn state_id(folder: &Path) -> io::Result<String> {
    let path = folder.join("id");
    let found = match fs::read_to_string(&path) {
        Ok(text) => text.trim().parse::<Uuid>().ok(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => return Err(error),
    };
    if let Some(id) = found {
        return Ok(id.to_string());
    }
    let id = Uuid::now_v7().to_string();
    durable::write(&path, id.as_bytes())?;
    Ok(id)
}

#[cfg(test)]
pub(super) mod tests {
    use std::time::Duration;

    use super::*;
    use crate::domain::clock;
    use crate::domain::ids::Term;

    /// A supervisor that is this very process.
    pub(in crate::runtime) fn here() -> Here {
        let pid = i32::try_from(std::process::id()).unwrap();
        let start_time = Proc::default().stat(pid).unwrap().start;
        Here {
            name: "here".to_owned(),
            host: "host".to_owned(),
            pid,
            boot_id: "this boot".to_owned(),
            identity: Identity { state_id: "folder".to_owned(), pid_ns: 7, start_time },
        }
    }

    /// The row of a term that `here` began.
    pub(in crate::runtime) fn row(here: &Here) -> TermRow {
        TermRow {
            term: Term::new(),
            name: here.name.clone(),
            host: here.host.clone(),
            pid: here.pid,
            boot_id: here.boot_id.clone(),
            started_at: clock::now(),
            last_seen: clock::now(),
            ended_at: None,
            lost_at: None,
            expired: false,
            beat: 1,
            lease: Duration::from_secs(30),
            identity: here.identity.clone(),
            version: String::new(),
            kinds: Vec::new(),
            snapshot: None,
        }
    }

    #[test]
    fn d6_a_predecessor_is_gone_by_folder_and_process_or_folder_and_boot_and_never_by_its_name() {
        let (here, proc) = (here(), Proc::default());
        let change = |change: &dyn Fn(&mut TermRow)| {
            let mut row = row(&here);
            change(&mut row);
            (here.has_survived(&row, &proc), here.has_rebooted_since(&row))
        };
        let dead = |row: &mut TermRow| row.identity.start_time += 1;
        assert_eq!(change(&|_| ()), (false, false), "it lives: it is this process");
        assert_eq!(change(&dead), (true, false), "the pid is somebody else's now");
        assert_eq!(
            change(&|row| {
                dead(row);
                row.identity.state_id = "another folder".to_owned();
            }),
            (false, false),
            "same host name, same pid, another folder"
        );
        assert_eq!(
            change(&|row| {
                dead(row);
                row.identity.pid_ns = 8;
            }),
            (false, false),
            "its pid means nothing in our pid namespace"
        );
        assert_eq!(
            change(&|row| {
                dead(row);
                row.identity.state_id = String::new();
            }),
            (false, false),
            "a term that does not tell"
        );
        let other_boot = |row: &mut TermRow| row.boot_id = "another boot".to_owned();
        assert_eq!(change(&other_boot), (true, true), "the host was started anew");
        assert_eq!(
            change(&|row| {
                other_boot(row);
                row.host = "another host".to_owned();
            }),
            (false, false),
            "another host's boot proves nothing"
        );
        assert_eq!(
            change(&|row| {
                other_boot(row);
                row.identity.state_id = "another folder".to_owned();
            }),
            (false, false)
        );
    }

    #[test]
    fn the_id_of_a_folder_is_made_once() {
        let folder = tempfile::tempdir().unwrap();
        let id = state_id(folder.path()).unwrap();
        assert_eq!(state_id(folder.path()).unwrap(), id);
        fs::write(folder.path().join("id"), "half").unwrap();
        assert_ne!(state_id(folder.path()).unwrap(), id, "one that is none is replaced");
    }
}
