-- How many agents hold the account, over all replicas. Not run where the column is there already.
ALTER TABLE kubesvc_accounts ADD COLUMN connections int NOT NULL DEFAULT 0;
