"""Whether the instances of a group agree on their subscriptions, and which texts of clients can be stored."""

import pytest

from services.gateway.db.models import Verdict
from services.gateway.db.subscriptions import Sighting, judge, storable


def asks(expression: str = "*", *, topic: str = "T", kind: str = "JAVA", model: str = "CLUSTERING") -> Sighting:
    return Sighting(topic, kind, model, "TAG", expression, 1, ("c",))


@pytest.mark.parametrize(
    ("sightings", "verdict"),
    [
        ([asks()], Verdict.CONSISTENT),
        ([asks(kind="JAVA"), asks(kind="PYTHON")], Verdict.CONSISTENT),
        ([asks("AA"), asks("UA")], Verdict.FILTERS_DIFFER),
        ([asks(), asks(model="BROADCASTING")], Verdict.MODELS_DIFFER),
        ([asks("AA"), asks("UA", model="BROADCASTING")], Verdict.MODELS_DIFFER),
    ],
)
def test_verdicts(sightings: list[Sighting], verdict: Verdict) -> None:
    assert judge(sightings) == {"T": verdict}


def test_topics_are_judged_separately() -> None:
    assert judge([asks("AA"), asks("UA", topic="U")]) == {"T": Verdict.CONSISTENT, "U": Verdict.CONSISTENT}
    assert judge([]) == {}


def test_texts_are_made_storable() -> None:
    assert storable("a\x00b") == "a\ufffdb"
    assert storable("\udc80") == "?"
    assert storable("abc", 2) == "ab"
    assert storable("é || 航班") == "é || 航班"
