-- Who may write what everybody reads. The row `leader` carries the leader's term.
CREATE TABLE IF NOT EXISTS kubesvc_locks (
    name       varchar(128) NOT NULL,
    owner      varchar(255) NULL,
    token      bigint       NOT NULL DEFAULT 0,
    expires_at bigint       NOT NULL DEFAULT 0,
    PRIMARY KEY (name)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;
