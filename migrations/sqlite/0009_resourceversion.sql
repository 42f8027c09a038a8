-- What is watched of each account, and up to which resource version it is cached: a kind, in one namespace or ('') in
-- all. NULL: it must be listed. `last_updated` is the age of that version.
CREATE TABLE IF NOT EXISTS kubesvc_resourceversion (
    id              TEXT    NOT NULL PRIMARY KEY,
    account         TEXT    NOT NULL,
    account_uid     TEXT    NOT NULL,
    ns_group_kind   TEXT    NOT NULL,
    kind            TEXT    NOT NULL,
    namespace       TEXT    NOT NULL,
    resourceversion TEXT    NULL,
    state           TEXT    NOT NULL,
    shape           TEXT    NULL,
    filter          TEXT    NULL,
    problem         TEXT    NULL,
    epoch           INTEGER NOT NULL,
    sync_key        TEXT    NULL,
    objects         INTEGER NULL,
    last_updated    INTEGER NOT NULL
) STRICT;
CREATE INDEX IF NOT EXISTS ix_kubesvc_resourceversion_account ON kubesvc_resourceversion (account);
CREATE INDEX IF NOT EXISTS ix_kubesvc_resourceversion_account_uid ON kubesvc_resourceversion (account_uid);
CREATE INDEX IF NOT EXISTS ix_kubesvc_resourceversion_state ON kubesvc_resourceversion (state);
