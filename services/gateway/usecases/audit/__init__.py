"""The audit trail and its retention."""
