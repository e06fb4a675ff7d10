"""Samples of offsets and queue ends, from which reports compute rates and trends."""
