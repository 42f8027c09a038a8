-- Operations that ended, and writes through the accounts' API: who asked for what, of which account, and what became of
-- it. Times are epoch milliseconds. No manifest and no answer's body is stored.
CREATE TABLE IF NOT EXISTS kubesvc_ops_history (
    operation_id                               TEXT    NOT NULL PRIMARY KEY,
    operation_type                             TEXT    NOT NULL,
    account                                    TEXT    NOT NULL,
    account_uid                                TEXT    NULL,
    start_time                                 INTEGER NOT NULL,
    end_time                                   INTEGER NULL,
    total_duration_ms                          INTEGER NULL,
    final_outcome                              TEXT    NOT NULL,
    received_by_cd_id                          TEXT    NULL,
    received_by_cd_time                        INTEGER NULL,
    processed_by_cd_id                         TEXT    NULL,
    processed_by_cd_time                       INTEGER NULL,
    sent_to_agent_id                           TEXT    NULL,
    sent_to_agent_time                         INTEGER NULL,
    res_received_from_agent_agent_id           TEXT    NULL,
    res_received_from_agent_cd_id              TEXT    NULL,
    res_received_from_agent_time               INTEGER NULL,
    res_received_from_agent_result_status      INTEGER NULL,
    res_received_from_agent_result_duration_ms INTEGER NULL,
    res_received_by_cd_id                      TEXT    NULL,
    res_received_by_cd_time                    INTEGER NULL,
    principal                                  TEXT    NULL,
    request_id                                 TEXT    NULL,
    dry_run                                    INTEGER NOT NULL
) STRICT;
CREATE INDEX IF NOT EXISTS ix_kubesvc_ops_history_start_time ON kubesvc_ops_history (start_time);
CREATE INDEX IF NOT EXISTS ix_kubesvc_ops_history_account ON kubesvc_ops_history (account, start_time);
