"""The kinds of rows that `spark.read.format("gantry")` returns, one module for each."""
