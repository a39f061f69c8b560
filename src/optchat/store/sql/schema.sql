-- optchat's file format, version 3. STRICT tables; every time is microseconds since 1970 UTC; every *_key is an integer
-- owner << 40 | ordinal, so that the rows of one owner lie together and inserts append:
--   record_key = segment << 40 | seq            node_key     = tree << 40 | post-order position
--   publication_key = scope << 40 | seq         document_key = scope << 40 | n
-- Text that may hold lone surrogates is a BLOB of UTF-8 with surrogatepass. A removed thing leaves its row behind as a
-- tombstone where a number could otherwise be used again.

-- ---- sharing boundaries -----------------------------------------------------------------------------------------------
CREATE TABLE scope (
    scope_pk          INTEGER PRIMARY KEY,
    name              TEXT    NOT NULL UNIQUE,
    created_at        INTEGER NOT NULL,
    -- format settings: fixed when the scope is made
    node_bytes        INTEGER NOT NULL,
    view_high_bytes   INTEGER NOT NULL,
    view_low_bytes    INTEGER NOT NULL,
    pretokenizer      INTEGER NOT NULL,
    leaf_format       INTEGER NOT NULL,
    -- counters
    policy_revision   INTEGER NOT NULL DEFAULT 1,
    epoch             INTEGER NOT NULL DEFAULT 0,   -- counts removals: deletions and revocations
    clock             INTEGER NOT NULL DEFAULT 0,   -- counts commits that change what a later pin may see
    dropped_clock     INTEGER NOT NULL DEFAULT 0,   -- superseded node revisions and moments below this were dropped
    next_publication  INTEGER NOT NULL DEFAULT 0,
    next_document     INTEGER NOT NULL DEFAULT 0,
    shared_tree       INTEGER NOT NULL,
    summarizer        TEXT,                         -- the first one besides the embedded default to claim a job here
    state             TEXT    NOT NULL DEFAULT 'live' CHECK (state IN ('live', 'removed')),
    secret            BLOB    NOT NULL DEFAULT x''  -- keys the hashes of tombstones: nobody can try names against them
) STRICT;

-- What the scope's marks were at each tick of its clock. A snapshot is such a tick: its id is all it takes to reopen it.
CREATE TABLE moment (
    moment_key        INTEGER PRIMARY KEY,          -- scope << 40 | clock
    publications      INTEGER NOT NULL,             -- publications below this are visible
    documents         INTEGER NOT NULL,             -- foreign documents below this are visible
    policy_revision   INTEGER NOT NULL,
    epoch             INTEGER NOT NULL,
    at                INTEGER NOT NULL
) STRICT;

CREATE TABLE project (
    project_pk        INTEGER PRIMARY KEY,
    project_id        TEXT    NOT NULL UNIQUE       -- opaque; every path, remote, title and host id is an alias
) STRICT;

CREATE TABLE project_alias (
    alias             TEXT    PRIMARY KEY,
    project_pk        INTEGER NOT NULL REFERENCES project
) STRICT, WITHOUT ROWID;
CREATE INDEX project_alias_project ON project_alias (project_pk);

-- One row a process that has opened the file for writing. It holds byte `slot` of the lock file for as long as it lives:
-- whoever obtains that byte has proof that the owner is dead.
CREATE TABLE owner (
    owner_pk          INTEGER PRIMARY KEY,
    slot              INTEGER NOT NULL,
    token             TEXT    NOT NULL UNIQUE,
    pid               INTEGER NOT NULL,
    started_at        INTEGER NOT NULL,
    working           INTEGER NOT NULL DEFAULT 0    -- workers in that process that work the file's jobs
) STRICT;
CREATE INDEX owner_slot ON owner (slot, owner_pk);

