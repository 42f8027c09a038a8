-- Writes of accounts that are passed on to Clouddriver, by name. A row is committed before the call that it stands for.
CREATE TABLE IF NOT EXISTS kubesvc_intents (
    name       varchar(255) NOT NULL,
    verb       varchar(16)  NOT NULL,
    body_hash  varchar(64)  NULL,
    replica_id varchar(191) NOT NULL,
    started_at bigint       NOT NULL,
    tries      int          NOT NULL DEFAULT 0,
    PRIMARY KEY (name)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;
