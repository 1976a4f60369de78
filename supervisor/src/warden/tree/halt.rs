//! Stopping all trees where there is no freezer, and letting them go on.
//!
//! The main process's group was signalled before; the rest is as in a kill: scan, SIGSTOP at sight, chase, until a scan finds nobody
//! on the move and no process was made meanwhile. Who is stopped is known by (pid, start time); SIGCONT goes to these alone,
//! so that what a job had stopped itself stays so, as far as that was seen before the group's signal. An orphan that may
//! belong to several attempts is stopped too: all of them are.

use std::collections::HashMap;
use std::collections::HashSet;

use nix::sys::signal::Signal;

use super::Forest;
use super::QUIET_SCANS;
use super::SCANS;
use crate::kernel::proc::Stat;

/// Who stands still, and by whom.
#[derive(Debug, Default)]
pub(super) struct Halt {
    /// Whom we stopped.
    halted: HashMap<i32, u64>,
    /// Who had stopped before.
    resting: HashMap<i32, u64>,
    /// Whom we let go on again.
    resumed: HashSet<(i32, u64)>,
    /// Scans in a row that found nobody on the move.
    quiet: u32,
}

/// Stopped, traced or dead: nothing runs.
const fn at_rest(stat: &Stat) -> bool {
    matches!(stat.state, 'T' | 't' | 'Z' | 'X')
}

impl Forest {
    /// Notes who has stopped by itself. To be called before the first signal.
    pub(in crate::warden) fn note_resting(&mut self) {
        self.halt.quiet = 0;
        self.halt.resumed.clear();
        let living = self.families.values().flat_map(|family| &family.living);
        let before = living.filter(|stat| self.halt.halted.get(&stat.pid) != Some(&stat.start));
        let now = before.filter_map(|stat| self.proc.stat(stat.pid).filter(|now| now.start == stat.start));
        self.halt.resting = now.filter(|stat| stat.state == 'T').map(|stat| (stat.pid, stat.start)).collect();
    }

    /// One step of stopping every tree; `true`: all stand still, as far as can be known.
    pub(in crate::warden) fn halt(&mut self) -> bool {
        if self.halt.quiet > 0 && self.nobody_new() {
            return true;
        }
        for _ in 0..SCANS {
            self.look();
            let still = self.nobody_new();
            let moved = self.hold();
            let caught = !still && self.chase(Self::hold_at_sight);
            if moved || caught {
                self.halt.quiet = 0;
                return false;
            }
            self.halt.quiet += 1;
            if still || self.halt.quiet >= QUIET_SCANS {
                return true;
            }
        }
        false
    }

    /// One step of letting every tree go on; `true`: nobody is kept any more.
    pub(in crate::warden) fn resume(&mut self) -> bool {
        let halted = std::mem::take(&mut self.halt.halted);
        for (pid, start) in &halted {
            self.signal(*pid, *start, Signal::SIGCONT);
            self.halt.resumed.insert((*pid, *start));
        }
        // Of a group that was stopped as one somebody may never have been seen.
        self.look();
        let mut missed = false;
        for stat in self.everybody() {
            let (pid, start) = (stat.pid, stat.start);
            let rests = self.halt.resting.get(&pid) == Some(&start);
            if stat.state == 'T' && self.is_of_main_group(&stat) && !rests && self.halt.resumed.insert((pid, start)) {
                self.signal(pid, start, Signal::SIGCONT);
                missed = true;
            }
        }
        halted.is_empty() && !missed
    }

    /// Everybody who belongs to an attempt, or to one of several.
    fn everybody(&self) -> Vec<Stat> {
        self.families.values().flat_map(|family| &family.living).chain(&self.strays).cloned().collect()
    }

    /// Whether the signals that go to main processes and their groups reached it. A main process has its group from its session on.
    fn is_of_main_group(&self, stat: &Stat) -> bool {
        self.families.values().any(|family| family.main == stat.pgrp || family.main == stat.pid)
    }

    /// Stops who was found at the last look; `true`: somebody was not at rest.
    fn hold(&mut self) -> bool {
        let mut moved = false;
        for stat in self.everybody() {
            let (pid, start) = (stat.pid, stat.start);
            if self.halt.resting.get(&pid) == Some(&start) {
                continue;
            }
            let known = self.halt.halted.get(&pid) == Some(&start);
            if !known && stat.state == 'T' && !self.is_of_main_group(&stat) {
                self.halt.resting.insert(pid, start);
                continue;
            }
            if !known || !at_rest(&stat) {
                self.signal(pid, start, Signal::SIGSTOP);
                self.halt.halted.insert(pid, start);
                moved = true;
            }
        }
        moved
    }

    /// Stops `pid` if it belongs to anybody's tree and was not met before; `true`: it was stopped.
    fn hold_at_sight(&mut self, pid: i32) -> bool {
        let Some(stat) = self.proc.stat(pid).filter(Stat::is_alive) else { return false };
        let met = |map: &HashMap<i32, u64>| map.get(&pid) == Some(&stat.start);
        if met(&self.halt.halted) || met(&self.halt.resting) {
            return false;
        }
        let stray = stat.ppid == self.own && self.foreign.is_empty();
        let mut ours = stray && self.families.values().any(|family| stat.start >= family.start);
        for family in self.families.values_mut() {
            if family.known.get(&pid) == Some(&stat.start) || family.claims(&stat) {
                family.known.insert(pid, stat.start);
                ours = true;
            }
        }
        if ours {
            self.signal(pid, stat.start, Signal::SIGSTOP);
            self.halt.halted.insert(pid, stat.start);
        }
        ours
    }
}
