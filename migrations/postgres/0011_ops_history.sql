-- Operations that ended, and writes through the accounts' API: who asked for what, of which account, and what became of
-- it. Times are epoch milliseconds. No manifest and no answer's body is stored.
CREATE TABLE IF NOT EXISTS kubesvc_ops_history (
    operation_id                               varchar(26) COLLATE "C"  NOT NULL,
    operation_type                             varchar(32) COLLATE "C"  NOT NULL,
    account                                    varchar(255) COLLATE "C" NOT NULL,
    account_uid                                varchar(36) COLLATE "C"  NULL,
    start_time                                 bigint                   NOT NULL,
    end_time                                   bigint                   NULL,
    total_duration_ms                          bigint                   NULL,
    final_outcome                              varchar(16) COLLATE "C"  NOT NULL,
    received_by_cd_id                          varchar(191) COLLATE "C" NULL,
    received_by_cd_time                        bigint                   NULL,
    processed_by_cd_id                         varchar(191) COLLATE "C" NULL,
    processed_by_cd_time                       bigint                   NULL,
    sent_to_agent_id                           varchar(191) COLLATE "C" NULL,
    sent_to_agent_time                         bigint                   NULL,
    res_received_from_agent_agent_id           varchar(191) COLLATE "C" NULL,
    res_received_from_agent_cd_id              varchar(191) COLLATE "C" NULL,
    res_received_from_agent_time               bigint                   NULL,
    res_received_from_agent_result_status      int                      NULL,
    res_received_from_agent_result_duration_ms bigint                   NULL,
    res_received_by_cd_id                      varchar(191) COLLATE "C" NULL,
    res_received_by_cd_time                    bigint                   NULL,
    principal                                  varchar(255) COLLATE "C" NULL,
    request_id                                 varchar(26) COLLATE "C"  NULL,
    dry_run                                    boolean                  NOT NULL,
    CONSTRAINT pk_kubesvc_ops_history_operation PRIMARY KEY (operation_id)
);
CREATE INDEX IF NOT EXISTS ix_kubesvc_ops_history_start_time ON kubesvc_ops_history (start_time);
CREATE INDEX IF NOT EXISTS ix_kubesvc_ops_history_account ON kubesvc_ops_history (account, start_time);
