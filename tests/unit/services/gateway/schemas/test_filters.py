from typing import Any

import msgspec
import pytest

from gantry.model.errors import InvalidExpressionError
from services.gateway.schemas.filters import Filter, SqlFilter, subscription_of


def read(text: str) -> Any:
    return msgspec.json.decode(text, type=Filter)


def test_a_filter_is_tags_or_sql() -> None:
    assert read('"AA || UA"') == "AA || UA"
    assert read('{"sql": "a > 5"}') == SqlFilter("a > 5")
    for wrong in ('""', '{"sql": ""}', '{"sql": "a > 5", "x": 1}', "{}", "5", "null"):
        with pytest.raises(msgspec.ValidationError):
            read(wrong)


def test_the_subscription_of_a_filter() -> None:
    tags = subscription_of("AA || UA", "T", 7)
    assert (tags.tags_set, tags.expression_type, tags.sub_version) == ({"AA", "UA"}, "TAG", 7)
    sql = subscription_of(SqlFilter("a > 5"), "T", 7)
    assert (sql.sub_string, sql.expression_type, sql.sub_version) == ("a > 5", "SQL92", 7)
    assert sql.is_sql
    assert sql.matches_tag(None)
    assert sql.matches_code(5)


def test_an_error_names_the_field_the_position_and_what_was_expected() -> None:
    with pytest.raises(
        InvalidExpressionError, match=r"/filter/sql: at character 4: .*too early; expected .*a number"
    ) as error:
        subscription_of(SqlFilter("a >"), "T", 7)
    assert error.value.field == "/filter/sql"
    with pytest.raises(InvalidExpressionError, match=r"/wanted: ' \|\| ' names no tag"):
        subscription_of(" || ", "T", 7, field="/wanted")