-- ---- the ledger: sessions and what was said -------------------------------------------------------------------------------
CREATE TABLE session (
    session_pk        INTEGER PRIMARY KEY,
    session_id        TEXT    NOT NULL UNIQUE,      -- 8 characters of base32
    scope_pk          INTEGER NOT NULL REFERENCES scope,
    host              TEXT    NOT NULL,
    key               TEXT    NOT NULL,
    current           INTEGER NOT NULL DEFAULT 1,   -- 0: another session was begun under the same (host, key)
    generation        INTEGER NOT NULL DEFAULT 0,
    state             TEXT    NOT NULL DEFAULT 'active' CHECK (state IN ('active', 'archived', 'revoked', 'needs_resync', 'deleted')),
    isolated          INTEGER NOT NULL DEFAULT 0,
    title             TEXT,
    project_pk        INTEGER REFERENCES project,
    worktree          TEXT,
    commit_id         TEXT,
    created_at        INTEGER NOT NULL,
    archived          INTEGER NOT NULL DEFAULT 0,   -- the clock from which on it is hidden from discovery, not forgotten; 0: never
    revoked           INTEGER NOT NULL DEFAULT 0,   -- nothing of it is shared, and nothing will be
    shared_from       INTEGER NOT NULL DEFAULT 0,   -- turns of the present generation below this ordinal are not published
    host_messages     INTEGER,                      -- how many messages its host last said that it holds
    behind_since      INTEGER                       -- since when memory holds fewer; NULL: it does not
) STRICT;
CREATE UNIQUE INDEX session_key ON session (scope_pk, host, key) WHERE current = 1;
CREATE INDEX session_scope ON session (scope_pk);
CREATE INDEX session_project ON session (project_pk) WHERE project_pk IS NOT NULL;  -- who else names a project

-- (host, key) pairs and event keys that were deleted, as keyed hashes: a host that goes on delivering is told so.
CREATE TABLE tombstone (
    scope_pk          INTEGER NOT NULL REFERENCES scope,
    hash              BLOB    NOT NULL,
    removed_at        INTEGER NOT NULL,
    record_key        INTEGER,                      -- of an event key: where the removed record stood
    PRIMARY KEY (scope_pk, hash)
) STRICT, WITHOUT ROWID;

-- Storage identity. A fork or a rewind makes a new segment over a base; nothing below base_length is ever copied.
CREATE TABLE segment (
    segment_pk        INTEGER PRIMARY KEY,
    scope_pk          INTEGER NOT NULL REFERENCES scope,
    tree_pk           INTEGER NOT NULL UNIQUE,      -- its own tree: the nodes that do not lie wholly below base_length
    base_segment      INTEGER REFERENCES segment,
    base_length       INTEGER NOT NULL DEFAULT 0,   -- a turn boundary: records below it are the base's
    kept_length       INTEGER,                      -- set when only children still need it: records from here on are gone
    -- counters that let a seal, and a view, start without a search
    ended_length      INTEGER NOT NULL DEFAULT 0,   -- records of ended turns: what the own view may cover
    current_length    INTEGER                       -- records from here on were rewound, in every session; NULL: none was
) STRICT;
CREATE INDEX segment_scope ON segment (scope_pk);
CREATE INDEX segment_base ON segment (base_segment) WHERE base_segment IS NOT NULL;

CREATE TABLE generation (
    generation_pk     INTEGER PRIMARY KEY,
    session_pk        INTEGER NOT NULL REFERENCES session,
    number            INTEGER NOT NULL,
    segment_pk        INTEGER NOT NULL UNIQUE REFERENCES segment,
    superseded_clock  INTEGER,
    UNIQUE (session_pk, number)
) STRICT;

CREATE TABLE turn (
    turn_pk           INTEGER PRIMARY KEY,
    turn_id           TEXT    NOT NULL,
    generation_pk     INTEGER NOT NULL REFERENCES generation,
    scope_pk          INTEGER NOT NULL REFERENCES scope,
    segment_pk        INTEGER NOT NULL REFERENCES segment,
    ordinal           INTEGER NOT NULL,             -- within the generation: the order of publication
    state             TEXT    NOT NULL CHECK (state IN ('open', 'suspended', 'ended')),
    outcome           TEXT    CHECK (outcome IN ('completed', 'failed', 'interrupted')),
    detail            TEXT,
    has_request       INTEGER NOT NULL,
    inherited         INTEGER NOT NULL DEFAULT 0,   -- the kept part of a turn that a rewind cut: never published
    start_seq         INTEGER NOT NULL,
    end_seq           INTEGER,                      -- exclusive; set when it ends
    owner_pk          INTEGER REFERENCES owner,
    started_at        INTEGER NOT NULL,
    ended_at          INTEGER,
    utc_offset        INTEGER NOT NULL DEFAULT 0,   -- seconds, of started_at and ended_at as they were given
    worktree          TEXT,
    commit_id         TEXT,
    publication_key   INTEGER,                      -- its live publication
    removed           INTEGER NOT NULL DEFAULT 0,   -- 0 live, 1 hidden by a removal, 2 scrubbed
    CHECK ((state = 'ended') = (outcome IS NOT NULL)),
    UNIQUE (generation_pk, ordinal),
    UNIQUE (generation_pk, turn_id)
) STRICT;
CREATE UNIQUE INDEX turn_open ON turn (generation_pk) WHERE state <> 'ended';
CREATE INDEX turn_live ON turn (scope_pk, owner_pk) WHERE state = 'open';
-- ended, and not published: what verification holds against the publication jobs
CREATE INDEX turn_unpublished ON turn (scope_pk, turn_pk) WHERE state = 'ended' AND publication_key IS NULL AND inherited = 0;
CREATE INDEX turn_range ON turn (segment_pk, start_seq);

