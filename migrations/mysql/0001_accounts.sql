-- What Spinnaker reads: one row for each account. A row with a uid is kubesvc's and can be made anew from its object;
-- a row without one was written by somebody else, and kubesvc leaves it alone. Times are epoch milliseconds.
CREATE TABLE IF NOT EXISTS kubesvc_accounts (
    name                  varchar(255) NOT NULL,
    uid                   varchar(36)  NULL,
    status                varchar(32)  NOT NULL DEFAULT '',
    zone_id               varchar(255) NULL,
    is_dynamic            tinyint(1)   NOT NULL DEFAULT 0,
    origin                varchar(16)  NOT NULL DEFAULT '',
    definition            longtext     NULL,
    props                 longtext     NULL,
    kube_host             varchar(512) NULL,
    kube_version          varchar(64)  NULL,
    cert_fingerprint      varchar(128) NULL,
    cluster_uid           varchar(36)  NULL,
    max_watch_age_seconds bigint       NULL,
    namespaces            longtext     NULL,
    namespaces_count      int          NULL,
    error_message         longtext     NULL,
    failed_count          int          NOT NULL DEFAULT 0,
    next_retry_time       bigint       NULL,
    generation            bigint       NOT NULL DEFAULT 0,
    observed_generation   bigint       NOT NULL DEFAULT 0,
    last_updated          bigint       NOT NULL DEFAULT 0,
    PRIMARY KEY (name),
    UNIQUE KEY uq_kubesvc_accounts_uid (uid),
    KEY idx_kubesvc_accounts_status (status),
    KEY idx_kubesvc_accounts_zone_id (zone_id)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;
