-- Which installation the database belongs to, by the namespace of its operator. One row.
CREATE TABLE IF NOT EXISTS kubesvc_installation (
    id            int          NOT NULL,
    namespace_uid varchar(36)  NOT NULL,
    namespace     varchar(253) NOT NULL,
    claimed_at    bigint       NOT NULL,
    PRIMARY KEY (id)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;
