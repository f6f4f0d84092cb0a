-- DuckDB: the samples that to_parquet.sql wrote.
CREATE OR REPLACE VIEW samples AS
SELECT * FROM read_parquet('parquet/*/*/*.parquet', hive_partitioning = true, hive_types_autocast = false);
