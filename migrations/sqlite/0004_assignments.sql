-- Which agents hold which accounts, and at which replica (cd_id) their streams end. Each replica writes its own rows.
CREATE TABLE IF NOT EXISTS kubesvc_assignments (
    id           INTEGER NOT NULL PRIMARY KEY,
    account_name TEXT    NOT NULL,
    agent_id     TEXT    NOT NULL,
    cd_id        TEXT    NOT NULL,
    connections  INTEGER NOT NULL,
    caching      INTEGER NOT NULL,
    reachable    INTEGER NOT NULL,
    last_updated INTEGER NOT NULL,
    UNIQUE (account_name, agent_id, cd_id)
) STRICT;
CREATE INDEX IF NOT EXISTS idx_kubesvc_assignments_cd_id ON kubesvc_assignments (cd_id);
