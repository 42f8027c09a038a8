-- Who may write what everybody reads. The row `leader` carries the leader's term.
CREATE TABLE IF NOT EXISTS kubesvc_locks (
    name       TEXT    NOT NULL PRIMARY KEY,
    owner      TEXT    NULL,
    token      INTEGER NOT NULL DEFAULT 0,
    expires_at INTEGER NOT NULL DEFAULT 0
) STRICT;
