"""The scheduler of reports: cron, runs that were asked for, one at a time a job, time-outs, retries."""
