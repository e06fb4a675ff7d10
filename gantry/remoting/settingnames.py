"""Names of settings: RocketMQ's on the wire (`brokerIP1`), in snake_case here (`broker_ip1`)."""

# Names that the rule does not give: RocketMQ writes an abbreviation in capital letters.
_IRREGULAR = {
    "broker_ip1": "brokerIP1",
    "enabled_append_prop_crc": "enabledAppendPropCRC",
}
_IRREGULAR_BACK = {wire_name: name for name, wire_name in _IRREGULAR.items()}


def camel_case(name: str) -> str:
    """Return the RocketMQ name of a setting."""
    if name in _IRREGULAR:
        return _IRREGULAR[name]
    first, *rest = name.split("_")
    return first + "".join(part.capitalize() for part in rest)


def snake_case(name: str) -> str:
    """Return the snake_case name of one of RocketMQ's settings."""
    if name in _IRREGULAR_BACK:
        return _IRREGULAR_BACK[name]
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name)
