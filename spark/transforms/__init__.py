"""DataFrame → DataFrame: what reports compute. No I/O, no clock; the moment of a report is an argument."""
