-- Writes of accounts that are passed on to Clouddriver, by name. A row is committed before the call that it stands for.
CREATE TABLE IF NOT EXISTS kubesvc_intents (
    name       varchar(255) COLLATE "C" NOT NULL PRIMARY KEY,
    verb       varchar(16)  COLLATE "C" NOT NULL,
    body_hash  varchar(64)  COLLATE "C" NULL,
    replica_id varchar(191) COLLATE "C" NOT NULL,
    started_at bigint       NOT NULL,
    tries      integer      NOT NULL DEFAULT 0
);
