-- DuckDB: the samples of a fleet, read from csv/host=HOST/build=BUILD/SESSION.csv or .csv.gz in the current folder.
-- Columns are told by their place: value is that of --by.
CREATE OR REPLACE VIEW samples AS
SELECT * EXCLUDE (filename, number), regexp_extract(filename, '([^/]*?)[.]csv[^/]*$', 1) AS session
FROM read_csv('csv/host=*/build=*/*.csv*', header = true, auto_detect = false, quote = '"', escape = '"',
  filename = true, hive_partitioning = true, hive_types_autocast = false,
  columns = {
    name: 'VARCHAR', value: 'VARCHAR', number: 'INTEGER', client: 'INTEGER', id: 'UBIGINT',
    t_ns: 'BIGINT', begin_ns: 'BIGINT', duration_ns: 'BIGINT', on_cpu_ns: 'BIGINT', guest_ns: 'BIGINT',
    host_interrupt_ns: 'BIGINT', kernel_ns: 'BIGINT', vmm_ns: 'BIGINT', stolen_ns: 'BIGINT', behind_ns: 'BIGINT',
    runnable_ns: 'BIGINT', halted_ns: 'BIGINT', blocked_ns: 'BIGINT', off_cpu_ns: 'BIGINT', idle_ns: 'BIGINT',
    unknown_ns: 'BIGINT', session_uuid: 'VARCHAR'
  });
