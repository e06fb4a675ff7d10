"""The tables of samples and reports; migrations/versions create them.

They are plain tables and not mapped classes: samples and results are written and read in bulk, mostly by Spark's jobs,
and have no identity of their own.

| table | written by | holds |
|---|---|---|
| lag_sample_rounds, lag_sample_blocks | the gateway (usecases/sampling/sampler.py) | offsets of all groups and topics, every 15 s if they changed |
| lag_offset_resets, lag_sample_outages | the same (sampleevents.py) | resets of committed offsets; times in which a broker gave no numbers |
| lag_samples | gateways before migration 0016 | the same, a row a group; read until it is too old (spark/oldsamples.py) |
| report_runs | gateway (requests), scheduler and jobs (the rest) | runs of jobs |
| report_lag_rows, report_backlog_rows, report_pages | the job of the run, in one transaction at its end | results |
| report_throughput | job throughput_rollup | messages stored (group_name null) and consumed, a row a bucket |
| report_schedules | the scheduler | schedules of jobs, as they are in force |
| report_schedules_set | the gateway | schedules that were set over REST |

`sampled_at` of a block is the time at which its broker gave the numbers; that of a round is its begin, and `took_ms`
its duration. `kind` is a number of `gantry.model.sampleblock.Kind`, `based_at` is the time of the broker's full block
that the bytes are differences to, and `queues` is the number of group queues that a reader gets from it.
docs/formats/samples.md describes `data`.
"""

from typing import Final

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Double,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    SmallInteger,
    Table,
    Text,
    UniqueConstraint,
    Uuid,
    func,
    text,
)
from sqlalchemy.dialects.postgresql import ARRAY, JSONB

from services.gateway.db.models import MOMENT, NAME, Metadata

_METADATA: Final = Metadata.metadata
_JSON: Final = JSONB(none_as_null=True)


def _run_id(*, primary_key: bool = False) -> Column[object]:
    key = ForeignKey("report_runs.id", ondelete="CASCADE")
    return Column("run_id", Uuid, key, primary_key=primary_key, nullable=False)


LAG_SAMPLE_ROUNDS: Final = Table(
    "lag_sample_rounds",
    _METADATA,
    Column("sampled_at", MOMENT, primary_key=True),
    Column("took_ms", Integer, nullable=False),
    Column("missing", ARRAY(Text), server_default=text("'{}'::text[]"), nullable=False),
)

LAG_SAMPLE_BLOCKS: Final = Table(
    "lag_sample_blocks",
    _METADATA,
    Column("sampled_at", MOMENT, primary_key=True),
    Column("broker", NAME, primary_key=True),
    Column("kind", SmallInteger, nullable=False),
    Column("based_at", MOMENT),
    Column("queues", Integer, nullable=False),
    Column("data", LargeBinary, nullable=False),
    CheckConstraint("kind BETWEEN 0 AND 5", name="kind_known"),
    Index("ix_lag_sample_blocks_kind", "kind", "sampled_at"),
)

LAG_SAMPLES: Final = Table(
    "lag_samples",
    _METADATA,
    Column("sampled_at", MOMENT, nullable=False),
    Column("group_name", NAME),
    Column("topic", NAME, nullable=False),
    Column("broker", NAME, nullable=False),
    Column("queue_ids", ARRAY(Integer), nullable=False),
    Column("min_offsets", ARRAY(BigInteger), nullable=False),
    Column("max_offsets", ARRAY(BigInteger), nullable=False),
    Column("committed_offsets", ARRAY(BigInteger), nullable=False),
    Column("first_stored_at_ms", ARRAY(BigInteger), nullable=False),
    Index("ix_lag_samples_group_name_topic", "group_name", "topic", "sampled_at"),
    postgresql_partition_by="RANGE (sampled_at)",
)

LAG_OFFSET_RESETS: Final = Table(
    "lag_offset_resets",
    _METADATA,
    Column("seen_at", MOMENT, primary_key=True),
    Column("broker", NAME, primary_key=True),
    Column("epoch", BigInteger, primary_key=True, autoincrement=False),
    Column("is_settled", Boolean, nullable=False),
    Column("group_name", NAME, nullable=False),
    Column("topic", NAME, nullable=False),
    Column("queue_ids", ARRAY(Integer), nullable=False),
    Column("from_offsets", ARRAY(BigInteger), nullable=False),
    Column("to_offsets", ARRAY(BigInteger), nullable=False),
)

LAG_SAMPLE_OUTAGES: Final = Table(
    "lag_sample_outages",
    _METADATA,
    Column("broker", NAME, primary_key=True),
    Column("began_at", MOMENT, primary_key=True),
    Column("ended_at", MOMENT, nullable=False),
    CheckConstraint("began_at <= ended_at", name="forward"),
    Index("ix_lag_sample_outages_ended_at", "ended_at"),
)

