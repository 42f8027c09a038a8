-- From which agent the objects of an account are taken. Rows under another epoch are not.
CREATE TABLE IF NOT EXISTS kubesvc_caching (
    account_uid   varchar(36)  NOT NULL,
    account       varchar(255) NOT NULL,
    epoch         bigint       NOT NULL,
    agent_id      varchar(191) NULL,
    boot_id       varchar(26)  NULL,
    replica_id    varchar(191) NULL,
    committed_seq bigint       NOT NULL DEFAULT 0,
    last_updated  bigint       NOT NULL,
    PRIMARY KEY (account_uid),
    UNIQUE KEY uq_kubesvc_caching_account (account)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;
