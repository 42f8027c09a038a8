-- The objects of the clusters, one row each, as their accounts' agents see them. The body is a text or compressed, or it
-- was left out. Times are epoch milliseconds.
CREATE TABLE IF NOT EXISTS kubesvc_cache (
    id               varchar(512) NOT NULL,
    agent            varchar(191) NOT NULL,
    kind             varchar(320) NOT NULL,
    account          varchar(255) NOT NULL,
    application      varchar(255) NULL,
    namespace        varchar(63)  NOT NULL DEFAULT '',
    name             varchar(253) NOT NULL,
    api_version      varchar(320) NULL,
    uid              varchar(64)  NULL,
    resource_version varchar(64)  NOT NULL,
    body_hash        char(64)     NOT NULL,
    body             longtext     NULL,
    body_z           longblob     NULL,
    last_updated     bigint       NOT NULL,
    PRIMARY KEY (id),
    KEY ix_kubesvc_cache_account_kind_namespace (account, kind, namespace),
    KEY ix_kubesvc_cache_application_kind (application, kind)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;
