-- Who may write what everybody reads. The row `leader` carries the leader's term.
CREATE TABLE IF NOT EXISTS kubesvc_locks (
    name       varchar(128) COLLATE "C" NOT NULL PRIMARY KEY,
    owner      varchar(255) COLLATE "C" NULL,
    token      bigint       NOT NULL DEFAULT 0,
    expires_at bigint       NOT NULL DEFAULT 0
);
