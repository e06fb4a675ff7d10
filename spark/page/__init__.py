"""The reports' HTML pages: one self-contained file a run, without scripts and without anything fetched."""

from spark.page.chart import prepare_drawing as prepare_drawing
from spark.page.folds import charted_pairs as charted_pairs
from spark.page.render import render as render
