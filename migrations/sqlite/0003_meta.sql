-- What kubesvc remembers about the database itself.
CREATE TABLE IF NOT EXISTS kubesvc_meta (
    k TEXT NOT NULL PRIMARY KEY,
    v TEXT NULL
) STRICT;