-- What a turn pinned, written once, in the transaction that admits it (§ 9). With the rendering rows it makes context()
-- a function of stored rows, the budget and the active transcript.
CREATE TABLE turn_descriptor (
    turn_pk           INTEGER PRIMARY KEY REFERENCES turn,
    pin               INTEGER NOT NULL,             -- 0; counts pins after a removal (snapshot "42.1")
    clock             INTEGER NOT NULL,
    publications      INTEGER NOT NULL,
    documents         INTEGER NOT NULL,
    policy_revision   INTEGER NOT NULL,
    epoch             INTEGER NOT NULL,
    own_end           INTEGER NOT NULL,             -- own records below this are history; the request is the first above
    pending           INTEGER NOT NULL,             -- ended turns of the scope that were not published yet
    previous_start    INTEGER,                      -- the previous exchange's turn: its records are [start, end)
    previous_end      INTEGER,
    shared_levels     BLOB    NOT NULL,             -- copies of both views: one byte a line
    shared_shrinking  INTEGER NOT NULL,
    own_levels        BLOB    NOT NULL,
    own_shrinking     INTEGER NOT NULL,
    leaf_format       INTEGER NOT NULL,
    settings          TEXT    NOT NULL              -- JSON: every setting that changes bytes
) STRICT;

CREATE TABLE rendering (
    turn_pk           INTEGER NOT NULL REFERENCES turn,
    step              INTEGER NOT NULL,             -- 0 at the first context(); a further one when a request no longer fits
    shared_levels     BLOB    NOT NULL,             -- the projected views
    own_levels        BLOB    NOT NULL,
    own_through       INTEGER NOT NULL,
    missing           TEXT    NOT NULL,             -- JSON: own refs that a partial view says it does not cover
    previous          TEXT    NOT NULL,             -- JSON: which records of the previous exchange stand in full
    anchor_turn       INTEGER,                      -- the turn whose blocks are repeated; NULL: it is in full
    since             TEXT,                         -- JSON: what the next turn may add to (core.anchors.Anchor), and what a call cost
    memory_sha256     BLOB    NOT NULL,
    at                INTEGER NOT NULL,
    pin               INTEGER NOT NULL DEFAULT 0,   -- under which pin of the turn it was made
    PRIMARY KEY (turn_pk, step)
) STRICT;

-- The audit of pins that were taken anew because something that they could see was removed: the same marks, another epoch,
-- and both views as they were cut then. A turn's present pin is its last row here, or its descriptor's.
CREATE TABLE repin (
    turn_pk           INTEGER NOT NULL REFERENCES turn,
    pin               INTEGER NOT NULL,             -- from 1 on: snapshot "42.1"
    epoch             INTEGER NOT NULL,
    at                INTEGER NOT NULL,
    shared_levels     BLOB    NOT NULL,
    shared_shrinking  INTEGER NOT NULL,
    own_levels        BLOB    NOT NULL,
    own_shrinking     INTEGER NOT NULL,
    moment_key        INTEGER NOT NULL,             -- scope << 40 | clock, of the turn's marks: "42.1" is reopened by it
    PRIMARY KEY (turn_pk, pin)
) STRICT, WITHOUT ROWID;
CREATE INDEX repin_moment ON repin (moment_key, pin);

