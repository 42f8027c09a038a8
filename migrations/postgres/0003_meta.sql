-- What kubesvc remembers about the database itself.
CREATE TABLE IF NOT EXISTS kubesvc_meta (
    k varchar(128) COLLATE "C" NOT NULL PRIMARY KEY,
    v text         NULL
);
