-- What Spinnaker reads: one row for each account. A row with a uid is kubesvc's and can be made anew from its object;
-- a row without one was written by somebody else, and kubesvc leaves it alone. Times are epoch milliseconds.
CREATE TABLE IF NOT EXISTS kubesvc_accounts (
    name                  TEXT    NOT NULL PRIMARY KEY,
    uid                   TEXT    NULL UNIQUE,
    status                TEXT    NOT NULL DEFAULT '',
    zone_id               TEXT    NULL,
    is_dynamic            INTEGER NOT NULL DEFAULT 0,
    origin                TEXT    NOT NULL DEFAULT '',
    definition            TEXT    NULL,
    props                 TEXT    NULL,
    kube_host             TEXT    NULL,
    kube_version          TEXT    NULL,
    cert_fingerprint      TEXT    NULL,
    cluster_uid           TEXT    NULL,
    max_watch_age_seconds INTEGER NULL,
    namespaces            TEXT    NULL,
    namespaces_count      INTEGER NULL,
    error_message         TEXT    NULL,
    failed_count          INTEGER NOT NULL DEFAULT 0,
    next_retry_time       INTEGER NULL,
    generation            INTEGER NOT NULL DEFAULT 0,
    observed_generation   INTEGER NOT NULL DEFAULT 0,
    last_updated          INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE INDEX IF NOT EXISTS idx_kubesvc_accounts_status ON kubesvc_accounts (status);
CREATE INDEX IF NOT EXISTS idx_kubesvc_accounts_zone_id ON kubesvc_accounts (zone_id);