CREATE TABLE record (
    record_key        INTEGER PRIMARY KEY,
    turn_pk           INTEGER NOT NULL REFERENCES turn,
    kind              INTEGER NOT NULL,             -- core.records.KINDS
    message           INTEGER NOT NULL,             -- the message's ordinal in its turn
    part              INTEGER NOT NULL,             -- the part's ordinal in its message
    at                INTEGER NOT NULL,
    utc_offset        INTEGER NOT NULL,             -- seconds, as recorded
    sha256            BLOB    NOT NULL,             -- over kind, structure and payload; NULLed by nobody: see state
    payload_bytes     INTEGER NOT NULL,
    payload           BLOB,                         -- in the row when small, else in the blob
    blob_pk           INTEGER REFERENCES blob,
    structure         TEXT,                         -- JSON: what the payload's bytes mean, where they are not plain text
    call_hash         BLOB,                         -- of the call id: pairs calls and results
    paired_key        INTEGER,                      -- a result's call
    leaf_format       INTEGER NOT NULL,
    leaf_bytes        INTEGER,                      -- of the verbatim leaf; NULL: too long, its summary is a node
    leaf_escaped      INTEGER,
    state             INTEGER NOT NULL DEFAULT 0    -- 0 live, 1 hidden by a removal, 2 scrubbed
) STRICT;
CREATE INDEX record_turn ON record (turn_pk, message);
CREATE INDEX record_call ON record (call_hash, record_key) WHERE call_hash IS NOT NULL;
CREATE INDEX record_report ON record (json_extract(structure, '$.name'), at DESC, record_key DESC) WHERE kind = 4;
CREATE INDEX record_pair ON record (paired_key) WHERE paired_key IS NOT NULL;
CREATE INDEX record_payload ON record (blob_pk) WHERE blob_pk IS NOT NULL;  -- who else needs a blob

-- Delivery is idempotent by event key: unique in a segment, looked up along the chain.
CREATE TABLE event (
    segment_pk        INTEGER NOT NULL REFERENCES segment,
    event_hash        BLOB    NOT NULL,
    revision          INTEGER NOT NULL,
    record_key        INTEGER NOT NULL,             -- no foreign key: its index would cost each seal a page, for no query
    PRIMARY KEY (segment_pk, event_hash)
) STRICT, WITHOUT ROWID;

-- Not final yet: durable, replaced under its key, never shown.
CREATE TABLE staged (
    turn_pk           INTEGER NOT NULL REFERENCES turn,
    stage_key         BLOB    NOT NULL,
    message           BLOB    NOT NULL,             -- JSON of the message
    at                INTEGER NOT NULL,
    PRIMARY KEY (turn_pk, stage_key)
) STRICT, WITHOUT ROWID;

-- Larger bytes, in pieces of 64 KiB, unique by (scope, digest): one scope cannot tell what another holds.
CREATE TABLE blob (
    blob_pk           INTEGER PRIMARY KEY,
    scope_pk          INTEGER NOT NULL REFERENCES scope,
    sha256            BLOB    NOT NULL,
    bytes             INTEGER NOT NULL,
    complete          INTEGER NOT NULL,             -- 0 while its pieces are being staged
    UNIQUE (scope_pk, sha256)
) STRICT;

CREATE TABLE blob_piece (
    blob_pk           INTEGER NOT NULL REFERENCES blob,
    piece             INTEGER NOT NULL,
    data              BLOB    NOT NULL,
    PRIMARY KEY (blob_pk, piece)
) STRICT;

-- Which records need which blobs (images and files by manifest): owned by rows, not by counters.
CREATE TABLE record_blob (
    record_key        INTEGER NOT NULL REFERENCES record,
    ordinal           INTEGER NOT NULL,
    blob_pk           INTEGER NOT NULL REFERENCES blob,
    PRIMARY KEY (record_key, ordinal)
) STRICT, WITHOUT ROWID;
CREATE INDEX record_blob_blob ON record_blob (blob_pk);

