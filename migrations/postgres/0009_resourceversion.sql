-- What is watched of each account, and up to which resource version it is cached: a kind, in one namespace or ('') in
-- all. NULL: it must be listed. `last_updated` is the age of that version. Half of each page stays free, so that an
-- update finds room beside the row.
CREATE TABLE IF NOT EXISTS kubesvc_resourceversion (
    id              varchar(640) COLLATE "C" NOT NULL,
    account         varchar(255) COLLATE "C" NOT NULL,
    account_uid     varchar(36)  COLLATE "C" NOT NULL,
    ns_group_kind   varchar(384) COLLATE "C" NOT NULL,
    kind            varchar(320) COLLATE "C" NOT NULL,
    namespace       varchar(63)  COLLATE "C" NOT NULL,
    resourceversion varchar(64)  COLLATE "C" NULL,
    state           varchar(16)  COLLATE "C" NOT NULL,
    shape           varchar(64)  COLLATE "C" NULL,
    filter          varchar(64)  COLLATE "C" NULL,
    problem         text         NULL,
    epoch           bigint       NOT NULL,
    sync_key        varchar(26)  COLLATE "C" NULL,
    objects         int          NULL,
    last_updated    bigint       NOT NULL,
    CONSTRAINT pk_kubesvc_resourceversion_scope PRIMARY KEY (id)
) WITH (fillfactor = 50);
CREATE INDEX IF NOT EXISTS ix_kubesvc_resourceversion_account ON kubesvc_resourceversion (account);
CREATE INDEX IF NOT EXISTS ix_kubesvc_resourceversion_account_uid ON kubesvc_resourceversion (account_uid);
CREATE INDEX IF NOT EXISTS ix_kubesvc_resourceversion_state ON kubesvc_resourceversion (state);
