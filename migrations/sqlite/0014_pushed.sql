-- The accounts that kubesvc registers in Clouddriver, by name. A row is committed before the call that it stands for.
CREATE TABLE IF NOT EXISTS kubesvc_pushed (
    name         TEXT    NOT NULL PRIMARY KEY,
    account_uid  TEXT    NOT NULL,
    state        TEXT    NOT NULL,
    body_version INT     NOT NULL,
    body_hash    TEXT    NULL,
    pushed_at    INTEGER NULL,
    last_updated INTEGER NOT NULL
) STRICT;