-- What a turn retrieved: tool, arguments, refs, size and hash. The text is not kept: it is rendered again on demand.
CREATE TABLE retrieval (
    retrieval_pk      INTEGER PRIMARY KEY,
    turn_pk           INTEGER NOT NULL REFERENCES turn,
    tool              TEXT    NOT NULL,
    arguments         BLOB    NOT NULL,
    pin               INTEGER NOT NULL,
    own_end           INTEGER NOT NULL,             -- the live turn's end when it was asked
    is_error          INTEGER NOT NULL,
    refs              TEXT    NOT NULL,             -- JSON
    bytes             INTEGER NOT NULL,
    sha256            BLOB    NOT NULL,
    at                INTEGER NOT NULL
) STRICT;
CREATE INDEX retrieval_turn ON retrieval (turn_pk, sha256);

-- A turn's foreign context: the publications that its retrievals showed.
CREATE TABLE foreign_context (
    turn_pk           INTEGER NOT NULL REFERENCES turn,
    publication_key   INTEGER NOT NULL,
    PRIMARY KEY (turn_pk, publication_key)
) STRICT, WITHOUT ROWID;
CREATE INDEX foreign_context_publication ON foreign_context (publication_key);  -- who was shown it

-- ---- the forest: summary nodes and views ----------------------------------------------------------------------------------
CREATE TABLE tree (
    tree_pk           INTEGER PRIMARY KEY,          -- from 1: tree 0 stands for turns where waiters name what they need
    scope_pk          INTEGER NOT NULL REFERENCES scope,
    kind              TEXT    NOT NULL CHECK (kind IN ('session', 'shared', 'chunk')),
    record_key        INTEGER UNIQUE,               -- chunk: the record whose payload its leaves are pages of
    page_bytes        INTEGER,                      -- chunk: the recorded size of a page
    pages             INTEGER,
    CHECK ((kind = 'chunk') = (record_key IS NOT NULL))
) STRICT;

CREATE TABLE recipe (
    recipe_pk         INTEGER PRIMARY KEY,
    scope_pk          INTEGER NOT NULL REFERENCES scope,
    kind              TEXT    NOT NULL CHECK (kind IN ('summary', 'join', 'stand_in', 'tombstone')),
    model             TEXT    NOT NULL,             -- the summarizer's name; '' where none was asked
    prompt_version    INTEGER NOT NULL,
    format            INTEGER NOT NULL,
    parameters        TEXT    NOT NULL,             -- JSON
    nodes             INTEGER NOT NULL DEFAULT 0,   -- current nodes made by it; joins are not counted
    UNIQUE (scope_pk, kind, model, prompt_version, format, parameters)
) STRICT;

-- The current revision of each position. A leaf that fits is verbatim and has no row (see record.leaf_bytes).
CREATE TABLE node (
    node_key          INTEGER PRIMARY KEY,
    revision          INTEGER NOT NULL,
    kind              INTEGER NOT NULL,             -- core.tree.NODE_KINDS
    text              TEXT    NOT NULL,
    escaped_bytes     INTEGER NOT NULL,
    recipe_pk         INTEGER NOT NULL REFERENCES recipe,
    inputs_sha256     BLOB    NOT NULL,             -- over (position, revision, text hash) of its inputs, in order
    born              INTEGER NOT NULL,             -- the scope's clock
    failed            INTEGER NOT NULL DEFAULT 0,   -- shared tree: turns under it, counted from structure
    interrupted       INTEGER NOT NULL DEFAULT 0,
    first_at          INTEGER NOT NULL,
    last_at           INTEGER NOT NULL,
    state             INTEGER NOT NULL DEFAULT 0    -- 0 live, 1 hidden by a removal
) STRICT;

-- Superseded revisions: kept while a pinned clock may still name them, and those that a removal took until its scrubbing has
-- taken their words out of the index: a document of kind 6 holds the words of its `revision`'s text.
CREATE TABLE node_history (
    node_key          INTEGER NOT NULL,
    revision          INTEGER NOT NULL,
    kind              INTEGER NOT NULL,
    text              TEXT    NOT NULL,
    escaped_bytes     INTEGER NOT NULL,
    recipe_pk         INTEGER NOT NULL REFERENCES recipe,
    inputs_sha256     BLOB    NOT NULL,
    born              INTEGER NOT NULL,
    failed            INTEGER NOT NULL,
    interrupted       INTEGER NOT NULL,
    first_at          INTEGER NOT NULL,
    last_at           INTEGER NOT NULL,
    state             INTEGER NOT NULL DEFAULT 0,   -- 0 live, 1 hidden by a removal: no clock names it any more
    PRIMARY KEY (node_key, revision)
) STRICT, WITHOUT ROWID;

