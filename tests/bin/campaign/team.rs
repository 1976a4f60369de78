//! Deploys of two supervisors under load, again and again.

use support::team::rolling_restarts;

use crate::Scale;
use crate::report::Report;

pub(crate) fn rolling(scale: Scale, report: &mut Report) {
    let restarts = scale.of(100, 4);
    let wrong = rolling_restarts(restarts);
    report.check(
        &format!("{restarts} restarts of two supervisors under load: nothing charged, nothing lost, never two at once"),
        wrong.is_empty(),
        &wrong.join("; "),
    );
}
