-- What programs in any language may call: `enqueue`, `cancel`, `retry`, each also as `…_many`; and what those are made of. None has
-- two forms of one name: a driver that sends its values untyped could call neither.
--
-- They belong to the transaction that calls them. They are VOLATILE on purpose: each of their statements sees what was committed
-- before it began, and whoever reads whether somebody sleeps has written before. Those for everyone run with the rights of the
-- schema's owner, so that their callers need none on the tables; their search path is pinned, and every name is qualified.

-- Tells sleepers that there is something to do. Call it after the write, in a statement of its own or as a function after it: a
-- supervisor that falls asleep meanwhile then waits until the writer's transaction is over. One whose lease ran out long ago died
-- asleep, and nobody was there to say so.
CREATE FUNCTION jobvisor.wake() RETURNS void LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    IF EXISTS (SELECT 1 FROM jobvisor.supervisors WHERE sleeping AND ended_at IS NULL AND lost_at IS NULL
            AND expires_at > pg_catalog.now() - interval '10 minutes') THEN
        PERFORM pg_catalog.pg_notify('jobvisor', '');
    END IF;
END $$;

-- In which state a job begins that comes after others, and how many of those have not succeeded. Nothing is locked: a parent that
-- ends at this moment is found later, by whoever makes due jobs queued.
CREATE FUNCTION jobvisor.first_state(
    parents bigint[], due timestamptz, OUT state text, OUT waits_for integer
) LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    missing bigint;
    failed boolean;
BEGIN
    waits_for := 0;
    IF pg_catalog.cardinality(parents) > 0 THEN
        SELECT pg_catalog.min(p.id) FILTER (WHERE j.id IS NULL),
               coalesce(pg_catalog.bool_or(j.state IN ('cancelled', 'dead')), false),
               pg_catalog.count(*) FILTER (WHERE j.state <> 'succeeded')
        INTO missing, failed, waits_for
        FROM (SELECT DISTINCT u.id FROM pg_catalog.unnest(parents) AS u (id)) p
            LEFT JOIN LATERAL (SELECT c.id, c.state FROM jobvisor.jobs c WHERE c.id = p.id OFFSET 0) j ON true;
        IF missing IS NOT NULL THEN
            RAISE EXCEPTION 'job % does not exist', missing USING ERRCODE = 'JV404', DETAIL = missing::text;
        END IF;
    END IF;
    state := CASE
        WHEN failed THEN 'cancelled'
        WHEN waits_for > 0 THEN 'waiting'
        WHEN due > pg_catalog.clock_timestamp() THEN 'scheduled'
        ELSE 'queued'
    END;
END $$;

-- Adds one job, under `new_id` unless that is null, or answers the unfinished one that holds its key. The index decides who is
-- first: a look before spares latecomers a number, no more.
CREATE FUNCTION jobvisor.add_job(
    new_id bigint, kind text, payload json, priority integer, run_at timestamptz, tenant text, unique_key text, after bigint[],
    schedule text, own_max_attempts integer, own_memory bigint, max_attempts integer, max_interruptions integer,
    memory bigint, backoff json, OUT id bigint, OUT added boolean
) LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict use_column
DECLARE
    first record;
