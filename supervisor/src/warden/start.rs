//! From a `Start` frame to a child between fork and `exec`: everything is prepared, limited and readable before the fork.

use std::ffi::CString;
use std::os::fd::AsFd;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use super::StartSpec;
use super::attempt::Attempt;
use super::attempt::Phase;
use super::attempt::after;
use super::attempt::now;
use super::frost::Frost;
use super::ground::Ground;
use super::message::Key;
use super::tmpdir;
use super::watchdog::Sampler;
use crate::domain::clock;
use crate::domain::evidence::Counters;
use crate::domain::evidence::Enforcement;
use crate::domain::evidence::ProcessEvidence;
use crate::domain::evidence::Stage;
use crate::domain::evidence::StartFailure;
use crate::domain::ids::Fence;
use crate::domain::units::Bytes;
use crate::kernel::KernelError;
use crate::kernel::cgroup::Entry;
use crate::kernel::cgroup::Leaf;
use crate::kernel::cgroup::LeafLimits;
use crate::kernel::socket;
use crate::kernel::spawn;
use crate::kernel::spawn::Doors;
use crate::kernel::spawn::Identity;
use crate::kernel::spawn::Plan;
use crate::kernel::spawn::Spawned;

/// Where programs are looked for when the environment has no `PATH`.
const DEFAULT_PATH: &str = "/usr/local/bin:/usr/bin:/bin";

/// A start that ended before there was a process.
#[derive(Debug)]
pub(super) struct Refused {
    /// Whose; `None`: the frame could not be read that far.
    pub(super) fence: Option<Fence>,
    /// With the step that failed.
    pub(super) evidence: Box<ProcessEvidence>,
}

/// A step that failed before the fork.
fn failure(step: &str, errno: Option<i32>, message: String) -> StartFailure {
    StartFailure { step: step.to_owned(), errno: errno.unwrap_or(nix::Error::EIO as i32), message }
}

/// An error with its sources, in one line.
fn chain(error: &dyn std::error::Error) -> String {
    std::iter::successors(error.source(), |error| error.source())
        .fold(error.to_string(), |line, source| format!("{line}: {source}"))
}

/// Starts the child of a `Start` frame: stdin, stdout, stderr and the specification came with it.
///
/// # Errors
/// The step that failed, as evidence; without `trusted` that is always `trust`.
pub(super) fn begin(
    ground: &mut Ground,
    key: Key,
    descriptors: Vec<OwnedFd>,
    trusted: bool,
) -> Result<Attempt, Refused> {
    let (spec, stdio) = read_spec(descriptors).map_err(|failure| refuse(None, failure, Enforcement::Watchdog))?;
    let fence = spec.fence;
    let enforcement = match &ground.tree {
        Some(tree) if !spec.watchdog => tree.enforcement(),
        Some(_) | None => Enforcement::Watchdog,
    };
    if !trusted {
        let message = "trust: the start came after the time for which the supervisor's lease was known to hold";
        let failure = failure(StartFailure::TRUST, Some(nix::Error::ETIMEDOUT as i32), message.to_owned());
        return Err(refuse(Some(fence), failure, enforcement));
    }
    start(ground, key, spec, &stdio, enforcement).map_err(|failure| refuse(Some(fence), failure, enforcement))
}

fn refuse(fence: Option<Fence>, failure: StartFailure, enforcement: Enforcement) -> Refused {
    let evidence = ProcessEvidence {
        enforcement,
        ended_at: Some(clock::now()),
        stage: Stage::NotForked,
        start_failure: Some(failure),
        ..ProcessEvidence::default()
    };
    Refused { fence, evidence: Box::new(evidence) }
}

fn read_spec(descriptors: Vec<OwnedFd>) -> Result<(StartSpec, [OwnedFd; 3]), StartFailure> {
    let Ok([stdin, stdout, stderr, file]) = <[OwnedFd; 4]>::try_from(descriptors) else {
        return Err(failure("spec", None, "a start needs four descriptors".to_owned()));
    };
    let bytes = socket::read_sealed(file).map_err(|error| failure("spec", error.raw_os_error(), error.to_string()))?;
    let spec = serde_json::from_slice(&bytes).map_err(|error| failure("spec", None, error.to_string()))?;
    Ok((spec, [stdin, stdout, stderr]))
}

