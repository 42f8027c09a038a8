-- Which agents hold which accounts, and at which replica (cd_id) their streams end. Each replica writes its own rows.
CREATE TABLE IF NOT EXISTS kubesvc_assignments (
    id           bigint       NOT NULL AUTO_INCREMENT,
    account_name varchar(255) NOT NULL,
    agent_id     varchar(191) NOT NULL,
    cd_id        varchar(191) NOT NULL,
    connections  int          NOT NULL,
    caching      tinyint(1)   NOT NULL,
    reachable    tinyint(1)   NOT NULL,
    last_updated bigint       NOT NULL,
    PRIMARY KEY (id),
    UNIQUE KEY uq_kubesvc_assignments (account_name, agent_id, cd_id),
    KEY idx_kubesvc_assignments_cd_id (cd_id)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;
