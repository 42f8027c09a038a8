-- What kubesvc remembers about the database itself.
CREATE TABLE IF NOT EXISTS kubesvc_meta (
    k varchar(128) NOT NULL,
    v longtext     NULL,
    PRIMARY KEY (k)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;
