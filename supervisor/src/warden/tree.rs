//! Who belongs to which attempt where there is no cgroup to say so.
//!
//! Members are known by (pid, start time). Somebody belongs to a family when its parent does, or when its session or
//! process group is that of a member, living or dead (the kernel gives a number to nobody else while a session or group
//! bears it). What is reparented to the warden and fits nowhere is an orphan: it belongs to the one attempt that was
//! alive at its birth, or, when there were several, is killed as soon as all of those have ended.
//!
//! Killing is scan, signal at sight, and *chase*: after a scan the newest pids are looked at directly, because a chain of
//! forks makes a generation in 0.15 ms and a scan takes 1 to 3 ms. A tree is gone when two scans find nobody and no process
//! was made meanwhile, or on a busy host after 12 scans and chases in a row that found nobody. Every signal goes through a
//! pidfd whose start time was checked. Limit, documented: a job that makes sessions and forks at full speed while other
//! jobs run cannot be attributed generation by generation; cgroups can.

mod halt;

use std::collections::BTreeMap;
use std::collections::BTreeSet;
use std::collections::HashMap;
use std::collections::HashSet;
use std::os::fd::AsFd;
use std::time::Duration;
use std::time::Instant;

use nix::sys::signal::Signal;

use halt::Halt;

use super::message::Key;
use crate::domain::clock;
use crate::kernel::proc::Proc;
use crate::kernel::proc::Resident;
use crate::kernel::proc::Stat;
use crate::kernel::process;

/// How often a family is looked for at least, costs permitting.
pub(super) const LOOK_EVERY: Duration = Duration::from_millis(200);

/// Scans take at most this part of one core.
const LOOK_SHARE: u32 = 20;

/// Scans in one step of a kill.
const SCANS: u32 = 4;

/// Quiet scans that count as "gone" on a host where processes are made all the time.
const QUIET_SCANS: u32 = 12;

/// Looks at the newest pids without finding anybody that end a chase.
const QUIET_PROBES: u32 = 50;

/// Longest chase in one round.
const CHASE: Duration = Duration::from_millis(10);

/// The processes of one attempt.
#[derive(Debug, Default)]
struct Family {
    main: i32,
    start: u64,
    known: HashMap<i32, u64>,
    living: Vec<Stat>,
    readers: HashMap<i32, Resident>,
    quiet: u32,
}

impl Family {
    fn claims(&self, stat: &Stat) -> bool {
        stat.start >= self.start
            && [stat.ppid, stat.session, stat.pgrp].iter().any(|number| self.known.contains_key(number))
    }

    /// Learns from a scan that is sorted by start time.
    fn learn(&mut self, census: &[Stat], starts: &HashMap<i32, u64>) {
        // A number that now belongs to somebody else proves nothing any more.
        self.known.retain(|pid, start| starts.get(pid).is_none_or(|now| now == start));
        while census.iter().filter(|stat| self.meet(stat)).count() > 0 {}
        let ours: Vec<&Stat> = census.iter().filter(|stat| self.known.contains_key(&stat.pid)).collect();
        let borne: HashSet<i32> = ours.iter().flat_map(|stat| [stat.pid, stat.session, stat.pgrp]).collect();
        self.living = ours.into_iter().filter(|stat| stat.is_alive()).cloned().collect();
        self.known.retain(|pid, _| borne.contains(pid));
        self.readers.retain(|pid, _| starts.contains_key(pid));
    }

    /// Takes somebody in; `true`: it is new.
    fn meet(&mut self, stat: &Stat) -> bool {
        !self.known.contains_key(&stat.pid) && self.claims(stat) && self.known.insert(stat.pid, stat.start).is_none()
    }
}

/// How a tree stands after a step of killing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Felled {
    /// Nobody is left.
    Gone,
    /// Come back in a millisecond or so.
    Dying,
}

/// A child of the warden that fits into no family.
#[derive(Debug)]
struct Orphan {
    /// The attempts that were alive at its birth.
    candidates: BTreeSet<Key>,
    /// When it was first seen, in tellings of `foreign`: only a later one proves that no cgroup accounts for it.
    told: u64,
}