REPORT_RUNS: Final = Table(
    "report_runs",
    _METADATA,
    Column("id", Uuid, primary_key=True, server_default=func.gen_random_uuid()),
    Column("job", NAME, nullable=False),
    Column("window_start", MOMENT),
    Column("window_end", MOMENT, server_default=func.now(), nullable=False),
    Column("trigger", Text, nullable=False),
    Column("requested_by", Text),
    Column("status", Text, server_default=text("'queued'::text"), nullable=False),
    Column("attempt", Integer, server_default=text("0"), nullable=False),
    Column("progress_percent", SmallInteger),
    Column("progress", Text),
    Column("created_at", MOMENT, server_default=func.now(), nullable=False),
    Column("started_at", MOMENT),
    Column("finished_at", MOMENT),
    Column("heartbeat_at", MOMENT),
    Column("rows", BigInteger),
    Column("error", Text),
    Column("files", _JSON),
    CheckConstraint("trigger IN ('schedule', 'manual')", name="trigger_known"),
    CheckConstraint("status IN ('queued', 'running', 'succeeded', 'failed', 'timed_out')", name="status_known"),
    CheckConstraint("progress_percent BETWEEN 0 AND 100", name="percent_range"),
    CheckConstraint("window_start < window_end", name="window_forward"),
    UniqueConstraint(
        "job", "window_start", "window_end", name="uq_report_runs_window", postgresql_nulls_not_distinct=True
    ),
    Index("ix_report_runs_job_created_at", "job", "created_at", "id"),
    Index("ix_report_runs_status_created_at", "status", "created_at"),
)

REPORT_LAG_ROWS: Final = Table(
    "report_lag_rows",
    _METADATA,
    _run_id(),
    Column("level", Text, nullable=False),
    Column("group_name", NAME, nullable=False),
    Column("topic", NAME, nullable=False),
    Column("broker", NAME),
    Column("queue_id", Integer),
    Column("as_of", MOMENT, nullable=False),
    Column("lag_messages", BigInteger),
    Column("lag_seconds", Double),
    Column("oldest_unconsumed_at", MOMENT),
    Column("in_rate", Double),
    Column("out_rate", Double),
    Column("drain_eta_s", Double),
    Column("drain_eta_low_s", Double),
    Column("drain_eta_high_s", Double),
    Column("retention_left_s", Double),
    Column("skew", Double),
    Column("top_tags", _JSON),
    Column("clients", Integer),
    Column("verdict", Text, nullable=False),
    Column("cause", Text),
    Column("next_step", Text),
    Column("evidence", _JSON),
    Column("behind_since", MOMENT),
    Column("owners", _JSON),
    CheckConstraint("level IN ('queue', 'topic')", name="level_known"),
    UniqueConstraint(
        "run_id",
        "group_name",
        "topic",
        "level",
        "broker",
        "queue_id",
        name="uq_report_lag_rows_subject",
        postgresql_nulls_not_distinct=True,
    ),
)

REPORT_BACKLOG_ROWS: Final = Table(
    "report_backlog_rows",
    _METADATA,
    _run_id(),
    Column("group_name", NAME, nullable=False),
    Column("topic", NAME, nullable=False),
    Column("section", Text, nullable=False),
    Column("bucket", Text, nullable=False),
    Column("lower_bound", Double),
    Column("upper_bound", Double),
    Column("messages", BigInteger),
    Column("bytes", BigInteger),
    CheckConstraint("section IN ('age', 'filter', 'key', 'queue', 'size', 'tag')", name="section_known"),
    Index("ix_report_backlog_rows_run_id", "run_id", "group_name", "topic", "section"),
)

REPORT_THROUGHPUT: Final = Table(
    "report_throughput",
    _METADATA,
    Column("unit", Text, nullable=False),
    Column("bucket_at", MOMENT, nullable=False),
    Column("topic", NAME, nullable=False),
    Column("group_name", NAME),
    Column("messages", BigInteger),
    Column("rate_max", Double),
    Column("lag_messages", BigInteger),
    Column("covered_s", Double),
    Column("run_id", Uuid),
    Column("updated_at", MOMENT, server_default=func.now(), nullable=False),
    CheckConstraint("unit IN ('minute', 'hour', 'day')", name="unit_known"),
    UniqueConstraint(
        "unit",
        "bucket_at",
        "topic",
        "group_name",
        name="uq_report_throughput_bucket",
        postgresql_nulls_not_distinct=True,
    ),
    Index("ix_report_throughput_topic", "topic", "group_name", "unit", "bucket_at"),
)

REPORT_PAGES: Final = Table(
    "report_pages",
    _METADATA,
    _run_id(primary_key=True),
    Column("html", Text, nullable=False),
)

REPORT_SCHEDULES: Final = Table(
    "report_schedules",
    _METADATA,
    Column("job", NAME, primary_key=True),
    Column("cron", Text, nullable=False),
    Column("next_run_at", MOMENT),
    Column("updated_at", MOMENT, server_default=func.now(), nullable=False),
    Column("time_zone", Text, server_default="UTC", nullable=False),
)

REPORT_SCHEDULES_SET: Final = Table(
    "report_schedules_set",
    _METADATA,
    Column("job", NAME, primary_key=True),
    Column("cron", Text),
    Column("time_zone", Text, nullable=False),
    Column("set_by", NAME, nullable=False),
    Column("set_at", MOMENT, server_default=func.now(), nullable=False),
)
