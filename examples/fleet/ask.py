"""Answers questions about the samples of a fleet, by DuckDB or by Spark: those of questions.sql, or others."""

import argparse
import csv
import os
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent

# Columns of `hypertrace regions --samples` by their place, as csv.sql names them.
SCHEMA = """name STRING, value STRING, number INT, client INT, id DECIMAL(20, 0), t_ns BIGINT, begin_ns BIGINT,
    duration_ns BIGINT, on_cpu_ns BIGINT, guest_ns BIGINT, host_interrupt_ns BIGINT, kernel_ns BIGINT, vmm_ns BIGINT,
    stolen_ns BIGINT, behind_ns BIGINT, runnable_ns BIGINT, halted_ns BIGINT, blocked_ns BIGINT, off_cpu_ns BIGINT,
    idle_ns BIGINT, unknown_ns BIGINT, session_uuid STRING"""


def statements(name):
    """Returns the statements of a file."""
    lines = (HERE / name).read_text().splitlines()
    text = "\n".join(line for line in lines if not line.startswith("--"))
    return [statement for statement in text.split(";") if statement.strip()]


def stop(why):
    """Ends the program with a line that says what to do."""
    sys.exit(f"ask.py: {why}")


def duckdb(fleet, parquet):
    """Returns a function from a statement to the names of its columns and its rows."""
    files, remedy = "csv/host=*/build=*/*.csv*", "the README.md beside ask.py has the commands"
    if parquet:
        files, remedy = "parquet/*/*/*.parquet", "--write-parquet makes them"
    if next(pathlib.Path(fleet).glob(files), None) is None:
        stop(f"no files {fleet}/{files}: {remedy}")
    try:
        import duckdb
    except ImportError:
        stop("no duckdb: pip install duckdb")

    os.chdir(fleet)
    connection = duckdb.connect()
    connection.execute(*statements("parquet.sql" if parquet else "csv.sql"))

    def answer(statement):
        rows = connection.execute(statement).fetchall()
        return [column[0] for column in connection.description], rows

    return answer


def spark(fleet, parquet, master):
    """Returns the same for Spark."""
    try:
        from pyspark.sql import SparkSession, functions
    except ImportError:
        stop("no pyspark: pip install pyspark")

    builder = SparkSession.builder.config("spark.sql.sources.partitionColumnTypeInference.enabled", "false")
    session = (builder.master(master) if master else builder).getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    if parquet:
        samples = session.read.parquet(fleet + "/parquet")
    else:
        reader = session.read.schema(SCHEMA).options(header=True, quote='"', escape='"', mode="FAILFAST")
        name = functions.regexp_extract("_metadata.file_name", "^(.*?)[.]csv", 1)
        samples = reader.csv(fleet + "/csv", pathGlobFilter="*.csv*").withColumn("session", name)
    samples.createOrReplaceTempView("samples")

    def answer(statement):
        rows = session.sql(statement)
        return rows.columns, rows.collect()

    return answer


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("fleet", help="folder with csv/host=HOST/build=BUILD/SESSION.csv (or .csv.gz); for Spark also a URL")
    parser.add_argument("--sql", help="another question: a SELECT .. FROM samples")
    parser.add_argument("--write-parquet", action="store_true", help="write FLEET/parquet by DuckDB, and ask nothing")
    parser.add_argument("--parquet", action="store_true", help="read FLEET/parquet")
    parser.add_argument("--spark", action="store_true", help="ask Spark, not DuckDB")
    parser.add_argument("--master", help="where Spark runs: local[*] is this machine; default: what spark-submit says")
    args = parser.parse_args()
    answer = spark(args.fleet, args.parquet, args.master) if args.spark else duckdb(args.fleet, args.parquet)
    if args.write_parquet:
        answer(*statements("to_parquet.sql"))
        return
    out = csv.writer(sys.stdout, lineterminator="\n")
    for question in [args.sql] if args.sql else statements("questions.sql"):
        columns, rows = answer(question)
        try:
            out.writerows([columns, *rows, []])
            sys.stdout.flush()
        except BrokenPipeError:
            # The reader has closed the pipe, as `head` does. Python flushes stdout again when the program
            # ends.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return


if __name__ == "__main__":
    main()
