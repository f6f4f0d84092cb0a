-- DuckDB: writes the samples that csv.sql reads to parquet/host=HOST/build=BUILD/, in place of older ones.
COPY samples TO 'parquet' (FORMAT parquet, COMPRESSION zstd, PARTITION_BY (host, build), OVERWRITE);
