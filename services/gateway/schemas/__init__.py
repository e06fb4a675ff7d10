"""Shapes of requests and answers: typed decoding, and the views that answers consist of."""
