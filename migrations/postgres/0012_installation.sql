-- Which installation the database belongs to, by the namespace of its operator. One row.
CREATE TABLE IF NOT EXISTS kubesvc_installation (
    id            integer      NOT NULL PRIMARY KEY,
    namespace_uid varchar(36)  COLLATE "C" NOT NULL,
    namespace     varchar(253) COLLATE "C" NOT NULL,
    claimed_at    bigint       NOT NULL
);
