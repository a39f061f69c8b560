-- What is undone, hidden and forgotten: sharing per session, pins after a removal, and removals with what is left to erase.
ALTER TABLE scope ADD COLUMN secret BLOB NOT NULL DEFAULT x'';
UPDATE scope SET secret = randomblob(32);
ALTER TABLE session ADD COLUMN archived INTEGER NOT NULL DEFAULT 0;
ALTER TABLE session ADD COLUMN revoked INTEGER NOT NULL DEFAULT 0;
ALTER TABLE session ADD COLUMN shared_from INTEGER NOT NULL DEFAULT 0;
ALTER TABLE session ADD COLUMN host_messages INTEGER;
ALTER TABLE session ADD COLUMN behind_since INTEGER;
ALTER TABLE segment ADD COLUMN current_length INTEGER;
ALTER TABLE turn ADD COLUMN removed INTEGER NOT NULL DEFAULT 0;
ALTER TABLE rendering ADD COLUMN pin INTEGER NOT NULL DEFAULT 0;
ALTER TABLE node_history ADD COLUMN state INTEGER NOT NULL DEFAULT 0;
CREATE INDEX publication_turn ON publication (turn_pk);
CREATE TABLE repin (
    turn_pk           INTEGER NOT NULL REFERENCES turn,
    pin               INTEGER NOT NULL,
    epoch             INTEGER NOT NULL,
    at                INTEGER NOT NULL,
    shared_levels     BLOB    NOT NULL,
    shared_shrinking  INTEGER NOT NULL,
    own_levels        BLOB    NOT NULL,
    own_shrinking     INTEGER NOT NULL,
    moment_key        INTEGER NOT NULL,
    PRIMARY KEY (turn_pk, pin)
) STRICT, WITHOUT ROWID;
CREATE INDEX repin_moment ON repin (moment_key, pin);
CREATE INDEX foreign_context_publication ON foreign_context (publication_key);
ALTER TABLE tombstone ADD COLUMN record_key INTEGER;
CREATE TABLE removal (
    removal_pk        INTEGER PRIMARY KEY,
    scope_pk          INTEGER NOT NULL REFERENCES scope,
    kind              TEXT    NOT NULL CHECK (kind IN ('session', 'turns', 'revoke', 'scope')),
    epoch             INTEGER NOT NULL,
    clock             INTEGER NOT NULL,
    at                INTEGER NOT NULL,
    session_pk        INTEGER,
    removed           TEXT    NOT NULL,
    kept              TEXT    NOT NULL,
    seen              TEXT    NOT NULL,
    stage             TEXT    NOT NULL CHECK (stage IN ('rows', 'index', 'pages', 'log', 'scrubbed')),
    hindered          TEXT
) STRICT;
CREATE INDEX removal_epoch ON removal (scope_pk, epoch);
CREATE INDEX removal_unfinished ON removal (scope_pk, removal_pk) WHERE stage <> 'scrubbed';
CREATE TABLE erasure (
    removal_pk        INTEGER NOT NULL REFERENCES removal,
    kind              TEXT    NOT NULL,
    low               INTEGER NOT NULL,
    high              INTEGER NOT NULL,
    PRIMARY KEY (removal_pk, kind, low)
) STRICT, WITHOUT ROWID;
CREATE INDEX record_payload ON record (blob_pk) WHERE blob_pk IS NOT NULL;
CREATE INDEX session_project ON session (project_pk) WHERE project_pk IS NOT NULL;
ALTER TABLE document ADD COLUMN revision INTEGER NOT NULL DEFAULT 0;
UPDATE document SET revision = coalesce(
    (SELECT revision FROM node WHERE node_key = subject AND born = born_clock),
    (SELECT revision FROM node_history WHERE node_key = subject AND born = born_clock), 0)
    WHERE kind = 6 AND born_clock > 0;
-- Entries are erased by merging all segments that held them: see words.
INSERT INTO words (words, rank) VALUES ('secure-delete', 0);
-- A view that only grows is advanced by its size alone; without it every process read all lines again after another's commit.
ALTER TABLE view ADD COLUMN bytes INTEGER;
