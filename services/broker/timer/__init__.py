"""Messages for a set time: the feature `timer`. `feature.py` says how the parts work together."""
