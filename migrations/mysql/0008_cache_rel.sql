-- How the objects relate: to their owners, applications and clusters. `rel_hash` stands for (rel1_id, rel2_id,
-- rel2_type), which are too long for a key. `rel2_id` may name an object that is not cached.
CREATE TABLE IF NOT EXISTS kubesvc_cache_rel (
    rel_hash     char(32)     NOT NULL,
    rel1_id      varchar(512) NOT NULL,
    rel2_id      varchar(512) NOT NULL,
    rel1_type    varchar(320) NULL,
    rel2_type    varchar(320) NULL,
    last_updated bigint       NOT NULL,
    PRIMARY KEY (rel_hash),
    KEY ix_kubesvc_cache_rel_rel1_id (rel1_id),
    KEY ix_kubesvc_cache_rel_rel2_id (rel2_id),
    CONSTRAINT fk_kubesvc_cache_rel_object FOREIGN KEY (rel1_id) REFERENCES kubesvc_cache (id) ON DELETE CASCADE
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;
