"""What requests and answers look like: typed decoding, and the views that answers are made of."""
