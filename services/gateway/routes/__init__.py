"""The HTTP interface: paths, parameters and answers; what happens in between is the use cases' business."""
