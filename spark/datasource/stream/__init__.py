"""`spark.readStream.format("gantry")`: offsets, batches and lost messages of a stream."""
