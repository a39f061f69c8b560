-- Calls are written down before they begin, queues can pause, and a job remembers trouble that was not its own.
ALTER TABLE job ADD COLUMN troubled_at INTEGER;
ALTER TABLE call ADD COLUMN reserved_tokens INTEGER NOT NULL DEFAULT 0;
ALTER TABLE call ADD COLUMN reserved_cost REAL;
ALTER TABLE document ADD COLUMN born_clock INTEGER NOT NULL DEFAULT 0;
CREATE TABLE pause (
    scope_pk          INTEGER NOT NULL REFERENCES scope,
    cause             TEXT    NOT NULL CHECK (cause IN ('trouble', 'ceiling')),
    reason            TEXT    NOT NULL,
    failures          INTEGER NOT NULL,
    since             INTEGER NOT NULL,
    until             INTEGER,
    PRIMARY KEY (scope_pk, cause)
) STRICT, WITHOUT ROWID;
