"""API keys between Postgres, the key ring and two files that only their owner may read."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import func, select

from gantry.model.errors import InvalidValueError
from gantry.runtime.clock import SystemClock
from gantry.runtime.privatefiles import find_private, write_private
from services.gateway.auth.callers import Callers
from services.gateway.auth.keycache import FileKeyCache
from services.gateway.auth.keyring import KeyRecord, KeyRing, digest_of
from services.gateway.auth.keystore import KeyStore
from services.gateway.auth.passwords import Passwords
from services.gateway.auth.sessionring import SessionRing
from services.gateway.auth.sessionstore import SessionStore
from services.gateway.db.engine import Database
from services.gateway.db.keys import EARLIER_MAX, KEPT_MAX, KeyRepository
from services.gateway.db.models import EarlierSecret
from services.gateway.db.repositories import Actor, AuditRepository
from services.gateway.errors import ProblemError
from services.gateway.schemas.keys import KeyChange, KeyRotation, NewKey
from services.gateway.schemas.rights import ALL_RIGHTS, KeyLimits, Rights
from services.gateway.usecases.keys import Keys
from services.gateway.usecases.metadata import Metadata
from services.gateway.views.keys import key_view


def store(database: Database | None, folder: Path, *, keep: bool = False) -> tuple[KeyStore, KeyRing]:
    keys = KeyRing()
    made = KeyStore(
        keys,
        database,
        FileKeyCache(str(folder / "keys.json")),
        clock=SystemClock(),
        interval_ms=1_000,
        first_key_file=str(folder / "first"),
        keep_first_key_file=keep,
    )
    return made, keys


def key_admin(database: Database, folder: Path) -> Keys:
    made, keys = store(database, folder)
    return Keys(Metadata(database), keys, made)


def bearer(folder: Path) -> str:
    return f"Bearer {(folder / 'first').read_text().strip()}"


async def test_the_first_key_is_made_once_and_written_where_only_its_owner_reads_it(database, tmp_path):
    first, keys = store(database, tmp_path / "a")
    assert await first.refresh()
    assert keys.authenticate(bearer(tmp_path / "a")).rights == ALL_RIGHTS
    assert (tmp_path / "a" / "first").stat().st_mode & 0o777 == 0o600
    second, others = store(database, tmp_path / "b")
    assert await second.refresh()
    assert not (tmp_path / "b" / "first").exists()
    assert others.records() == keys.records()
    async with database.transaction() as session:
        [entry] = await AuditRepository(session).page(kind="key")
    assert (entry.actor, entry.action) == ("bootstrap", "key.create")


async def test_a_key_that_was_written_but_not_added_is_added(database, tmp_path):
    write_private(str(tmp_path / "first"), b"gk_written_before_the_crash\n")
    made, keys = store(database, tmp_path)
    assert await made.refresh()
    assert keys.authenticate("Bearer gk_written_before_the_crash").is_admin


async def test_a_revoked_first_key_is_not_restored(database, tmp_path):
    made, keys = store(database, tmp_path)
    await made.refresh()
    old = bearer(tmp_path)
    async with database.transaction() as session:
        await KeyRepository(session).revoke(keys.authenticate(old).key_id, actor=Actor("test"))
    await made.refresh()
    with pytest.raises(ProblemError):
        keys.authenticate(old)
    assert bearer(tmp_path) != old
    assert keys.authenticate(bearer(tmp_path)).is_admin


async def test_a_key_file_that_must_be_kept_is_created_again_at_a_start_with_a_new_key(database, tmp_path):
    made, _ = store(database, tmp_path)
    await made.refresh()
    old = bearer(tmp_path)
    (tmp_path / "first").unlink()
    again, keys = store(database, tmp_path)
    await again.refresh()
    assert not (tmp_path / "first").exists()
    kept, keys = store(database, tmp_path, keep=True)
    await kept.refresh()
    new = bearer(tmp_path)
    assert new != old
    assert keys.authenticate(old).is_admin
    assert keys.authenticate(new).is_admin
    # Later, and at the next start, nothing is done: not even after the key was revoked.
    (tmp_path / "first").rename(tmp_path / "moved")
    await kept.refresh()
    assert not (tmp_path / "first").exists()
    (tmp_path / "moved").rename(tmp_path / "first")
    async with database.transaction() as session:
        await KeyRepository(session).revoke(keys.authenticate(new).key_id, actor=Actor("test"))
    next_time, keys = store(database, tmp_path, keep=True)
    await next_time.refresh()
    assert (bearer(tmp_path), len(keys.records())) == (new, 1)


@pytest.mark.parametrize("content", [b"gk_written_before_the_crash\n", b"\n"])
async def test_a_kept_key_file_unknown_to_postgres_is_registered(database, tmp_path, content):
    made, _ = store(database, tmp_path / "other")
    await made.refresh()
    write_private(str(tmp_path / "first"), content)
    kept, keys = store(database, tmp_path, keep=True)
    await kept.refresh()
    assert keys.authenticate(bearer(tmp_path)).is_admin
    assert len(keys.records()) == 2


async def test_keys_created_and_revoked_while_others_are_read_stay_so(database, tmp_path, monkeypatch):
    made, keys = store(database, tmp_path)
    await made.refresh()
    admin = Keys(Metadata(database), keys, made)
    old = await admin.create(NewKey("old", Rights(publish=("*",))), Actor("test"))
    touch = KeyRepository.touch

    async def touch_late(repository: KeyRepository, last_used: Any) -> None:
        # The keys have been read, and calls continue meanwhile.
        keys.remove(old.row.id)
        keys.add(KeyRecord("key-new", digest_of("gk_new"), "new", ALL_RIGHTS))
        await touch(repository, last_used)

    monkeypatch.setattr(KeyRepository, "touch", touch_late)
    assert await made.refresh()
    assert keys.authenticate("Bearer gk_new").key_id == "key-new"
    with pytest.raises(ProblemError):
        keys.authenticate(f"Bearer {old.secret}")


async def test_a_restart_without_postgres_knows_the_keys(database, tmp_path):
    made, _ = store(database, tmp_path)
    await made.refresh()
    again, keys = store(None, tmp_path)
    again.load_cache()
    assert not await again.refresh()
    assert keys.authenticate(bearer(tmp_path)).is_admin
    assert again.unavailable == "no database is configured"


@pytest.mark.parametrize("content", [b"", b"{", b'{"version": 2, "keys": []}', b"\xff\xfe", b'{"version": 1}'])
async def test_an_unreadable_cache_is_ignored(tmp_path, content):
    (tmp_path / "keys.json").write_bytes(content)
    made, keys = store(None, tmp_path)
    made.load_cache()
    assert not keys.is_loaded


async def test_if_the_file_of_the_first_key_can_not_be_written_no_key_is_created(database, tmp_path):
    made, keys = store(database, tmp_path)
    (tmp_path / "first").mkdir()
    assert not await made.refresh()
    assert "first" in (made.unavailable or "")
    async with database.transaction() as session:
        assert await KeyRepository(session).page() == []
    assert not keys.is_loaded


async def test_if_two_admins_revoke_each_other_one_stays(own_postgres, tmp_path):
    """Both were once answered 204, and no key was left that could create another."""
    databases = [Database.open(own_postgres.url, clock=SystemClock()) for _ in range(2)]
    admins = [key_admin(database, tmp_path / str(number)) for number, database in enumerate(databases)]
    rights = Rights(admin=True)
    try:
        for _ in range(5):
            made = [(await admins[0].create(NewKey("n", rights), Actor("test"))).row.id for _ in range(2)]
            for row in (await admins[0].page(cursor=None, limit=100, revoked=False)).items:
                if row.id not in made:
                    await admins[0].revoke(row.id, Actor("test"))
            told = await asyncio.gather(
                admins[0].revoke(made[1], Actor(made[0])),
                admins[1].revoke(made[0], Actor(made[1])),
                return_exceptions=True,
            )
            assert sorted(getattr(error, "status", 204) for error in told) == [204, 409], told
            [left] = (await admins[0].page(cursor=None, limit=100, revoked=False)).items
            assert key_view(left)["rights"].admin
    finally:
        for database in databases:
            await database.close()


async def test_all_keys_revoked_at_once_leave_one_admin(own_postgres, tmp_path):
    database = Database.open(own_postgres.url, clock=SystemClock())
    admin = key_admin(database, tmp_path)
    made = [(await admin.create(NewKey("n", Rights(admin=True)), Actor("test"))).row.id for _ in range(8)]
    plain = (await admin.create(NewKey("n", Rights(metrics=True)), Actor("test"))).row.id
    try:
        told = await asyncio.gather(
            *(admin.revoke(key_id, Actor("test")) for key_id in [*made, plain]), return_exceptions=True
        )
        assert sorted(getattr(error, "status", 204) for error in told) == [204] * 8 + [409], told
    finally:
        await database.close()


def test_private_files_are_replaced_atomically(tmp_path):
    path = tmp_path / "deep" / "file"
    assert find_private(str(path)) is None
    for content in (b"one", b"two"):
        write_private(str(path), content)
        assert find_private(str(path)) == content
        assert path.stat().st_mode & 0o777 == 0o600
    path.chmod(0o644)
    write_private(str(path), b"three")
    assert path.stat().st_mode & 0o777 == 0o600
    assert [entry.name for entry in path.parent.iterdir()] == ["file"]


def test_the_cache_holds_digests_and_no_keys(tmp_path):
    cache = FileKeyCache(str(tmp_path / "keys.json"))
    records = [KeyRecord("key-1", digest_of("gk_secret"), "n", ALL_RIGHTS)]
    cache.save(records)
    assert cache.load() == records
    assert b"gk_secret" not in (tmp_path / "keys.json").read_bytes()


async def test_of_many_rotations_only_the_newest_secrets_are_kept_and_fewer_are_valid(database, tmp_path):
    made, keys = store(database, tmp_path)
    await made.refresh()
    admin = Keys(Metadata(database), keys, made)
    created = await admin.create(NewKey("n", Rights(publish=("*",))), Actor("test"))
    secrets = [created.secret]
    for _ in range(KEPT_MAX + 5):
        rotated = await admin.rotate(created.row.id, KeyRotation("1h"), Actor("test"))
        secrets.append(rotated.secret)
    for secret in secrets[-1 - EARLIER_MAX :]:
        assert keys.authenticate(f"Bearer {secret}").key_id == created.row.id
    with pytest.raises(ProblemError):
        keys.authenticate(f"Bearer {secrets[-2 - EARLIER_MAX]}")
    async with database.transaction() as session:
        assert await session.scalar(select(func.count()).select_from(EarlierSecret)) == KEPT_MAX
        entry = (await AuditRepository(session).page(kind="key", name=created.row.id))[0]
    assert (entry.action, entry.after) == ("key.rotate", {"overlap_s": 3_600})


async def test_a_rotation_without_overlap_ends_all_earlier_secrets(database, tmp_path):
    made, keys = store(database, tmp_path)
    await made.refresh()
    admin = Keys(Metadata(database), keys, made)
    created = await admin.create(NewKey("n", Rights(publish=("*",))), Actor("test"))
    first = await admin.rotate(created.row.id, KeyRotation("90d"), Actor("test"))
    last = await admin.rotate(created.row.id, KeyRotation("0s"), Actor("test"))
    await made.refresh()
    for ended in (created, first):
        with pytest.raises(ProblemError):
            keys.authenticate(f"Bearer {ended.secret}")
    assert keys.authenticate(f"Bearer {last.secret}").key_id == created.row.id
    with pytest.raises(InvalidValueError, match="overlap"):
        await admin.rotate(created.row.id, KeyRotation("91d"), Actor("test"))


async def test_the_file_of_the_first_key_does_not_bring_a_rotated_secret_back(database, tmp_path):
    made, keys = store(database, tmp_path)
    await made.refresh()
    old = bearer(tmp_path)
    admin = Keys(Metadata(database), keys, made)
    await admin.rotate(keys.authenticate(old).key_id, KeyRotation("0s"), Actor("test"))
    kept, keys = store(database, tmp_path, keep=True)
    await kept.refresh()
    with pytest.raises(ProblemError):
        keys.authenticate(old)
    assert len(keys.records()) == 1


async def test_a_gateway_looks_up_a_key_that_another_one_made(database, tmp_path):
    here, keys = store(database, tmp_path / "here")
    await here.refresh()
    there, others = store(database, tmp_path / "there")
    await there.refresh()
    admin = Keys(Metadata(database), keys, here)
    created = await admin.create(NewKey("n", Rights(publish=("*",)), limits=KeyLimits(in_flight=3)), Actor("test"))
    rotated = await admin.rotate(created.row.id, KeyRotation("1h"), Actor("test"))
    callers = Callers(others, SessionRing(SystemClock()), no_sessions(), there)
    for secret in (rotated.secret, created.secret):
        principal = await callers.authenticate(f"Bearer {secret}")
        assert (principal.key_id, principal.limits) == (created.row.id, KeyLimits(in_flight=3))
    with pytest.raises(ProblemError) as caught:
        await callers.authenticate("Bearer gk_wrong")
    assert caught.value.status == 401
    # A wrong key is looked up once in a while only.
    assert not await there.look_up(digest_of("gk_wrong"))
    await admin.revoke(created.row.id, Actor("test"))
    assert not await there.look_up(digest_of(rotated.secret))


async def test_without_postgres_an_unknown_key_is_not_called_wrong(tmp_path):
    away = Database.open("postgresql://nobody@127.0.0.1:1/nothing", clock=SystemClock())
    try:
        made, keys = store(away, tmp_path)
        keys.replace([KeyRecord("key-1", digest_of("gk_known"), "n", ALL_RIGHTS)])
        callers = Callers(keys, SessionRing(SystemClock()), no_sessions(), made)
        assert (await callers.authenticate("Bearer gk_known")).key_id == "key-1"
        with pytest.raises(ProblemError) as caught:
            await callers.authenticate("Bearer gk_other")
        assert caught.value.status == 503
    finally:
        await away.close()


async def test_the_last_admin_key_can_neither_be_revoked_nor_get_an_end(database, tmp_path):
    made, keys = store(database, tmp_path)
    await made.refresh()
    admin = Keys(Metadata(database), keys, made)
    [first] = keys.records()
    end = "2999-01-01T00:00:00Z"
    # An admin key that expires does not count.
    await admin.create(NewKey("n", Rights(admin=True), expires_at=end), Actor("test"))
    for attempt in (
        admin.change(first.id, KeyChange(expires_at=end), Actor("test")),
        admin.revoke(first.id, Actor("test")),
    ):
        with pytest.raises(ProblemError) as caught:
            await attempt
        assert caught.value.status == 409
    other = await admin.create(NewKey("n", Rights(admin=True)), Actor("test"))
    changed = await admin.change(first.id, KeyChange(expires_at=end, limits=KeyLimits(connections=1)), Actor("test"))
    assert (changed.limits, changed.expires_at.year) == ({"connections": 1}, 2999)
    assert (await admin.change(first.id, KeyChange(expires_at=None), Actor("test"))).expires_at is None
    await admin.revoke(other.row.id, Actor("test"))
    with pytest.raises(InvalidValueError, match="not in the future"):
        await admin.create(NewKey("n", Rights(), expires_at="2020-01-01T00:00:00Z"), Actor("test"))


def no_sessions() -> SessionStore:
    ring = SessionRing(SystemClock())
    return SessionStore(ring, None, Passwords(), interval_ms=30_000, first_password_file="unused")
