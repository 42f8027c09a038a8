-- How the objects relate: to their owners, applications and clusters. `rel_hash` stands for (rel1_id, rel2_id,
-- rel2_type), which are too long for a key. `rel2_id` may name an object that is not cached.
CREATE TABLE IF NOT EXISTS kubesvc_cache_rel (
    rel_hash     char(32)     COLLATE "C" NOT NULL,
    rel1_id      varchar(512) COLLATE "C" NOT NULL,
    rel2_id      varchar(512) COLLATE "C" NOT NULL,
    rel1_type    varchar(320) COLLATE "C" NULL,
    rel2_type    varchar(320) COLLATE "C" NULL,
    last_updated bigint       NOT NULL,
    CONSTRAINT pk_kubesvc_cache_rel_hash PRIMARY KEY (rel_hash),
    CONSTRAINT fk_kubesvc_cache_rel_object FOREIGN KEY (rel1_id) REFERENCES kubesvc_cache (id) ON DELETE CASCADE
);
CREATE INDEX IF NOT EXISTS ix_kubesvc_cache_rel_rel1_id ON kubesvc_cache_rel (rel1_id);
CREATE INDEX IF NOT EXISTS ix_kubesvc_cache_rel_rel2_id ON kubesvc_cache_rel (rel2_id);
