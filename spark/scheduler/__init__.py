"""The scheduler of reports: cron, requested runs, at most one active run per job, time-outs, retries."""
