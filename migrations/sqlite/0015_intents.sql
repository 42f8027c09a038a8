-- Writes of accounts that are passed on to Clouddriver, by name. A row is committed before the call that it stands for.
CREATE TABLE IF NOT EXISTS kubesvc_intents (
    name       TEXT    NOT NULL PRIMARY KEY,
    verb       TEXT    NOT NULL,
    body_hash  TEXT    NULL,
    replica_id TEXT    NOT NULL,
    started_at INTEGER NOT NULL,
    tries      INT     NOT NULL DEFAULT 0
) STRICT;
