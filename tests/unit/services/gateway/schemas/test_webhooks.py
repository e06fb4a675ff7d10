"""Allowed addresses of webhooks, and the secrets that sign their deliveries."""

import base64
import ipaddress
from typing import Any

import msgspec
import pytest

from gantry.model.errors import InvalidValueError
from services.gateway.schemas.reading import read_json
from services.gateway.schemas.webhooks import (
    NewWebhook,
    WebhookChange,
    check_url,
    is_allowed,
    key_of,
    make_secret,
    wanted_columns,
)

TEN = ipaddress.ip_network("10.1.0.0/16")


@pytest.mark.parametrize(
    "address", ["8.8.8.8", "2606:4700::1111", "::ffff:8.8.8.8", "64:ff9b::808:808", "2002:808:808::1"]
)
def test_public_addresses_are_allowed(address: str) -> None:
    assert is_allowed(ipaddress.ip_address(address), [])


@pytest.mark.parametrize(
    "address",
    [
        "0.0.0.0", "10.0.0.1", "127.0.0.1", "127.8.8.8", "169.254.169.254", "172.16.0.1", "192.168.1.1", "100.64.0.1",
        "192.0.2.1", "198.18.0.1", "224.0.0.1", "240.0.0.1", "255.255.255.255", "::", "::1", "fe80::1", "fc00::1",
        "fec0::1", "ff0e::1", "2001:db8::1",
        # Forbidden addresses inside other notations.
        "::ffff:127.0.0.1", "::ffff:10.0.0.1", "64:ff9b::a00:1", "64:ff9b::7f00:1", "2002:a00:1::1", "2002:7f00:1::",
        "2001:0:4136:e378:8000:63bf:f5ff:fffe", "::127.0.0.1", "::10.0.0.1", "::ffff:0:127.0.0.1", "64:ff9b:1::7f00:1",
    ],
)  # fmt: skip
def test_addresses_that_are_not_public_are_refused(address: str) -> None:
    assert not is_allowed(ipaddress.ip_address(address), [])


def test_a_setting_allows_these_networks_only() -> None:
    for address in ("10.1.2.3", "::ffff:10.1.2.3"):
        assert is_allowed(ipaddress.ip_address(address), [TEN])
    for address in ("10.2.0.1", "127.0.0.1", "::1"):
        assert not is_allowed(ipaddress.ip_address(address), [TEN])


@pytest.mark.parametrize(
    "url",
    ["https://hooks.example/x?y=1", "http://hooks.example:8080", "https://8.8.8.8/", "https://[2606:4700::1111]:1/"],
)
def test_valid_urls(url: str) -> None:
    check_url(url, [])


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("ftp://hooks.example/", "is not https://HOST/PATH"),
        ("https:///x", "is not https://HOST/PATH"),
        ("hooks.example", "is not https://HOST/PATH"),
        ("https://hooks.example/ x", "printable ASCII"),
        ("https://hööks.example/", "printable ASCII"),
        ("https://u:p@hooks.example/", "contains credentials"),
        ("https://u@hooks.example/", "contains credentials"),
        ("https://hooks.example/#f", "has a fragment"),
        ("https://hooks.example:99999/", "is not a valid URL"),
        ("https://hooks.example:0/", "has port 0"),
        ("https://[::1/", "is not a valid URL"),
        ("https://hooks.example/" + "x" * 2_000, "is longer than 2,000"),
        ("http://127.0.0.1:5432/", "not public"),
        ("http://169.254.169.254/latest/meta-data", "not public"),
        ("http://[::ffff:10.0.0.1]/", "not public"),
    ],
)
def test_invalid_urls(url: str, reason: str) -> None:
    with pytest.raises(InvalidValueError, match=reason) as refused:
        check_url(url, [TEN])
    assert refused.value.field == "/url"
    assert "u:p" not in str(refused.value)


def read(kind: Any, **fields: Any) -> Any:
    return read_json(msgspec.json.encode(fields), msgspec.json.Decoder(kind))


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"url": "http://10.0.0.1/"}, "/url"),
        ({"url": "https://h/", "verdicts": ["OK", "FINE"]}, "/verdicts/1"),
        ({"url": "https://h/", "groups": []}, "/groups"),
        ({"url": "https://h/", "groups": ["a b"]}, "/groups/0"),
        ({"url": "https://h/", "groups": ["a"] * 21}, "/groups"),
        ({"url": "https://h/", "secret": "geheim"}, "/secret"),
        ({"url": "https://h/", "secret": "whsec_" + base64.b64encode(b"x" * 23).decode()}, "/secret"),
        ({"url": "https://h/", "secret": "whsec_" + base64.b64encode(b"x" * 65).decode()}, "/secret"),
        ({"groups": ["*"]}, "/url"),
    ],
)
def test_invalid_webhooks_are_refused_by_field(fields: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidValueError) as refused:
        wanted_columns(read(NewWebhook, **fields), [])
    assert refused.value.field == field
    assert fields.get("secret", "geheim") not in str(refused.value)


def test_a_new_webhook_gets_a_secret_unless_given_and_a_change_keeps_other_fields() -> None:
    made = wanted_columns(read(NewWebhook, url="https://h/"), [])
    assert (made["groups"], made["verdicts"], made["enabled"]) == (["*"], [], True)
    assert len(key_of(made["secret"])) == 32
    own = make_secret()
    assert wanted_columns(read(NewWebhook, url="https://h/", secret=own), [])["secret"] == own
    assert wanted_columns(read(WebhookChange, enabled=False), []) == {"enabled": False}
