//! From what was observed of an attempt to what the store has to record: judge, decide, describe. No I/O.

use jiff::Timestamp;

use crate::config::KindConfig;
use crate::config::Output;
use crate::domain::cause::Cause;
use crate::domain::evidence::Evidence;
use crate::domain::evidence::ExitMeaning;
use crate::domain::evidence::ExitStatus;
use crate::domain::evidence::Intent;
use crate::domain::evidence::IntentReason;
use crate::domain::evidence::Loss;
use crate::domain::evidence::ProcessEvidence;
use crate::domain::retry::Decision;
use crate::domain::retry::Next;
use crate::domain::retry::Policy;
use crate::domain::retry::decide;
use crate::domain::verdict::Ending;
use crate::domain::verdict::Verdict;
use crate::domain::verdict::judge;
use crate::runtime::event::ChildOutput;
use crate::runtime::event::End;
use crate::runtime::event::Over;
use crate::store::AttemptRecord;
use crate::store::Claimed;
use crate::store::Finish;

/// How much of the output is kept of an attempt that succeeded, in bytes. (Of one that failed: all that was held, 64 KiB.)
const SUCCESS_TAIL: usize = 2 * 1024;
/// How much of stderr the judge may look at for hints, in bytes.
const HINT_TAIL: usize = 8 * 1024;

/// Who ran the attempt.
#[derive(Debug, Clone)]
pub struct Observer {
    /// Name of the supervisor.
    pub supervisor: String,
    /// Host.
    pub host: String,
}

/// Concludes an attempt that ran here.
#[must_use]
pub fn conclude(
    over: Over,
    claimed: &Claimed,
    kind: &KindConfig,
    own_stop: Option<Timestamp>,
    observer: &Observer,
) -> Finish {
    let Over { end, output, random, at, .. } = over;
    let ChildOutput { mut said, stdout, stderr } = output;
    said.stderr_tail = tail_text(&stderr, HINT_TAIL);
    let mut evidence = Evidence { said, own_stop, tolerate_oom: kind.tolerate_oom, ..Evidence::default() };
    match end {
        End::Seen(mut process) => {
            evidence.said.exit_meaning = exit_meaning(process.exit, kind);
            if kind.output == Output::Strict && evidence.said.truncated {
                went_past_the_limit(&mut process, evidence.said.exit_meaning);
            }
            evidence.process = Some(*process);
        }
        End::WardenLost { pid, exit } => evidence.loss = Some(Loss::Warden { pid, exit }),
        End::Refused(why) => evidence.refused = Some(why),
    }
    let verdict = judge(&evidence);
    let policy = Policy { backoff: kind.backoff, on_oom: kind.on_oom };
    let decision = decide(&verdict, &claimed.budget, &policy, random, Some(kind.backoff.first));
    let succeeded = verdict.ending == Ending::Succeeded;
    let result = if succeeded { result_json(&stdout, evidence.said.truncated) } else { None };
    let started_at = evidence.process.as_ref().and_then(|process| process.started_at);
    let record = AttemptRecord {
        started_at,
        ended_at: evidence.process.as_ref().and_then(|process| process.ended_at).or(Some(at)),
        supervisor: observer.supervisor.clone(),
        host: observer.host.clone(),
        message: message(&verdict, &evidence, &stderr),
        trace: None,
        output_tail: output_tail(&stderr, &stdout, succeeded),
        evidence,
    };
    Finish { fence: claimed.fence, decision, verdict: Some(verdict), result, record: Some(record) }
}

/// Gives a claim back that was never started: uncharged, due at once.
#[must_use]
pub fn give_back(fence: crate::domain::ids::Fence) -> Finish {
    let decision =
        Decision { next: Next::PutBack(std::time::Duration::ZERO), refund: true, interruption: false, breaker: false };
    Finish { fence, decision, verdict: None, result: None, record: None }
}

fn exit_meaning(exit: Option<ExitStatus>, kind: &KindConfig) -> Option<ExitMeaning> {
    match exit? {
        ExitStatus::Exited(code) => kind.exit_codes.get(&code).copied(),
        ExitStatus::Signaled(_) => None,
    }
}

/// A strict kind's job that was told to stop for its output, and ended well by itself before the word reached it: there was
/// nothing left to signal, but what it delivered is cut all the same.
fn went_past_the_limit(process: &mut ProcessEvidence, meaning: Option<ExitMeaning>) {
    if process.intent.is_none() && matches!(meaning, Some(ExitMeaning::Success | ExitMeaning::Snooze)) {
        let at_s = process.wall_s.unwrap_or_default();
        process.intent = Some(Intent { reason: IntentReason::OutputLimit, at_s, signals: Vec::new() });
    }
}

/// A success's stdout as JSON text: as it is when it is JSON, else as a JSON string; `None` when there is none.
fn result_json(stdout: &[u8], truncated: bool) -> Option<String> {
    let text = String::from_utf8_lossy(stdout);
    if text.trim().is_empty() {
        return None;
    }
    let is_json = !truncated && serde_json::from_str::<serde::de::IgnoredAny>(&text).is_ok();
    if is_json { Some(text.trim().to_owned()) } else { serde_json::to_string(text.as_ref()).ok() }
}

/// What the job itself said about its failure: the last line of stderr that is not blank. Of a job that was ended from
/// outside the last line says nothing about that.
fn message(verdict: &Verdict, evidence: &Evidence, stderr: &[u8]) -> Option<String> {
    if let Some(why) = &evidence.refused {
        return Some(why.clone());
    }
    if let Some(failure) = evidence.process.as_ref().and_then(|process| process.start_failure.as_ref()) {
        return Some(failure.message.clone());
    }
    let spoke =
        matches!(verdict.ending.cause()?, Cause::ExitNonzero | Cause::Crash | Cause::JobError | Cause::AllocFailed);
    if !spoke {
        return None;
    }
    let text = tail_text(stderr, HINT_TAIL);
    text.lines().rev().map(str::trim).find(|line| !line.is_empty()).map(str::to_owned)
}

fn output_tail(stderr: &[u8], stdout: &[u8], succeeded: bool) -> String {
    if succeeded {
        return tail_text(stderr, SUCCESS_TAIL);
    }
    let mut text = tail_text(stderr, usize::MAX);
    if !stdout.is_empty() {
        if !text.is_empty() && !text.ends_with('\n') {
            text.push('\n');
        }
        text.push_str("--- stdout ---\n");
        text.push_str(&tail_text(stdout, HINT_TAIL));
    }
    text
}

fn tail_text(bytes: &[u8], most: usize) -> String {
    let from = bytes.len().saturating_sub(most);
    String::from_utf8_lossy(&bytes[from..]).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_result_is_json_when_it_parses_and_text_when_it_does_not() {
        assert_eq!(result_json(b"{\"a\": 1}\n", false).as_deref(), Some("{\"a\": 1}"));
        assert_eq!(result_json(b"done", false).as_deref(), Some("\"done\""));
        assert_eq!(result_json(b"12", true).as_deref(), Some("\"12\""), "a cut result is never parsed");
        assert_eq!(result_json(b" \n", false), None);
        assert_eq!(result_json(b"\xff", false).as_deref(), Some("\"\u{fffd}\""));
    }

    #[test]
    fn the_tail_of_a_failure_shows_both_streams_and_a_success_keeps_little() {
        assert_eq!(output_tail(b"bad", b"half", false), "bad\n--- stdout ---\nhalf");
        assert_eq!(output_tail(&[b'x'; 9000], b"result", true).len(), SUCCESS_TAIL);
    }
}
