-- The accounts that kubesvc registers in Clouddriver, by name. A row is committed before the call that it stands for.
CREATE TABLE IF NOT EXISTS kubesvc_pushed (
    name         varchar(255) COLLATE "C" NOT NULL PRIMARY KEY,
    account_uid  varchar(36)  COLLATE "C" NOT NULL,
    state        varchar(16)  COLLATE "C" NOT NULL,
    body_version integer      NOT NULL,
    body_hash    varchar(64)  COLLATE "C" NULL,
    pushed_at    bigint       NULL,
    last_updated bigint       NOT NULL
);
