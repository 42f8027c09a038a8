-- Operations that are open, one row each: who asked for what, of which account, and how far it is. Times are epoch
-- milliseconds. No manifest and no answer's body is stored.
CREATE TABLE IF NOT EXISTS kubesvc_ops (
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
    dry_run                                    INTEGER NOT NULL,
    state                                      TEXT    NOT NULL,
    deadline                                   INTEGER NOT NULL,
    idempotent                                 INTEGER NOT NULL,
    last_write                                 TEXT    NULL,
    agent_boot_id                              TEXT    NULL
) STRICT;
CREATE INDEX IF NOT EXISTS ix_kubesvc_ops_start_time ON kubesvc_ops (start_time);
CREATE INDEX IF NOT EXISTS ix_kubesvc_ops_account ON kubesvc_ops (account, start_time);