fn start(
    ground: &mut Ground,
    key: Key,
    spec: StartSpec,
    stdio: &[OwnedFd; 3],
    enforcement: Enforcement,
) -> Result<Attempt, StartFailure> {
    ground.serial += 1;
    let name = format!("a{}-{}-{}", spec.fence.job, spec.fence.attempt, ground.serial);
    let folder = ground.state_dir.join("tmp").join(&name);
    let identity = find_identity(&spec)?;
    let plan = Plan { descriptors: ground.descriptors, ..plan(&spec, &folder, identity)? };
    let leaf = make_leaf(ground, &spec, &name)?;
    let made = tmpdir::make(&folder, plan.identity.as_ref())
        .map_err(|error| failure("tmpdir", error.raw_os_error(), format!("tmpdir `{}`: {error}", folder.display())));
    let evidence = before(ground, &spec, leaf.as_deref(), enforcement);
    let spawned = made.and_then(|()| {
        fork(&plan, stdio, leaf.as_deref()).map_err(|error| {
            // Empty and ours: what cannot be removed now is swept by the next warden.
            std::fs::remove_dir(&folder).unwrap_or_default();
            failure("fork", error.errno(), chain(&error))
        })
    });
    let spawned = match (spawned, &leaf) {
        (Ok(spawned), _) => spawned,
        (Err(failed), Some(leaf)) => {
            leaf.remove().unwrap_or_default();
            return Err(failed);
        }
        (Err(failed), None) => return Err(failed),
    };
    if leaf.is_none() {
        ground.forest.plant(key, spawned.pid);
    }
    Ok(attempt(key, spec, folder, leaf, spawned, evidence))
}

/// A leaf with the limit in force; `None`: the watchdog has to do.
fn make_leaf(ground: &Ground, spec: &StartSpec, name: &str) -> Result<Option<Box<dyn Leaf>>, StartFailure> {
    match &ground.tree {
        Some(tree) if !spec.watchdog => {
            let limits = LeafLimits { memory: spec.memory, pids: spec.pids };
            let made = tree.make_leaf(name, limits);
            made.map(Some).map_err(|error| failure("leaf", error.errno(), chain(&error)))
        }
        None if spec.require_cgroup => {
            let message = "the kind asks for `enforce = \"cgroup\"` and there is no cgroup that we may use";
            Err(failure("limit", Some(nix::Error::EOPNOTSUPP as i32), message.to_owned()))
        }
        Some(_) | None => Ok(None),
    }
}

/// All that has to be read before there is a process.
fn before(ground: &mut Ground, spec: &StartSpec, leaf: Option<&dyn Leaf>, enforcement: Enforcement) -> ProcessEvidence {
    ground.own_rss = ground.own_rss.max(ground.proc.high_water(crate::kernel::process::own_pid()).unwrap_or(0));
    let mut evidence = ProcessEvidence {
        enforcement,
        stage: Stage::BeforeExec,
        baseline: leaf.map_or_else(Counters::default, |leaf| leaf.counters()),
        ancestors: leaf.map(|leaf| leaf.ancestors()).unwrap_or_default(),
        host_oom_kills: (ground.proc.oom_kills(), None),
        ..ProcessEvidence::default()
    };
    evidence.memory.limit = Some(Bytes(spec.memory));
    evidence
}

/// How a process gets into this leaf.
pub(super) fn doors(leaf: &dyn Leaf) -> Doors<'_> {
    let into = match leaf.entry() {
        Entry::CloneInto(folder) => Some(folder),
        Entry::Write => None,
    };
    Doors { into, procs: leaf.procs_files() }
}

fn fork(plan: &Plan, stdio: &[OwnedFd; 3], leaf: Option<&dyn Leaf>) -> Result<Spawned, KernelError> {
    let [stdin, stdout, stderr] = stdio;
    let doors = leaf.map(doors).unwrap_or_default();
    spawn::spawn(plan, &[stdin.as_fd(), stdout.as_fd(), stderr.as_fd()], &doors)
}

/// An attempt whose child has just been forked.
pub(super) fn attempt(
    key: Key,
    spec: StartSpec,
    folder: std::path::PathBuf,
    leaf: Option<Box<dyn Leaf>>,
    spawned: Spawned,
    mut evidence: ProcessEvidence,
) -> Attempt {
    let born = now();
    evidence.pid = Some(spawned.pid);
    evidence.started_at = Some(clock::now());
    Attempt {
        key,
        deadline: after(born, spec.start_timeout_ms),
        sampler: Sampler::new(born, leaf.is_none()),
        spec,
        pid: spawned.pid,
        pidfd: spawned.pidfd,
        errno: Some(spawned.errno),
        leaf,
        folder,
        born,
        phase: Phase::Starting,
        evidence,
        kill_at: None,
        frost: Frost::default(),
        announced: false,
        killing: false,
        give_up_at: None,
        again: None,
    }
}

