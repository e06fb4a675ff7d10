"""The limits of a caller in answers."""

from services.gateway.limits import Limits, QuotaUsage, RateUsage, Usage
from services.gateway.quotas import ADDRESS, KEY
from services.gateway.settings import GatewaySettings
from services.gateway.views.limits import usage_view


def test_quotas_and_rates_are_grouped_by_scope():
    usage = Usage(
        [QuotaUsage(KEY, "streams", 1, 2, 3), QuotaUsage(ADDRESS, "streams", 4, 5, 6)],
        [RateUsage(KEY, 10, 9), RateUsage(ADDRESS, None, None)],
    )
    view = usage_view(usage)
    assert view == {
        "key": {"streams": {"max": 2, "used": 1, "all_max": 3}, "requests_per_s": {"max": 10, "left": 9}},
        "address": {"streams": {"max": 5, "used": 4, "all_max": 6}, "requests_per_s": {"max": None, "left": None}},
    }
    assert list(view["key"]["streams"]) == ["max", "used", "all_max"]


def test_a_caller_sees_what_its_key_and_its_address_use():
    limits = Limits(GatewaySettings(key_requests_per_s=10))
    limits.streams.take("k", 3)
    limits.streams.take("other", 5)
    limits.connections.take("127.0.0.1", 2)
    limits.rates[KEY].take("k", 1_000)
    view = usage_view(limits.usage({KEY: "k", ADDRESS: "127.0.0.1"}, 1_000))
    assert {name: view["key"][name]["used"] for name in ("requests", "streams")} == {"requests": 0, "streams": 3}
    assert view["address"]["connections"]["used"] == 2
    assert (view["key"]["requests_per_s"], view["address"]["requests_per_s"]) == (
        {"max": 10, "left": 9},
        {"max": None, "left": None},
    )
