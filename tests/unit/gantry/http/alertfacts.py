"""A gateway's answers about objectives, alerts and webhooks."""

ALERT = {
    "id": "a-1", "group": "G", "topic": "T", "verdict": "STOPPED", "opened_at": "", "since": "", "seen_at": "",
    "seen_verdict": "OK", "lag_messages": 7, "lag_seconds": None, "run": "r-1",
}  # fmt: skip
ALERT_EVENT = {
    "id": "5", "at": "", "alert": "a-1", "kind": "opened", "group": "G", "topic": "T", "old_verdict": None,
    "new_verdict": "STOPPED", "since": "", "lag_messages": None, "lag_seconds": 1.5, "cause": None, "run": "r-1",
}  # fmt: skip
WEBHOOK = {
    "id": "w-1", "url": "https://h/", "groups": ["*"], "verdicts": [], "enabled": True, "created_at": "",
    "updated_at": "",
}  # fmt: skip
DELIVERY = {
    "id": "d-1", "webhook": "w-1", "event": None, "status": "pending", "attempts": 0, "created_at": "",
    "next_attempt_at": "", "finished_at": None, "last_status": None, "last_error": None,
}  # fmt: skip
OBJECTIVE = {
    "group": "G", "topic": None, "max_lag_seconds": 60.0, "max_lag_messages": None, "ignore": False, "ignore_until": None,
    "reason": None, "updated_at": "",
}  # fmt: skip