BEGIN
    LOOP
        IF add_job.unique_key IS NOT NULL THEN
            SELECT j.id INTO add_job.id FROM jobvisor.jobs j
            WHERE j.kind = add_job.kind AND j.unique_key = add_job.unique_key AND j.finished_at IS NULL;
            IF FOUND THEN
                added := false;
                RETURN;
            END IF;
        END IF;
        SELECT * INTO first FROM jobvisor.first_state(add_job.after, add_job.run_at);
        INSERT INTO jobvisor.jobs AS j (id, kind, state, waits_for, priority, tenant, payload, unique_key, schedule,
            own_max_attempts, own_memory, max_attempts, max_interruptions, memory, backoff, run_at, finished_at, cancel_by)
        VALUES (coalesce(add_job.new_id, pg_catalog.nextval('jobvisor.jobs_id_seq')), add_job.kind, first.state, first.waits_for, add_job.priority, add_job.tenant, add_job.payload,
            add_job.unique_key, add_job.schedule, add_job.own_max_attempts, add_job.own_memory,
            coalesce(add_job.own_max_attempts, add_job.max_attempts, 3), coalesce(add_job.max_interruptions, 5),
            coalesce(add_job.own_memory, add_job.memory), add_job.backoff, coalesce(add_job.run_at, pg_catalog.now()),
            CASE WHEN first.state = 'cancelled' THEN pg_catalog.now() END,
            CASE WHEN first.state = 'cancelled' THEN 'a job that it came after' END)
        ON CONFLICT (kind, unique_key) WHERE unique_key IS NOT NULL AND finished_at IS NULL DO NOTHING
        RETURNING j.id INTO add_job.id;
        EXIT WHEN FOUND;
    END LOOP;
    added := true;
    IF pg_catalog.cardinality(add_job.after) > 0 THEN
        INSERT INTO jobvisor.dependencies (job, parent)
        SELECT DISTINCT add_job.id, p.parent FROM pg_catalog.unnest(add_job.after) AS p (parent);
    END IF;
    IF add_job.schedule IS NOT NULL THEN
        INSERT INTO jobvisor.schedules AS s (name, last_job) VALUES (add_job.schedule, add_job.id)
        ON CONFLICT (name) DO UPDATE SET last_job = excluded.last_job;
    END IF;
END $$;

-- Cancels what waits for `parent`, which has ended without success, and what waits for that in turn. Always by key, from parent to
-- child: planned while there is nothing, it would otherwise walk all that waits when there is much.
CREATE FUNCTION jobvisor.cancel_after(parent bigint) RETURNS void LANGUAGE sql VOLATILE AS $$
    WITH RECURSIVE lost (id) AS (
        SELECT j.id FROM jobvisor.dependencies d
            CROSS JOIN LATERAL (SELECT c.id, c.state FROM jobvisor.jobs c WHERE c.id = d.job OFFSET 0) j
        WHERE d.parent = cancel_after.parent AND j.state = 'waiting'
        UNION
        SELECT j.id FROM lost
            CROSS JOIN LATERAL (SELECT e.job FROM jobvisor.dependencies e WHERE e.parent = lost.id OFFSET 0) d
            CROSS JOIN LATERAL (SELECT c.id, c.state FROM jobvisor.jobs c WHERE c.id = d.job OFFSET 0) j
        WHERE j.state = 'waiting'),
    locked AS MATERIALIZED (
        SELECT j.id FROM jobvisor.jobs j WHERE j.id = ANY (ARRAY(SELECT lost.id FROM lost)) ORDER BY j.id FOR UPDATE)
    UPDATE jobvisor.jobs j
    SET state = 'cancelled', finished_at = pg_catalog.now(), cancel_by = 'a job that it came after'
    WHERE j.id = ANY (ARRAY(SELECT locked.id FROM locked)) AND pg_catalog.starts_with(j.state, 'waiting')
$$;

-- Asks for cancellation, as `by`. Answers for each id, in order: `done`; `requested` (it runs: its supervisor ends it, within a
-- second); `refused` (it has ended; `state` says how); `missing`.
CREATE FUNCTION jobvisor.cancel_many(ids bigint[], by text DEFAULT session_user)
RETURNS TABLE (job bigint, acted text, state text)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    asked boolean := false;
BEGIN
    IF cancel_many.ids IS NULL OR array_position(cancel_many.ids, NULL) IS NOT NULL OR cancel_many.by IS NULL THEN
        RAISE EXCEPTION 'jobvisor.cancel_many: ids and by must not be null' USING ERRCODE = 'null_value_not_allowed';
    END IF;
    PERFORM 1 FROM jobvisor.jobs j WHERE j.id = ANY (cancel_many.ids) ORDER BY j.id FOR UPDATE;
    FOREACH job IN ARRAY cancel_many.ids LOOP
        SELECT j.state INTO cancel_many.state FROM jobvisor.jobs j WHERE j.id = cancel_many.job;
        CASE
            WHEN NOT FOUND THEN
                acted := 'missing';
            WHEN cancel_many.state = 'running' THEN
                UPDATE jobvisor.jobs j SET cancel_requested = true, cancel_by = cancel_many.by
                WHERE j.id = cancel_many.job AND NOT j.cancel_requested;
                acted := 'requested';
                asked := true;
            WHEN cancel_many.state IN ('waiting', 'scheduled', 'queued') THEN
                UPDATE jobvisor.jobs j SET state = 'cancelled', finished_at = now(), cancel_by = cancel_many.by
                WHERE j.id = cancel_many.job RETURNING j.state INTO cancel_many.state;
                PERFORM jobvisor.cancel_after(cancel_many.job);
                acted := 'done';
            ELSE
                acted := 'refused';
        END CASE;
        RETURN NEXT;
    END LOOP;
    IF asked THEN
        PERFORM pg_notify('jobvisor', 'cancel');
    END IF;
