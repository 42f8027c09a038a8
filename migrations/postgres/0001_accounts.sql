-- What Spinnaker reads: one row for each account. A row with a uid is kubesvc's and can be made anew from its object;
-- a row without one was written by somebody else, and kubesvc leaves it alone. Times are epoch milliseconds.
CREATE TABLE IF NOT EXISTS kubesvc_accounts (
    name                  varchar(255) COLLATE "C" NOT NULL PRIMARY KEY,
    uid                   varchar(36)  COLLATE "C" NULL UNIQUE,
    status                varchar(32)  COLLATE "C" NOT NULL DEFAULT '',
    zone_id               varchar(255) COLLATE "C" NULL,
    is_dynamic            boolean      NOT NULL DEFAULT false,
    origin                varchar(16)  COLLATE "C" NOT NULL DEFAULT '',
    definition            text         NULL,
    props                 text         NULL,
    kube_host             varchar(512) COLLATE "C" NULL,
    kube_version          varchar(64)  COLLATE "C" NULL,
    cert_fingerprint      varchar(128) COLLATE "C" NULL,
    cluster_uid           varchar(36)  COLLATE "C" NULL,
    max_watch_age_seconds bigint       NULL,
    namespaces            text         NULL,
    namespaces_count      int          NULL,
    error_message         text         NULL,
    failed_count          int          NOT NULL DEFAULT 0,
    next_retry_time       bigint       NULL,
    generation            bigint       NOT NULL DEFAULT 0,
    observed_generation   bigint       NOT NULL DEFAULT 0,
    last_updated          bigint       NOT NULL DEFAULT 0
);
CREATE INDEX IF NOT EXISTS idx_kubesvc_accounts_status ON kubesvc_accounts (status);
CREATE INDEX IF NOT EXISTS idx_kubesvc_accounts_zone_id ON kubesvc_accounts (zone_id);
-- lz4 is faster than the default by half. A server that was built without it keeps the default.
DO $$
BEGIN
    ALTER TABLE kubesvc_accounts
        ALTER COLUMN definition SET COMPRESSION lz4,
        ALTER COLUMN props SET COMPRESSION lz4,
        ALTER COLUMN namespaces SET COMPRESSION lz4;
EXCEPTION
    -- Before PostgreSQL 14 there is no such setting at all.
    WHEN feature_not_supported OR syntax_error THEN NULL;
END
$$;
