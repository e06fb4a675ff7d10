"""`spark.read.format("gantry")`: offsets, backlogs and messages as rows."""
