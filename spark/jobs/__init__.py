"""The jobs: `python -m spark.jobs.lag_report`, `throughput_rollup`, `backlog_profile`."""