END $$;

-- The same for one job: `done`, `requested`, `refused` or `missing`.
CREATE FUNCTION jobvisor.cancel(id bigint, by text DEFAULT session_user) RETURNS text
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$ SELECT c.acted FROM jobvisor.cancel_many(ARRAY[cancel.id], cancel.by) c $$;

-- Brings ended jobs back to `queued` with a fresh budget; their history stays. Answers for each id, in order: `done`; `refused` (it
-- has not ended, or another job holds its unique key by now); `missing`.
CREATE FUNCTION jobvisor.retry_many(ids bigint[])
RETURNS TABLE (job bigint, acted text, state text)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    had text;
BEGIN
    IF retry_many.ids IS NULL OR array_position(retry_many.ids, NULL) IS NOT NULL THEN
        RAISE EXCEPTION 'jobvisor.retry_many: ids must not be null' USING ERRCODE = 'null_value_not_allowed';
    END IF;
    PERFORM 1 FROM jobvisor.jobs j WHERE j.id = ANY (retry_many.ids) ORDER BY j.id FOR UPDATE;
    FOREACH job IN ARRAY retry_many.ids LOOP
        SELECT j.state INTO retry_many.state FROM jobvisor.jobs j WHERE j.id = retry_many.job;
        IF NOT FOUND THEN
            acted := 'missing';
        ELSIF retry_many.state NOT IN ('succeeded', 'cancelled', 'dead') THEN
            acted := 'refused';
        ELSE
            had := retry_many.state;
            -- The index decides who holds the key, also against one that is being added at this moment.
            BEGIN
                UPDATE jobvisor.jobs j
                SET state = 'queued', charged = 0, interruptions = 0, budget_since = j.attempt, result = NULL,
                    finished_at = NULL, run_at = now(), cancel_by = NULL, waits_for = 0
                WHERE j.id = retry_many.job RETURNING j.state INTO retry_many.state;
                acted := 'done';
            EXCEPTION WHEN unique_violation THEN
                acted := 'refused';
            END;
            IF acted = 'done' AND had = 'succeeded' THEN
                UPDATE jobvisor.jobs j SET waits_for = j.waits_for + 1
                WHERE j.id = ANY (ARRAY(SELECT d.job FROM jobvisor.dependencies d WHERE d.parent = retry_many.job))
                    AND starts_with(j.state, 'waiting');
            END IF;
        END IF;
        RETURN NEXT;
    END LOOP;
    PERFORM jobvisor.wake();
END $$;

-- The same for one job: `done`, `refused` or `missing`.
CREATE FUNCTION jobvisor.retry(id bigint) RETURNS text
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$ SELECT r.acted FROM jobvisor.retry_many(ARRAY[retry.id]) r $$;

-- What the arguments of both ways to add have in common.
CREATE FUNCTION jobvisor.check_new(
    caller text, kind text, priority integer, max_attempts integer, memory bigint, tenant text, after bigint[]
) RETURNS void LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
    wrong text := CASE
        WHEN kind IS NULL OR kind = '' THEN 'kind must not be empty'
        WHEN priority IS NULL THEN 'priority must not be null'
        WHEN max_attempts < 1 THEN 'max_attempts must be at least 1'
        WHEN memory < 1 THEN 'memory must be at least 1 byte'
        WHEN tenant IS NULL THEN 'tenant must not be null'
        WHEN after IS NULL OR pg_catalog.array_position(after, NULL) IS NOT NULL THEN 'after must not be or hold null'
    END;
BEGIN
    IF wrong IS NOT NULL THEN
        RAISE EXCEPTION 'jobvisor.%: %', caller, wrong USING ERRCODE = 'invalid_parameter_value';
    END IF;
