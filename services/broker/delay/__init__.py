"""Delay levels: messages that wait in SCHEDULE_TOPIC_XXXX and are delivered to their topic after the delay of their level."""
