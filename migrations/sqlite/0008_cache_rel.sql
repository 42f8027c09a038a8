-- How the objects relate: to their owners, applications and clusters. `rel_hash` stands for (rel1_id, rel2_id,
-- rel2_type), which are too long for a key on all databases. `rel2_id` may name an object that is not cached.
CREATE TABLE IF NOT EXISTS kubesvc_cache_rel (
    rel_hash     TEXT    NOT NULL PRIMARY KEY,
    rel1_id      TEXT    NOT NULL,
    rel2_id      TEXT    NOT NULL,
    rel1_type    TEXT    NULL,
    rel2_type    TEXT    NULL,
    last_updated INTEGER NOT NULL,
    CONSTRAINT fk_kubesvc_cache_rel_object FOREIGN KEY (rel1_id) REFERENCES kubesvc_cache (id) ON DELETE CASCADE
) STRICT;
CREATE INDEX IF NOT EXISTS ix_kubesvc_cache_rel_rel1_id ON kubesvc_cache_rel (rel1_id);
CREATE INDEX IF NOT EXISTS ix_kubesvc_cache_rel_rel2_id ON kubesvc_cache_rel (rel2_id);
