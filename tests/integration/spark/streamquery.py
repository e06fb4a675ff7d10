"""A query that counts messages as they come, in a process of its own, so that a test can kill it.

    python -m tests.integration.spark.streamquery NAMESRV CHECKPOINT OUTPUT

OUTPUT is replaced after each batch: the running aggregate as the query knows it.
"""

import json
import sys
from pathlib import Path

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it.

from spark.session import SessionSettings, open_session
from tests.support.stack import CLASS_ARCHIVE


def main(namesrv: str, checkpoint: str, output: str) -> None:
    """Run until killed."""
    settings = SessionSettings(
        is_brief=True, driver_memory="512m", shuffle_partitions=1, class_archive=str(CLASS_ARCHIVE)
    )
    session = open_session("stream-test", master="local[2]", settings=settings)
    messages = (
        session.readStream.format("gantry")
        .options(kind="messages", namesrv=namesrv, topics="Stream", maxMessagesPerTrigger="400")
        .load()
    )
    number = F.expr("cast(properties['n'] as long)")
    counted = messages.groupBy("queue_id").agg(
        F.count("*").alias("messages"), F.sum(number).alias("sum"), F.sum(number * number).alias("squares")
    )

    def keep(batch: DataFrame, batch_id: int) -> None:
        rows = [row.asDict() for row in batch.collect()]
        scratch = Path(output + ".tmp")
        scratch.write_text(json.dumps({"batch": batch_id, "rows": rows}))
        scratch.replace(output)

    query = (
        counted.writeStream.outputMode("complete").foreachBatch(keep).option("checkpointLocation", checkpoint).start()
    )
    query.awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
