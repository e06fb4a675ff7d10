"""Apache RocketMQ's own broker serves a store that our broker wrote, with whole-record checksums."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.support import foreign
from tests.support.serviceprocess import ServiceProcess

TOPIC = "MovedTopic"
COUNT = 20
COMMIT_LOG_FILE_BYTES = 64 * 1024  # Small files, so that the messages span several of them.
SIZES = {
    "mappedFileSizeCommitLog": str(COMMIT_LOG_FILE_BYTES),
    "mappedFileSizeConsumeQueue": "6000",
    "maxHashSlotNum": "500",
    "maxIndexNum": "2000",
    "maxMessageSize": "32768",
}


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]]]:
    """A store that our broker wrote and closed, and our broker's answers to requests for all of it."""
    folder = tmp_path_factory.mktemp("moved")
    namesrv_options = ("--listen", "127.0.0.1:0", "--data", str(folder / "namesrv"), "--metrics-port", "off")
    environment = {
        "GANTRY_BROKER_MAPPED_FILE_SIZE_COMMIT_LOG": SIZES["mappedFileSizeCommitLog"],
        "GANTRY_BROKER_MAPPED_FILE_SIZE_CONSUME_QUEUE": SIZES["mappedFileSizeConsumeQueue"],
        "GANTRY_BROKER_MAX_HASH_SLOT_NUM": SIZES["maxHashSlotNum"],
        "GANTRY_BROKER_MAX_INDEX_NUM": SIZES["maxIndexNum"],
        "GANTRY_BROKER_MAX_MESSAGE_SIZE": SIZES["maxMessageSize"],
    }
    with ServiceProcess("namesrv", folder, *namesrv_options) as namesrv:
        options = (
            "--namesrv", namesrv.address, "--name", "broker-a", "--cluster", "DefaultCluster", "--listen", "127.0.0.1:0",
            "--store", str(folder / "store"), "--fast-port", "off", "--metrics-port", "off",
        )  # fmt: skip
        with ServiceProcess("broker", folder, *options, environment=environment) as broker:
            foreign.mqadmin(("updateTopic", "-n", namesrv.address, "-b", broker.address, "-t", TOPIC))
            for _ in range(3):
                foreign.java_client("produce", namesrv.address, TOPIC, str(COUNT))
            answered = foreign.java_client("pull", namesrv.address, TOPIC, "GID_moved")
            assert broker.terminate() == 0, broker.log
    assert not (folder / "store" / "abort").exists()
    assert len(list((folder / "store" / "commitlog").iterdir())) > 1, "the log never rolled"
    return folder / "store", answered


@pytest.mark.java
@pytest.mark.parametrize("append_prop_crc", ["true", "false"])
def test_apache_rocketmq_serves_our_store(
    written: tuple[Path, list[dict[str, Any]]], tmp_path: Path, append_prop_crc: str
) -> None:
    store, answered = written
    copy = shutil.copytree(store, tmp_path / "store")
    settings = SIZES | {"enabledAppendPropCRC": append_prop_crc, "flushDiskType": "SYNC_FLUSH"}
    with foreign.java_broker(tmp_path, copy, settings) as (namesrv, _):
        served = foreign.java_client("pull", namesrv, TOPIC, "GID_moved")
        by_key, by_id = foreign.mqadmin(
            ("queryMsgByKey", "-n", namesrv, "-t", TOPIC, "-k", "key-7"),
            ("queryMsgByUniqueKey", "-n", namesrv, "-t", TOPIC, "-i", answered[0]["message_id"]),
        )
        more = foreign.java_client("produce", namesrv, TOPIC, "3")
    place = lambda line: (line["queue_id"], line["queue_offset"])
    assert sorted(served, key=place) == sorted(answered, key=place)
    assert len(served) == 3 * (2 * COUNT + 13)
    assert sum(line["message_id"] in by_key for line in answered if line["keys"] == "key-7") == 3
    assert str(answered[0]["keys"]) in by_id
    assert all(line["status"] == "SEND_OK" for line in more)
