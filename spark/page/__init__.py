"""The HTML pages of reports: one self-contained file for each run, without scripts or external resources."""

from spark.page.backlogpage import BACKLOG_PAGE as BACKLOG_PAGE
from spark.page.chart import prepare_drawing as prepare_drawing
from spark.page.combinedrows import charted_pairs as charted_pairs
from spark.page.lagpage import LAG_PAGE as LAG_PAGE
from spark.page.page import Page as Page
from spark.page.render import render as render
from spark.page.throughputpage import THROUGHPUT_PAGE as THROUGHPUT_PAGE