-- The foreign publications that a node's context held (§ 4): provenance, never part of the checked input hash.
CREATE TABLE node_foreign (
    node_key          INTEGER NOT NULL,
    revision          INTEGER NOT NULL,
    publication_key   INTEGER NOT NULL,
    PRIMARY KEY (node_key, revision, publication_key)
) STRICT, WITHOUT ROWID;
CREATE INDEX node_foreign_publication ON node_foreign (publication_key);

-- One current frontier a tree: its lines' levels, one byte each, cover [0, length).
CREATE TABLE view (
    tree_pk           INTEGER PRIMARY KEY REFERENCES tree,
    revision          INTEGER NOT NULL,
    length            INTEGER NOT NULL,
    levels            BLOB    NOT NULL,
    shrinking         INTEGER NOT NULL,
    bytes             INTEGER                       -- of its lines, rendered; NULL: to be counted
) STRICT;

-- ---- shared publications --------------------------------------------------------------------------------------------------
CREATE TABLE publication (
    publication_key   INTEGER PRIMARY KEY,
    turn_pk           INTEGER NOT NULL REFERENCES turn,
    generation_pk     INTEGER NOT NULL REFERENCES generation,
    start_seq         INTEGER NOT NULL,
    end_seq           INTEGER NOT NULL,
    outcome           TEXT    NOT NULL,
    completed_at      INTEGER NOT NULL,
    published_at      INTEGER NOT NULL,
    born              INTEGER NOT NULL,             -- the clock from which on it is visible
    retired_clock     INTEGER,                      -- rewind, edit: invisible to pins from this clock on
    state             INTEGER NOT NULL DEFAULT 0    -- 0 live, 1 removed (delete, revoke): invisible to all, at once
) STRICT;
CREATE UNIQUE INDEX publication_once ON publication (turn_pk) WHERE retired_clock IS NULL AND state = 0;
CREATE INDEX publication_generation ON publication (generation_pk, publication_key);
CREATE INDEX publication_turn ON publication (turn_pk);

-- ---- forgetting ---------------------------------------------------------------------------------------------------------------
-- One row a removal: what its receipt says, and how far its scrubbing has come. The thing itself is hidden by the same commit.
CREATE TABLE removal (
    removal_pk        INTEGER PRIMARY KEY,
    scope_pk          INTEGER NOT NULL REFERENCES scope,
    kind              TEXT    NOT NULL CHECK (kind IN ('session', 'turns', 'revoke', 'scope')),
    epoch             INTEGER NOT NULL,             -- the scope's epoch from this removal on
    clock             INTEGER NOT NULL,
    at                INTEGER NOT NULL,
    session_pk        INTEGER,                      -- NULL: the whole scope
    removed           TEXT    NOT NULL,             -- JSON: what was removed, counted
    kept              TEXT    NOT NULL,             -- JSON: what was kept, and why
    seen              TEXT    NOT NULL,             -- JSON: which pins could see some of it (core.snapshots.Taken)
    stage             TEXT    NOT NULL CHECK (stage IN ('rows', 'index', 'pages', 'log', 'scrubbed')),
    hindered          TEXT                          -- what scrubbing waits for; NULL: nothing
) STRICT;
CREATE INDEX removal_epoch ON removal (scope_pk, epoch);
CREATE INDEX removal_unfinished ON removal (scope_pk, removal_pk) WHERE stage <> 'scrubbed';

