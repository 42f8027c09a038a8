-- From which agent the objects of an account are taken. Rows under another epoch are not. Half of each page stays free,
-- so that an update finds room beside the row.
CREATE TABLE IF NOT EXISTS kubesvc_caching (
    account_uid   varchar(36)  COLLATE "C" NOT NULL PRIMARY KEY,
    account       varchar(255) COLLATE "C" NOT NULL UNIQUE,
    epoch         bigint       NOT NULL,
    agent_id      varchar(191) COLLATE "C" NULL,
    boot_id       varchar(26)  COLLATE "C" NULL,
    replica_id    varchar(191) COLLATE "C" NULL,
    committed_seq bigint       NOT NULL DEFAULT 0,
    last_updated  bigint       NOT NULL
) WITH (fillfactor = 50);