/// All families of one warden.
#[derive(Debug)]
pub(super) struct Forest {
    proc: Proc,
    own: i32,
    families: BTreeMap<Key, Family>,
    orphans: HashMap<(i32, u64), Orphan>,
    /// Children of the warden that some cgroup accounts for; empty: there is none with a cgroup.
    foreign: HashSet<i32>,
    /// How often `foreign` was told.
    told: u64,
    looked: Option<(Instant, Duration)>,
    /// The newest pid before the last look began.
    newest: Option<i32>,
    /// The look before it began with the same one.
    calm: bool,
    /// Orphans of the last look that may belong to several attempts.
    strays: Vec<Stat>,
    halt: Halt,
}

impl Forest {
    pub(super) fn new(proc: Proc) -> Self {
        let own = process::own_pid();
        Self {
            proc,
            own,
            families: BTreeMap::new(),
            orphans: HashMap::new(),
            foreign: HashSet::new(),
            told: 0,
            looked: None,
            newest: None,
            calm: false,
            strays: Vec::new(),
            halt: Halt::default(),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.families.is_empty()
    }

    /// Begins to watch the tree of `pid`, a child that is not reaped.
    pub(super) fn plant(&mut self, key: Key, pid: i32) {
        let stat = self.proc.stat(pid);
        let start = stat.as_ref().map_or(0, |stat| stat.start);
        let mut family = Family { main: pid, start, living: stat.into_iter().collect(), ..Family::default() };
        family.known.insert(pid, start);
        family.readers.extend(self.proc.resident(pid).map(|reader| (pid, reader)));
        self.families.insert(key, family);
    }

    /// The attempt has ended. Orphans that can be nobody else's die at the next look.
    pub(super) fn uproot(&mut self, key: Key) {
        self.families.remove(&key);
        for orphan in self.orphans.values_mut() {
            orphan.candidates.remove(&key);
        }
        if !self.orphans.is_empty() {
            self.look();
        }
    }

    /// Says which processes belong to attempts that have a cgroup.
    pub(super) fn set_foreign(&mut self, foreign: HashSet<i32>) {
        self.foreign = foreign;
        self.told += 1;
    }

    /// Resident bytes of the tree as far as it is known.
    pub(super) fn resident(&self, key: Key) -> u64 {
        let readers = self.families.get(&key).into_iter().flat_map(|family| family.readers.values());
        readers.filter_map(Resident::bytes).sum()
    }

    /// The largest high-water mark among living members.
    pub(super) fn high_water(&self, key: Key) -> Option<u64> {
        self.living(key).iter().filter_map(|stat| self.proc.high_water(stat.pid)).max()
    }

    /// Who was alive at the last look.
    pub(super) fn living(&self, key: Key) -> &[Stat] {
        self.families.get(&key).map_or(&[], |family| &family.living)
    }

    /// Looks, unless that was done lately or would cost too much.
    pub(super) fn look_if_due(&mut self) {
        let due = self.looked.is_none_or(|(at, cost)| at.elapsed() >= LOOK_EVERY.max(cost * LOOK_SHARE) * 9 / 10);
        if due {
            self.look();
        }
    }

    /// Scans all processes and learns who belongs where; kills orphans that nobody living can have left.
    pub(super) fn look(&mut self) {
        let begun = clock::monotonic();
        let newest = self.proc.last_pid();
        self.calm = newest.is_some() && newest == self.newest;
        self.newest = newest;
        let mut census = self.proc.scan();
        census.sort_unstable_by_key(|stat| (stat.start, stat.pid));
        let starts: HashMap<i32, u64> = census.iter().map(|stat| (stat.pid, stat.start)).collect();
        self.learn(&census, &starts);
        if self.sort_orphans(&census) {
            self.learn(&census, &starts);
        }
        for family in self.families.values_mut() {
            for stat in &family.living {
                if !family.readers.contains_key(&stat.pid) {
                    family.readers.extend(self.proc.resident(stat.pid).map(|reader| (stat.pid, reader)));
                }
            }
        }
        self.looked = Some((clock::monotonic(), begun.elapsed()));
    }

    fn learn(&mut self, census: &[Stat], starts: &HashMap<i32, u64>) {
        for family in self.families.values_mut() {
            family.learn(census, starts);
        }
    }

    /// `true`: a family got new members.
    fn sort_orphans(&mut self, census: &[Stat]) -> bool {
        let known = |stat: &Stat| self.families.values().any(|family| family.known.contains_key(&stat.pid));
        let stray = |stat: &&Stat| stat.ppid == self.own && !self.foreign.contains(&stat.pid) && !known(stat);
        let strays: Vec<Stat> = census.iter().filter(stray).filter(|stat| stat.is_alive()).cloned().collect();
        let present: HashSet<(i32, u64)> = strays.iter().map(|stat| (stat.pid, stat.start)).collect();
        self.orphans.retain(|identity, _| present.contains(identity));
        let mut grown = false;
        self.strays.clear();
        let (told, sure) = (self.told, self.foreign.is_empty());
        for stat in strays {
            let elders = self.families.iter().filter(|(_, family)| family.start <= stat.start).map(|(key, _)| *key);
            let identity = (stat.pid, stat.start);
            let orphan = self.orphans.entry(identity).or_insert_with(|| Orphan { candidates: elders.collect(), told });
            if !sure && orphan.told == told {
                continue;
            }
            let first = orphan.candidates.first().and_then(|key| self.families.get_mut(key));
            match (orphan.candidates.len(), first) {
                (0, _) | (_, None) => self.signal(stat.pid, stat.start, Signal::SIGKILL),
                (1, Some(family)) => grown |= family.known.insert(stat.pid, stat.start).is_none(),
                (_, Some(_)) => self.strays.push(stat),
            }
        }
        grown
    }

    /// Signals who has this number only if it is still the same process.
    fn signal(&self, pid: i32, start: u64, signal: Signal) {
        let Ok(pidfd) = process::pidfd_open(pid) else { return };
        if self.proc.stat(pid).is_some_and(|now| now.start == start) {
            // Gone already, or of a user whom we may not signal: the next scan tells.
            process::pidfd_signal(pidfd.as_fd(), signal as i32).unwrap_or_default();
        }
    }

    /// One step of killing a whole tree, main process included.
    pub(super) fn fell(&mut self, key: Key) -> Felled {
        if self.living(key).is_empty() && self.nobody_new() {
            return Felled::Gone;
        }
        for _ in 0..SCANS {
            self.look();
            let still = self.nobody_new();
            self.strike(key);
            // Where processes are made meanwhile, one of a chain can be born behind a scan and be dead before its turn: a
            // scan that finds nobody says little until the newest were looked at too.
            let caught = !still && self.chase(|forest, pid| forest.catch(key, pid));
            let Some(family) = self.families.get_mut(&key) else { return Felled::Gone };
            if caught || !family.living.is_empty() {
                family.quiet = 0;
                return Felled::Dying;
            }
            family.quiet += 1;
            if still || family.quiet >= QUIET_SCANS {
                return Felled::Gone;
            }
        }
        Felled::Dying
    }

    /// Whether no process was made since before the last two looks: then the last one missed nobody. One look is not
    /// enough: a number is given before its process can be seen, and its parent may end between the listing and its turn.
    fn nobody_new(&self) -> bool {
        self.calm && self.proc.last_pid() == self.newest
    }

    /// Kills who was found at the last look.
    fn strike(&self, key: Key) {
        for stat in self.living(key) {
            self.signal(stat.pid, stat.start, Signal::SIGKILL);
        }
    }

    /// Looks at the newest pids only, and signals at sight by `catch`; `true`: somebody was there.
    fn chase(&mut self, mut catch: impl FnMut(&mut Self, i32) -> bool) -> bool {
        let begun = clock::monotonic();
        let mut quiet = 0;
        let mut caught = false;
        while quiet < QUIET_PROBES && begun.elapsed() < CHASE {
            quiet += 1;
            let Some(last) = self.proc.last_pid() else { break };
            for pid in (last.saturating_sub(8)..=last.saturating_add(3)).rev() {
                if catch(self, pid) {
                    quiet = 0;
                    caught = true;
                }
            }
        }
        caught
    }

    /// Kills `pid` if it belongs to the family; `true`: it did.
    fn catch(&mut self, key: Key, pid: i32) -> bool {
        let Some(stat) = self.proc.stat(pid).filter(Stat::is_alive) else { return false };
        let alone = self.families.len() == 1;
        let stray = stat.ppid == self.own && alone && self.foreign.is_empty();
        let Some(family) = self.families.get_mut(&key) else { return false };
        let ours = family.known.get(&pid) == Some(&stat.start) || family.claims(&stat);
        if ours || (stray && stat.start >= family.start) {
            family.known.insert(pid, stat.start);
            self.signal(pid, stat.start, Signal::SIGKILL);
            return true;
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stat(pid: i32, ppid: i32, session: i32, start: u64) -> Stat {
        let comm = format!("p{pid}");
        Stat { pid, comm, state: 'S', ppid, pgrp: session, session, flags: 0, threads: 1, start }
    }

    fn learn(family: &mut Family, census: &[Stat]) -> Vec<i32> {
        let starts = census.iter().map(|stat| (stat.pid, stat.start)).collect();
        family.learn(census, &starts);
        family.living.iter().map(|stat| stat.pid).collect()
    }

    fn family() -> Family {
        Family { start: 100, known: HashMap::from([(10, 100)]), ..Family::default() }
    }

    #[test]
    fn children_sessions_and_groups_belong_and_strangers_do_not() {
        let mut family = family();
        let census = [
            stat(9, 1, 9, 50),
            stat(10, 1, 10, 100),
            stat(11, 10, 10, 101),
            stat(12, 11, 12, 102),
            stat(13, 1, 12, 103),
            stat(14, 1, 14, 104),
        ];
        assert_eq!(learn(&mut family, &census), [10, 11, 12, 13]);
    }

    #[test]
    fn a_child_is_found_even_when_the_clock_put_it_before_its_parent() {
        let census = [stat(10, 1, 10, 100), stat(3, 12, 3, 101), stat(12, 10, 12, 101)];
        assert_eq!(learn(&mut family(), &census), [10, 3, 12]);
    }

    #[test]
    fn a_session_is_remembered_after_its_leader_and_forgotten_after_its_last_member() {
        let mut family = family();
        learn(&mut family, &[stat(10, 1, 10, 100), stat(12, 10, 12, 101), stat(13, 12, 12, 102)]);
        assert_eq!(learn(&mut family, &[stat(13, 1, 12, 102), stat(14, 1, 12, 103)]), [13, 14]);
        assert_eq!(learn(&mut family, &[]), [0_i32; 0]);
        // The numbers 10 and 12 are free now, and whoever gets them is a stranger.
        assert_eq!(learn(&mut family, &[stat(12, 1, 12, 200), stat(15, 12, 12, 201)]), [0_i32; 0]);
    }

    #[test]
    fn a_number_that_was_given_to_somebody_else_proves_nothing() {
        let mut family = family();
        learn(&mut family, &[stat(10, 1, 10, 100), stat(12, 10, 12, 101)]);
        assert_eq!(learn(&mut family, &[stat(10, 1, 10, 100), stat(12, 1, 12, 300), stat(15, 12, 12, 301)]), [10]);
    }

    #[test]
    fn an_orphan_waits_for_all_that_may_have_left_it() {
        let mut forest = Forest::new(Proc::at("/nowhere"));
        let own = forest.own;
        forest.families.insert(1, family());
        forest.families.insert(2, Family { start: 120, known: HashMap::from([(20, 120)]), ..Family::default() });
        // Born before the second attempt: it can only be of the first. Born after both: it may be of either.
        let census = [stat(30, own, 30, 110), stat(31, own, 31, 130)];
        assert!(forest.sort_orphans(&census));
        assert!(forest.families.get(&1).unwrap().known.contains_key(&30));
        assert_eq!(forest.orphans.get(&(31, 130)).unwrap().candidates.len(), 2);
        forest.uproot(1);
        assert!(!forest.families.get(&2).unwrap().known.contains_key(&31));
    }

    #[test]
    fn an_orphan_that_a_leaf_may_account_for_is_nobodys_until_that_was_told_again() {
        let mut forest = Forest::new(Proc::at("/nowhere"));
        let own = forest.own;
        forest.families.insert(1, family());
        forest.set_foreign(HashSet::from([40]));
        let census = [stat(40, own, 40, 110), stat(41, own, 41, 111)];
        assert!(!forest.sort_orphans(&census), "not told since it was first seen");
        forest.set_foreign(HashSet::from([40, 41]));
        assert!(!forest.sort_orphans(&census), "it is of a leaf");
        forest.set_foreign(HashSet::from([40]));
        assert!(!forest.sort_orphans(&census));
        forest.set_foreign(HashSet::from([40]));
        assert!(forest.sort_orphans(&census));
    }
}
