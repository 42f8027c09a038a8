-- What the API server warned of while an operation ran, as a JSON array of texts; NULL: of nothing. Not run where the column
-- is there already.
ALTER TABLE kubesvc_ops_history ADD COLUMN warnings mediumtext NULL;
