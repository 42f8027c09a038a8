-- The objects of the clusters, one row each, as their accounts' agents see them. The body is a text or compressed, or it
-- was left out. Times are epoch milliseconds. Some of each page stays free, and no index has a column that every update
-- changes, so that an update finds room beside the row and leaves the indexes alone.
CREATE TABLE IF NOT EXISTS kubesvc_cache (
    id               varchar(512) COLLATE "C" NOT NULL,
    agent            varchar(191) COLLATE "C" NOT NULL,
    kind             varchar(320) COLLATE "C" NOT NULL,
    account          varchar(255) COLLATE "C" NOT NULL,
    application      varchar(255) COLLATE "C" NULL,
    namespace        varchar(63)  COLLATE "C" NOT NULL DEFAULT '',
    name             varchar(253) COLLATE "C" NOT NULL,
    api_version      varchar(320) COLLATE "C" NULL,
    uid              varchar(64)  COLLATE "C" NULL,
    resource_version varchar(64)  COLLATE "C" NOT NULL,
    body_hash        char(64)     COLLATE "C" NOT NULL,
    body             text         NULL,
    body_z           bytea        NULL,
    last_updated     bigint       NOT NULL,
    CONSTRAINT pk_kubesvc_cache_object PRIMARY KEY (id)
) WITH (fillfactor = 85);
CREATE INDEX IF NOT EXISTS ix_kubesvc_cache_account_kind_namespace ON kubesvc_cache (account, kind, namespace);
CREATE INDEX IF NOT EXISTS ix_kubesvc_cache_application_kind ON kubesvc_cache (application, kind);
-- It is compressed already.
ALTER TABLE kubesvc_cache ALTER COLUMN body_z SET STORAGE EXTERNAL;
-- lz4 is faster than the default by more than half. A server that was built without it keeps the default.
DO $$
BEGIN
    ALTER TABLE kubesvc_cache ALTER COLUMN body SET COMPRESSION lz4;
EXCEPTION
    -- Before PostgreSQL 14 there is no such setting at all.
    WHEN feature_not_supported OR syntax_error THEN NULL;
END
$$;
