-- Which installation the database belongs to, by the namespace of its operator. One row.
CREATE TABLE IF NOT EXISTS kubesvc_installation (
    id            INT     NOT NULL PRIMARY KEY,
    namespace_uid TEXT    NOT NULL,
    namespace     TEXT    NOT NULL,
    claimed_at    INTEGER NOT NULL
) STRICT;
