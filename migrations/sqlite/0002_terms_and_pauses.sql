-- More about a term, and kinds that are paused.

ALTER TABLE supervisors ADD COLUMN beat INTEGER NOT NULL DEFAULT 0;
ALTER TABLE supervisors ADD COLUMN lease_ms INTEGER NOT NULL DEFAULT 30000;
ALTER TABLE supervisors ADD COLUMN lost_at INTEGER;
ALTER TABLE supervisors ADD COLUMN state_id TEXT NOT NULL DEFAULT '';
ALTER TABLE supervisors ADD COLUMN pid_ns INTEGER NOT NULL DEFAULT 0;
ALTER TABLE supervisors ADD COLUMN start_time INTEGER NOT NULL DEFAULT 0;
ALTER TABLE supervisors ADD COLUMN version TEXT NOT NULL DEFAULT '';
ALTER TABLE supervisors ADD COLUMN kinds TEXT NOT NULL DEFAULT '[]';
ALTER TABLE supervisors ADD COLUMN snapshot TEXT;

-- A kind that is here is not claimed.
CREATE TABLE kinds (
    name      TEXT PRIMARY KEY NOT NULL,
    paused_at INTEGER NOT NULL,
    paused_by TEXT NOT NULL
) STRICT;

UPDATE meta SET value = '2' WHERE key = 'schema_version';
