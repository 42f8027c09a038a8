-- The accounts that kubesvc registers in Clouddriver, by name. A row is committed before the call that it stands for.
CREATE TABLE IF NOT EXISTS kubesvc_pushed (
    name         varchar(255) NOT NULL,
    account_uid  varchar(36)  NOT NULL,
    state        varchar(16)  NOT NULL,
    body_version int          NOT NULL,
    body_hash    varchar(64)  NULL,
    pushed_at    bigint       NULL,
    last_updated bigint       NOT NULL,
    PRIMARY KEY (name)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;
