//! The facts that stand beside an ending: what a reader should know and no rule took for the cause.

use super::super::cause::Cause;
use super::super::evidence::{Evidence, LastWord, Leftover, Loss, ProcessEvidence};
use super::super::readings;
use super::Ending;

/// Each fact as one sentence, in the order of weight.
pub(super) fn contributing(e: &Evidence, ending: Ending) -> Vec<String> {
    let mut facts = Vec::new();
    if let Some(p) = &e.process {
        kernel_facts(p, ending, &mut facts);
        process_facts(p, &mut facts);
    }
    said_facts(e, ending, &mut facts);
    facts
}

fn kernel_facts(p: &ProcessEvidence, ending: Ending, facts: &mut Vec<String>) {
    if readings::oom_killed(p) && !ending.cause().is_some_and(Cause::is_oom) {
        facts.push("the kernel's OOM killer had struck in the job's group before the end".to_owned());
    }
    let late = readings::late_oom_kills(p);
    if late > 0 {
        facts
            .push("the kernel's OOM killer struck a leftover process while the leftovers were being killed".to_owned());
    }
    if readings::oomd_marked(p) && ending != Ending::Failed(Cause::OomOomd) {
        facts.push("systemd-oomd had marked the job's group or one above it".to_owned());
    }
    if ending == Ending::Failed(Cause::Timeout) {
        if let Some(hits) = readings::moved(p, |c| c.limit_hits).filter(|n| *n > 0) {
            facts.push(format!("memory was short: the limit was hit {hits} times while it ran"));
        }
        if let Some(high) = readings::moved(p, |c| c.high).filter(|n| *n > 0) {
            facts.push(format!("it was throttled by `memory.high` {high} times"));
        }
    }
    if let Some(hits) = readings::moved(p, |c| c.pids_max_hits).filter(|n| *n > 0) {
        facts.push(format!("the limit on processes refused {hits} forks"));
    }
}

fn process_facts(p: &ProcessEvidence, facts: &mut Vec<String>) {
    if p.frozen_s > 0.0 {
        let frozen = super::super::explain::seconds(p.frozen_s);
        facts.push(format!("frozen for {frozen} while its supervisor could not renew its lease"));
    }
    if !p.leftovers.is_empty() {
        facts.push(format!("processes outlived the main one and were killed: {}", names(&p.leftovers)));
    }
    if !p.unkillable.is_empty() {
        facts.push(format!("processes that do not die of SIGKILL: {}", names(&p.unkillable)));
    }
}

fn names(processes: &[Leftover]) -> String {
    const SHOWN: usize = 8;
    let mut names: Vec<_> = processes.iter().take(SHOWN).map(one_name).collect();
    if processes.len() > SHOWN {
        names.push(format!("and {} more", processes.len() - SHOWN));
    }
    names.join(", ")
}

fn one_name(process: &Leftover) -> String {
    let Leftover { pid, comm, stuck_in } = process;
    match stuck_in {
        Some(place) => format!("{comm} (pid {pid}, stuck in {place})"),
        None => format!("{comm} (pid {pid})"),
    }
}

fn said_facts(e: &Evidence, ending: Ending, facts: &mut Vec<String>) {
    if ending.cause().is_some() {
        match &e.said.last_word {
            Some(LastWord::Done) => facts.push("a complete result had been delivered".to_owned()),
            Some(LastWord::Failed { message, .. }) if !said_so(ending) => {
                facts.push(format!("the job had said that it failed: {message}"));
            }
            Some(LastWord::Failed { .. } | LastWord::Snooze { .. }) | None => {}
        }
    }
    if let Some(violation) = e.said.violation.as_ref().filter(|_| ending != Ending::Failed(Cause::ProtocolError)) {
        facts.push(format!("the protocol was broken: {violation}"));
    }
    match &e.loss {
        Some(Loss::Supervisor { .. }) if ending != Ending::Failed(Cause::SupervisorLost) => {
            facts.push("the supervisor was lost as well".to_owned());
        }
        Some(Loss::Warden { .. }) if ending != Ending::Failed(Cause::WardenLost) => {
            facts.push("the warden was lost as well".to_owned());
        }
        Some(Loss::Host { .. }) if ending != Ending::Failed(Cause::HostRebooted) => {
            facts.push("the host was restarted before the end was recorded".to_owned());
        }
        Some(Loss::Supervisor { .. } | Loss::Warden { .. } | Loss::Host { .. }) | None => {}
    }
}

/// Endings that are what the job itself said; its message stands with the attempt.
const fn said_so(ending: Ending) -> bool {
    matches!(ending, Ending::Failed(Cause::JobError | Cause::AllocFailed))
}