END $$;

-- Adds a job, in the caller's transaction, and answers its id; where an unfinished job of the kind holds `unique_key`, that job's id.
-- A lower priority number goes first; `run_at` null: due now; `max_attempts` and `memory` (bytes) null: as jobs.toml says for the
-- kind; it runs once all jobs of `after` have succeeded, and is cancelled when one of them ends otherwise.
CREATE FUNCTION jobvisor.enqueue(
    kind text, payload jsonb DEFAULT '{}', priority integer DEFAULT 0, run_at timestamptz DEFAULT NULL,
    max_attempts integer DEFAULT NULL, memory bigint DEFAULT NULL, tenant text DEFAULT '', unique_key text DEFAULT NULL,
    after bigint[] DEFAULT '{}'
) RETURNS bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    new record;
    new_id bigint;
BEGIN
    -- Most jobs have no key and come after nothing. Each function that is called costs as much as the row itself, so such a
    -- job is added here.
    IF enqueue.kind <> '' AND enqueue.payload IS NOT NULL AND enqueue.priority IS NOT NULL AND enqueue.tenant IS NOT NULL
        AND coalesce(enqueue.max_attempts, 1) >= 1 AND coalesce(enqueue.memory, 1) >= 1
        AND enqueue.unique_key IS NULL AND enqueue.after = '{}' THEN
        INSERT INTO jobvisor.jobs AS j (kind, state, priority, tenant, payload, own_max_attempts, own_memory, max_attempts, memory,
            run_at)
        VALUES (enqueue.kind, CASE WHEN enqueue.run_at > clock_timestamp() THEN 'scheduled' ELSE 'queued' END, enqueue.priority,
            enqueue.tenant, enqueue.payload::text::json, enqueue.max_attempts, enqueue.memory,
            coalesce(enqueue.max_attempts, 3), enqueue.memory, coalesce(enqueue.run_at, now()))
        RETURNING j.id INTO new_id;
        IF EXISTS (SELECT 1 FROM jobvisor.supervisors WHERE sleeping) THEN
            PERFORM jobvisor.wake();
        END IF;
        RETURN new_id;
    END IF;
    PERFORM jobvisor.check_new('enqueue', enqueue.kind, enqueue.priority, enqueue.max_attempts, enqueue.memory,
        enqueue.tenant, enqueue.after);
    IF enqueue.payload IS NULL THEN
        RAISE EXCEPTION 'jobvisor.enqueue: payload must not be null' USING ERRCODE = 'invalid_parameter_value',
            HINT = 'The JSON value null is ''null''::jsonb.';
    END IF;
    SELECT * INTO new FROM jobvisor.add_job(NULL, enqueue.kind, enqueue.payload::text::json, enqueue.priority, enqueue.run_at,
        enqueue.tenant, enqueue.unique_key, enqueue.after, NULL, enqueue.max_attempts, enqueue.memory, NULL, NULL, NULL, NULL);
    IF new.added THEN
        PERFORM jobvisor.wake();
    END IF;
    RETURN new.id;
END $$;

-- Adds a job for each payload, all with the same arguments otherwise, by one statement. Answers their ids in order.
CREATE FUNCTION jobvisor.enqueue_many(
    kind text, payloads jsonb[], priority integer DEFAULT 0, run_at timestamptz DEFAULT NULL,
    max_attempts integer DEFAULT NULL, memory bigint DEFAULT NULL, tenant text DEFAULT '', after bigint[] DEFAULT '{}'
) RETURNS bigint[]
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    first record;
    ids bigint[];
