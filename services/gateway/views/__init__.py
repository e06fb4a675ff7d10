"""Views: the results of use cases in the form of answers and frames, for JSON and MessagePack."""
