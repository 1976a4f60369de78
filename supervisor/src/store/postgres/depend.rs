//! What follows for the jobs that come after others (`after`), in the statement that ends those others.
//!
//! `jobs.waits_for` of a waiting job counts the jobs before it that have not succeeded. Nobody may read their states instead: two
//! statements that end one parent each at the same time do not see each other, but the second to touch the child's row takes
//! its number from the first. A parent that ends while its child is being added is not in the count of either; whoever
//! makes due jobs queued finds such a child.

/// Continues a `WITH RECURSIVE` in which `f (id, state)` are the jobs that have just been moved: `u (state)` are the jobs after
/// them that were let go on or cancelled.
///
/// One `UPDATE`, since a row can be changed only once a statement: what is released by one parent and cancelled for another
/// is cancelled; of two parents of one child the child is told once. In the order of ids, so that two batches over the same
/// children do not wait for each other.
macro_rules! children {
    () => {
        "lost (id) AS (
             SELECT j.id FROM f JOIN jobvisor.dependencies d ON d.parent = f.id JOIN jobvisor.jobs j ON j.id = d.job
             WHERE f.state IN ('cancelled', 'dead') AND j.state = 'waiting'
             UNION
             SELECT j.id FROM lost JOIN jobvisor.dependencies d ON d.parent = lost.id JOIN jobvisor.jobs j ON j.id = d.job
             WHERE j.state = 'waiting'),
         told (id, fewer, is_lost) AS MATERIALIZED (
             SELECT t.id, sum(t.fewer)::int, bool_or(t.is_lost)
             FROM (SELECT id, 0, true FROM lost
                   UNION ALL
                   SELECT d.job, 1, false FROM f JOIN jobvisor.dependencies d ON d.parent = f.id
                   WHERE f.state = 'succeeded') AS t (id, fewer, is_lost)
             GROUP BY t.id ORDER BY t.id),
         u AS (
             UPDATE jobvisor.jobs j
             SET state = CASE WHEN t.is_lost THEN 'cancelled' WHEN j.waits_for > t.fewer THEN 'waiting'
                     WHEN j.run_at > now() THEN 'scheduled' ELSE 'queued' END,
                 waits_for = greatest(j.waits_for - t.fewer, 0),
                 finished_at = CASE WHEN t.is_lost THEN now() END,
                 cancel_by = CASE WHEN t.is_lost THEN 'a job that it came after' ELSE j.cancel_by END
             FROM told t WHERE j.id = t.id AND j.state = 'waiting'
             RETURNING j.state)"
    };
}
pub(super) use children;