BEGIN
    PERFORM jobvisor.check_new('enqueue_many', enqueue_many.kind, enqueue_many.priority, enqueue_many.max_attempts,
        enqueue_many.memory, enqueue_many.tenant, enqueue_many.after);
    IF enqueue_many.payloads IS NULL OR array_position(enqueue_many.payloads, NULL) IS NOT NULL THEN
        RAISE EXCEPTION 'jobvisor.enqueue_many: payloads must not be or hold null' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    SELECT * INTO first FROM jobvisor.first_state(enqueue_many.after, enqueue_many.run_at);
    WITH new AS (
        INSERT INTO jobvisor.jobs AS j (kind, state, waits_for, priority, tenant, payload, own_max_attempts, own_memory,
            max_attempts, memory, run_at, finished_at, cancel_by)
        SELECT enqueue_many.kind, first.state, first.waits_for, enqueue_many.priority, enqueue_many.tenant, p.payload::text::json,
            enqueue_many.max_attempts, enqueue_many.memory, coalesce(enqueue_many.max_attempts, 3), enqueue_many.memory,
            coalesce(enqueue_many.run_at, now()), CASE WHEN first.state = 'cancelled' THEN now() END,
            CASE WHEN first.state = 'cancelled' THEN 'a job that it came after' END
        FROM unnest(enqueue_many.payloads) AS p (payload)
        RETURNING j.id)
    SELECT coalesce(array_agg(new.id ORDER BY new.id), '{}') INTO ids FROM new;
    INSERT INTO jobvisor.dependencies (job, parent)
    SELECT i.id, p.id FROM unnest(ids) AS i (id) CROSS JOIN (SELECT DISTINCT a.id FROM unnest(enqueue_many.after) AS a (id)) p;
    IF cardinality(ids) > 0 THEN
        PERFORM jobvisor.wake();
    END IF;
    RETURN ids;
END $$;

-- Nobody calls what is not granted: a function is everybody's at first.
REVOKE ALL ON ALL FUNCTIONS IN SCHEMA jobvisor FROM PUBLIC;

-- Roles to be granted to users of the database. A role that this program may not make, or that belongs to nobody because roles
-- are refused here, can be made and granted by hand as below.
DO $$
DECLARE
    wanted text;
BEGIN
    FOREACH wanted IN ARRAY ARRAY['jobvisor_enqueuer', 'jobvisor_operator', 'jobvisor_reader', 'jobvisor_supervisor'] LOOP
        BEGIN
            IF NOT EXISTS (SELECT 1 FROM pg_catalog.pg_roles WHERE rolname = wanted) THEN
                EXECUTE pg_catalog.format('CREATE ROLE %I NOLOGIN', wanted);
            END IF;
        EXCEPTION
            WHEN insufficient_privilege OR feature_not_supported THEN
                RAISE NOTICE 'role % is not made: this user may not create roles', wanted;
                CONTINUE;
            -- Somebody else made it meanwhile, for another database of this server.
            WHEN duplicate_object OR unique_violation THEN
                NULL;
        END;
        EXECUTE pg_catalog.format('GRANT USAGE ON SCHEMA jobvisor TO %I', wanted);
        CASE wanted
            WHEN 'jobvisor_enqueuer' THEN
                GRANT EXECUTE ON FUNCTION
                    jobvisor.enqueue(text, jsonb, integer, timestamptz, integer, bigint, text, text, bigint[]),
                    jobvisor.enqueue_many(text, jsonb[], integer, timestamptz, integer, bigint, text, bigint[])
                TO jobvisor_enqueuer;
            WHEN 'jobvisor_operator' THEN
                GRANT SELECT ON ALL TABLES IN SCHEMA jobvisor TO jobvisor_operator;
                GRANT INSERT, UPDATE, DELETE ON jobvisor.kinds TO jobvisor_operator;
                GRANT EXECUTE ON FUNCTION jobvisor.cancel_many(bigint[], text), jobvisor.cancel(bigint, text),
                    jobvisor.retry_many(bigint[]), jobvisor.retry(bigint), jobvisor.wake()
                TO jobvisor_operator;
            WHEN 'jobvisor_reader' THEN
                GRANT SELECT ON ALL TABLES IN SCHEMA jobvisor TO jobvisor_reader;
            WHEN 'jobvisor_supervisor' THEN
                GRANT SELECT ON ALL TABLES IN SCHEMA jobvisor TO jobvisor_supervisor;
                GRANT INSERT, UPDATE, DELETE ON jobvisor.jobs, jobvisor.attempts, jobvisor.dependencies, jobvisor.schedules,
                    jobvisor.supervisors, jobvisor.kinds TO jobvisor_supervisor;
                GRANT USAGE ON SEQUENCE jobvisor.jobs_id_seq TO jobvisor_supervisor;
                GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA jobvisor TO jobvisor_supervisor;
        END CASE;
    END LOOP;
END $$;
