-- What is watched of each account, and up to which resource version it is cached: a kind, in one namespace or ('') in
-- all. NULL: it must be listed. `last_updated` is the age of that version.
CREATE TABLE IF NOT EXISTS kubesvc_resourceversion (
    id              varchar(640) NOT NULL,
    account         varchar(255) NOT NULL,
    account_uid     varchar(36)  NOT NULL,
    ns_group_kind   varchar(384) NOT NULL,
    kind            varchar(320) NOT NULL,
    namespace       varchar(63)  NOT NULL,
    resourceversion varchar(64)  NULL,
    state           varchar(16)  NOT NULL,
    shape           varchar(64)  NULL,
    filter          varchar(64)  NULL,
    problem         longtext     NULL,
    epoch           bigint       NOT NULL,
    sync_key        varchar(26)  NULL,
    objects         int          NULL,
    last_updated    bigint       NOT NULL,
    PRIMARY KEY (id),
    KEY ix_kubesvc_resourceversion_account (account),
    KEY ix_kubesvc_resourceversion_account_uid (account_uid),
    KEY ix_kubesvc_resourceversion_state (state)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;
