-- From which agent the objects of an account are taken. Rows under another epoch are not.
CREATE TABLE IF NOT EXISTS kubesvc_caching (
    account_uid   TEXT    NOT NULL PRIMARY KEY,
    account       TEXT    NOT NULL UNIQUE,
    epoch         INTEGER NOT NULL,
    agent_id      TEXT    NULL,
    boot_id       TEXT    NULL,
    replica_id    TEXT    NULL,
    committed_seq INTEGER NOT NULL DEFAULT 0,
    last_updated  INTEGER NOT NULL
) STRICT;
