"""The JSON form of a caller's limits."""

from typing import Any

from services.gateway.limits import Usage


def usage_view(usage: Usage) -> dict[str, Any]:
    """Return the usage of quotas and rates in the contract's form, by scope."""
    view: dict[str, dict[str, Any]] = {rate.scope: {} for rate in usage.rates}
    for quota in usage.quotas:
        view[quota.scope][quota.name] = {"max": quota.each_max, "used": quota.used, "all_max": quota.total_max}
    for rate in usage.rates:
        view[rate.scope]["requests_per_s"] = {"max": rate.per_s, "left": rate.left}
    return view