/// Turns the specification into what `exec` takes.
fn plan(spec: &StartSpec, folder: &Path, identity: Option<Identity>) -> Result<Plan, StartFailure> {
    let text = |step: &'static str, bytes: &[u8]| {
        CString::new(bytes).map_err(|_| {
            let shown = String::from_utf8_lossy(bytes).replace('\0', "\\0");
            failure(step, Some(nix::Error::EINVAL as i32), format!("{step}: `{shown}` holds a NUL byte"))
        })
    };
    let Some(program) = spec.argv.first() else {
        return Err(failure("exec", Some(nix::Error::ENOENT as i32), "exec: no program is named".to_owned()));
    };
    let added = [
        ("JOBVISOR_JOB_ID", spec.fence.job.to_string().into_bytes()),
        ("JOBVISOR_ATTEMPT", spec.fence.attempt.to_string().into_bytes()),
        ("TMPDIR", folder.as_os_str().as_bytes().to_vec()),
    ];
    let given = spec.env.iter().filter(|(name, _)| added.iter().all(|(ours, _)| name != ours));
    let given = given.map(|(name, value)| [name.as_bytes(), b"=", value.as_bytes()].concat());
    let added = added.iter().map(|(name, value)| [name.as_bytes(), b"=", value].concat());
    let path = spec.env.iter().find(|(name, _)| name == "PATH").map_or(DEFAULT_PATH, |(_, path)| path);
    let programs = candidates(program, path);
    Ok(Plan {
        programs: programs.iter().map(|program| text("exec", program)).collect::<Result<_, _>>()?,
        argv: spec.argv.iter().map(|word| text("exec", word.as_bytes())).collect::<Result<_, _>>()?,
        env: given.chain(added).map(|entry| text("exec", &entry)).collect::<Result<_, _>>()?,
        cwd: Some(text("cwd", spec.cwd.as_os_str().as_bytes())?),
        identity,
        nice: spec.nice,
        descriptors: None,
        contained: true,
    })
}

/// The paths to try; an empty folder in `PATH` is the working folder.
fn candidates(program: &str, path: &str) -> Vec<Vec<u8>> {
    if program.contains('/') {
        return vec![program.as_bytes().to_vec()];
    }
    let folder = |folder: &str| if folder.is_empty() { format!("./{program}") } else { format!("{folder}/{program}") };
    path.split(':').map(|part| folder(part).into_bytes()).collect()
}

/// Looks user and group up, by name or number. `None`: as the supervisor.
fn find_identity(spec: &StartSpec) -> Result<Option<Identity>, StartFailure> {
    if spec.user.is_none() && spec.group.is_none() {
        return Ok(None);
    }
    let missing = |kind: &str, name: &str| {
        failure("user", Some(nix::Error::ENOENT as i32), format!("user: there is no {kind} `{name}` on this host"))
    };
    let broken = |error: nix::Error| failure("user", Some(error as i32), format!("user: {error}"));
    let (own_uid, own_gid) = (nix::unistd::geteuid(), nix::unistd::getegid());
    let user = match &spec.user {
        Some(name) => Some(find_user(name).map_err(broken)?.ok_or_else(|| missing("user", name))?),
        None => None,
    };
    let gid = match &spec.group {
        Some(name) => find_group(name).map_err(broken)?.ok_or_else(|| missing("group", name))?.gid,
        None => user.as_ref().map_or(own_gid, |user| user.gid),
    };
    let uid = user.as_ref().map_or(own_uid, |user| user.uid);
    if uid == own_uid && gid == own_gid {
        return Ok(None);
    }
    let groups = match &user {
        Some(user) => {
            let name = CString::new(user.name.as_bytes()).map_err(|error| failure("user", None, error.to_string()))?;
            nix::unistd::getgrouplist(&name, gid).map_err(broken)?
        }
        None => vec![gid],
    };
    let groups = groups.into_iter().map(nix::unistd::Gid::as_raw).collect();
    Ok(Some(Identity { uid: uid.as_raw(), gid: gid.as_raw(), groups }))
}

fn find_user(name: &str) -> nix::Result<Option<nix::unistd::User>> {
    match name.parse() {
        Ok(number) => nix::unistd::User::from_uid(nix::unistd::Uid::from_raw(number)),
        Err(_) => nix::unistd::User::from_name(name),
    }
}

fn find_group(name: &str) -> nix::Result<Option<nix::unistd::Group>> {
    match name.parse() {
        Ok(number) => nix::unistd::Group::from_gid(nix::unistd::Gid::from_raw(number)),
        Err(_) => nix::unistd::Group::from_name(name),
    }
}
