-- The objects of the clusters, one row each, as their accounts' agents see them. The body is a text or compressed, or it
-- was left out. Times are epoch milliseconds.
CREATE TABLE IF NOT EXISTS kubesvc_cache (
    id               TEXT    NOT NULL PRIMARY KEY,
    agent            TEXT    NOT NULL,
    kind             TEXT    NOT NULL,
    account          TEXT    NOT NULL,
    application      TEXT    NULL,
    namespace        TEXT    NOT NULL DEFAULT '',
    name             TEXT    NOT NULL,
    api_version      TEXT    NULL,
    uid              TEXT    NULL,
    resource_version TEXT    NOT NULL,
    body_hash        TEXT    NOT NULL,
    body             TEXT    NULL,
    body_z           BLOB    NULL,
    last_updated     INTEGER NOT NULL
) STRICT;
CREATE INDEX IF NOT EXISTS ix_kubesvc_cache_account_kind_namespace ON kubesvc_cache (account, kind, namespace);
CREATE INDEX IF NOT EXISTS ix_kubesvc_cache_application_kind ON kubesvc_cache (application, kind);
