"""The HTML pages of reports: one self-contained file for each run, without scripts or external resources."""

from spark.page.chart import prepare_drawing as prepare_drawing
from spark.page.folds import charted_pairs as charted_pairs
from spark.page.render import render as render