-- What of a removal is still to be erased: keys [low, high) of a kind of rows. A step erases some and moves `low`. In a range only
-- what is hidden is erased, so that a range may hold rows of others; it is written by the transaction that hides:
--   trees         tree_pk: the whole tree: nodes of whatever state, their history and context, view, jobs (a session's tree that
--                 nobody needs; the pages' trees of removed records follow by themselves)
--   nodes         node_key: nodes of state 1 with their history and context
--   history       node_key: revisions of state 1 in node_history
--   documents     document_key: index entries of state 1. Those of what is erased by another kind follow by themselves.
--   records       record_key: records of state 1, with index entries, pages' trees, events and the blobs that nobody else needs
--   orphans       blob_pk: blobs of the scope that no record needs: staged for what was never sealed
--   retrievals    retrieval_pk: of removed turns the row; of others' the hash and size of an answer that showed what is removed
--   renderings    turn_pk: hashes of memory that showed what is removed, in the scope; of turns that began before the removal
--   publications  publication_key: when publications of state 1 were made; their outcomes stay, which turns are counted by
--   turns         turn_pk: turns of removed = 1, with what was staged, retrieved, pinned and rendered
--   sessions      session_pk: sessions of state 'deleted', with a project that no other session names
--   scopes        scope_pk: a removed scope's name, summarizer and secret, tombstones, recipes and jobs
-- Scrubbing itself adds: events (segment_pk << 16 | first bytes of a hash), blobs (blob_pk), index (a segment of the full-text index
-- and its last page: the segments that were there when the last row was erased, until each is merged into a new one).
CREATE TABLE erasure (
    removal_pk        INTEGER NOT NULL REFERENCES removal,
    kind              TEXT    NOT NULL,
    low               INTEGER NOT NULL,
    high              INTEGER NOT NULL,
    PRIMARY KEY (removal_pk, kind, low)
) STRICT, WITHOUT ROWID;

-- ---- the queue --------------------------------------------------------------------------------------------------------------
-- The rows that sealing and ending write are the outbox: a job exists from the transaction on that makes it due.
CREATE TABLE job (
    -- AUTOINCREMENT: a key that came back with a fence that came back would let a stale worker pass for the holder
    job_pk            INTEGER PRIMARY KEY AUTOINCREMENT,
    scope_pk          INTEGER NOT NULL REFERENCES scope,
    kind              INTEGER NOT NULL,             -- core.jobs.KINDS
    subject           INTEGER NOT NULL,             -- node_key (leaf, merge, chunk, remake), turn_pk (publication), record_key (index)
    tree_pk           INTEGER NOT NULL,             -- leaf and chunk jobs are admitted a few at a time per tree; else 0
    position          INTEGER NOT NULL,             -- of the leaf in its tree; progress of an index job
    state             INTEGER NOT NULL,             -- core.jobs.STATES
    missing           INTEGER NOT NULL DEFAULT 0,   -- inputs that have not landed
    priority          INTEGER NOT NULL,
    due_at            INTEGER NOT NULL,
    created_at        INTEGER NOT NULL,
    owner_pk          INTEGER,                      -- the lease: its holder, until when, and the fencing token
    lease_until       INTEGER,
    fence             INTEGER NOT NULL DEFAULT 0,
    attempts          INTEGER NOT NULL DEFAULT 0,
    last_error        TEXT,
    failed_at         INTEGER,
    troubled_at       INTEGER,                      -- when its call last met with provider trouble
    UNIQUE (kind, subject)
) STRICT;
-- the claim reads only this
CREATE INDEX job_ready ON job (scope_pk, priority, due_at, job_pk) WHERE state = 1;
CREATE INDEX job_leased ON job (lease_until) WHERE state = 2;
CREATE INDEX job_admission ON job (tree_pk, state, position) WHERE tree_pk > 0;
CREATE INDEX job_failed ON job (scope_pk, job_pk) WHERE state = 3;
CREATE INDEX job_scope ON job (scope_pk, created_at);

-- Why no summarizer is called in a scope for a while, whichever process met the reason. Trouble with a provider holds for all;
-- a ceiling is the policy of the process that reached it, and stands here for others to see.
CREATE TABLE pause (
    scope_pk          INTEGER NOT NULL REFERENCES scope,
    cause             TEXT    NOT NULL CHECK (cause IN ('trouble', 'ceiling')),
    reason            TEXT    NOT NULL,             -- never content
    failures          INTEGER NOT NULL,             -- in a row
    since             INTEGER NOT NULL,
    until             INTEGER,                      -- NULL: not by itself
    PRIMARY KEY (scope_pk, cause)
) STRICT, WITHOUT ROWID;

-- A waiting job names what it needs: a node_key of any tree, or a turn (tree 0) whose publication must come first.
CREATE TABLE waiter (
    needs             INTEGER NOT NULL,
    job_pk            INTEGER NOT NULL REFERENCES job ON DELETE CASCADE,
    PRIMARY KEY (needs, job_pk)
) STRICT, WITHOUT ROWID;
CREATE INDEX waiter_job ON waiter (job_pk);

-- ---- search -------------------------------------------------------------------------------------------------------------------
-- One row a searchable text: a record (or a 64 KiB piece of one), or a summarizer's node. Numbered when sealed; a piece, when
-- indexed; a node, when it lands.
CREATE TABLE document (
    document_key      INTEGER PRIMARY KEY,
    pretokenizer      INTEGER NOT NULL,             -- the version whose words are in the index
    kind              INTEGER NOT NULL,             -- core.records.KINDS, or 6: a summary
    segment_pk        INTEGER,                      -- NULL: a node of the shared tree
    turn_pk           INTEGER,                      -- of a record: what the same turn says counts in ranking
    start_seq         INTEGER NOT NULL,             -- the records (or publications) that it speaks of: [start, end)
    end_seq           INTEGER NOT NULL,
    subject           INTEGER NOT NULL,             -- record_key or node_key
    start_byte        INTEGER NOT NULL DEFAULT 0,   -- of a piece, in the UTF-8 of the record's spoken text
    end_byte          INTEGER,                      -- NULL: the whole text
    word_count        INTEGER NOT NULL,             -- how many words it has in the index: its length in ranking
    at                INTEGER NOT NULL,
    visible           INTEGER,                      -- the number of the publication that makes it foreign-visible; NULL: none yet
    replaced_clock    INTEGER,                      -- of a node: another revision stands in its place from this clock on
    state             INTEGER NOT NULL DEFAULT 0,   -- 0 live, 1 hidden, 2 not an index entry any more
    born_clock        INTEGER NOT NULL DEFAULT 0,   -- of a node's later revision: clocks before this one do not find it
    revision          INTEGER NOT NULL DEFAULT 0    -- of a node: which of its texts the words are of
) STRICT;
CREATE INDEX document_subject ON document (subject);
CREATE INDEX document_summary ON document (segment_pk, end_seq) WHERE kind = 6;
CREATE INDEX document_piece ON document (document_key) WHERE end_byte IS NOT NULL;

-- Contentless: the words are here, the text where it was sealed. `text` holds what core.words gave, words parted by
-- spaces; the ascii tokenizer leaves them alone, as unicode61 would not: its letters are those of Unicode 6.1. `place` holds
-- one term for the segment (s12) and one for the kind (k3), so that a search of one session or kind reads no other's
-- postings. An entry is deleted by the exact words of its version.
CREATE VIRTUAL TABLE words USING fts5 (
    text, place,
    content = '', columnsize = 0, detail = full,
    tokenize = "ascii"
);
-- Not 'secure-delete': it took 2.4 ms a short text and 127 ms a long one, all of it in the commit, and left beginnings of words
-- behind. A deleted entry's words are gone when every segment that held them was merged (erasure, 'index').

-- ---- the cost ledger ------------------------------------------------------------------------------------------------------------
-- One row a call of a summarizer. Never content. It is written before the call begins, as 'started' and with the most that the call
-- can take: that reserves its part of a ceiling, and a process that dies over it leaves a call whose end is not known.
CREATE TABLE call (
    call_pk           INTEGER PRIMARY KEY,
    scope_pk          INTEGER NOT NULL REFERENCES scope,
    at                INTEGER NOT NULL,
    job_kind          INTEGER NOT NULL,
    attempt           INTEGER NOT NULL,
    why               TEXT,                         -- of a repeated attempt
    model             TEXT    NOT NULL,
    input_tokens      INTEGER,
    output_tokens     INTEGER,
    cache_read_tokens INTEGER,
    cache_write_tokens INTEGER,
    cost              REAL,
    wait_us           INTEGER NOT NULL,
    latency_us        INTEGER NOT NULL,
    outcome           TEXT    NOT NULL,             -- core.ledger.CallOutcome
    reserved_tokens   INTEGER NOT NULL DEFAULT 0,   -- counted by ceilings while the real figures are not known
    reserved_cost     REAL
) STRICT;
CREATE INDEX call_recent ON call (scope_pk, at);
