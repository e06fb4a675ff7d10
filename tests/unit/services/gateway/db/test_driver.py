"""The driver's errors are translated into those of this package."""

import psycopg
import pytest
from psycopg import errors as pg
from sqlalchemy import exc

from services.gateway.db.driver import driver_url, unavailable
from services.gateway.db.leadership import lock_key


def wrapped(error: Exception) -> exc.DBAPIError:
    return exc.DBAPIError("SELECT 1", None, error)


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (
            wrapped(psycopg.OperationalError("connection refused\nIs the server running?")),
            "reached: connection refused",
        ),
        (wrapped(psycopg.InterfaceError("the connection is closed")), "can't be reached"),
        (wrapped(pg.QueryCanceled()), "cancelled the statement"),
        (wrapped(pg.AdminShutdown()), "stopping"),
        (wrapped(pg.CannotConnectNow()), "57P03"),
        (wrapped(pg.DiskFull()), "out of disk"),
        (wrapped(pg.TooManyConnections()), "connections"),
        (wrapped(pg.DeadlockDetected()), "conflicted"),
        (wrapped(pg.LockNotAvailable()), "lock"),
        (wrapped(pg.ReadOnlySqlTransaction()), "no writes"),
        (wrapped(pg.InvalidPassword()), "rejects the gateway's user"),
        (wrapped(pg.InvalidCatalogName()), "does not exist"),
        (wrapped(pg.UndefinedTable()), "gantry migrate"),
        (exc.TimeoutError("QueuePool limit"), "busy"),
    ],
)
def test_errors_of_the_server(error: Exception, reason: str) -> None:
    problem = unavailable(error)
    assert problem is not None
    assert reason in problem.reason
    assert "\n" not in problem.reason


@pytest.mark.parametrize("error", [wrapped(pg.UniqueViolation()), wrapped(pg.SyntaxError()), ValueError("ours")])
def test_internal_errors_are_not_translated(error: Exception) -> None:
    assert unavailable(error) is None


@pytest.mark.parametrize("scheme", ["postgres", "postgresql", "postgresql+psycopg"])
def test_every_spelling_selects_the_same_driver(scheme: str) -> None:
    url = driver_url(f"{scheme}://gantry:secret@db:5433/gantry?sslmode=require")
    assert url.drivername == "postgresql+psycopg"
    assert (url.host, url.port, url.password) == ("db", 5433, "secret")
    assert "secret" not in str(url)


@pytest.mark.parametrize("text", ["mysql://db/gantry", "db:5432", "", "postgresql://db:port/x"])
def test_other_urls_are_refused_without_showing_them(text: str) -> None:
    with pytest.raises(ValueError, match="database URL"):
        driver_url(text)


def test_lock_keys_are_64_bit_and_never_change() -> None:
    # Gateways of two releases run side by side and must contend for the same key.
    assert lock_key("reconciler") == -253143232930009031
    assert -(2**63) <= lock_key("subscriptions") < 2**63
    assert lock_key("subscriptions") != lock_key("reconciler")
