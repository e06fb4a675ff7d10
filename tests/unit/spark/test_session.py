"""The settings of a new session. Starting one is an integration test."""

import sys
from pathlib import Path

import pyspark
import pytest

from gantry.runtime.errors import SettingsError
from spark.master import is_local_master
from spark.session import BRIEF_JVM, SessionSettings, open_session, prepare_environment, spark_settings


@pytest.mark.parametrize(
    ("master", "is_local"),
    [
        ("local", True),
        ("local[*]", True),
        ("local[4]", True),
        ("local-cluster[2,1,1024]", False),
        ("spark://head:7077", False),
        ("yarn", False),
        ("localhost", False),
    ],
)
def test_local_masters_are_recognized(master, is_local):
    assert is_local_master(master) is is_local


def test_a_local_session_uses_this_interpreter_and_loopback_for_any_environment():
    environment = {"PYSPARK_PYTHON": "/usr/bin/python2", "SPARK_HOME": "/opt/spark-2", "SPARK_LOCAL_IP": "0.0.0.0"}
    prepare_environment(environment, is_local=True, java_home="/jvm")
    assert environment == {
        "JAVA_HOME": "/jvm",
        "SPARK_HOME": str(Path(pyspark.__file__).parent),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }


def test_on_a_cluster_the_workers_python_may_be_elsewhere():
    environment = {"PYSPARK_PYTHON": "/cluster/python"}
    prepare_environment(environment, is_local=False, java_home="/jvm")
    assert environment["PYSPARK_PYTHON"] == "/cluster/python"
    assert "SPARK_LOCAL_IP" not in environment
    environment = {}
    prepare_environment(environment, is_local=False, java_home="/jvm")
    assert environment["PYSPARK_PYTHON"] == sys.executable


def test_settings_of_a_local_session():
    settings = spark_settings(SessionSettings(), is_local=True, cores=3)
    assert settings["spark.sql.session.timeZone"] == "UTC"
    assert settings["spark.sql.python.filterPushdown.enabled"] == "true"
    assert settings["spark.sql.execution.arrow.pyspark.enabled"] == "true"
    assert settings["spark.ui.enabled"] == "false"
    assert settings["spark.driver.bindAddress"] == "127.0.0.1"
    assert settings["spark.sql.shuffle.partitions"] == "6"
    log_settings = settings["spark.driver.extraJavaOptions"].split()[0].partition("=file://")[2]
    assert Path(log_settings).is_file()


def test_on_a_cluster_its_addresses_and_partitions_are_kept():
    settings = spark_settings(SessionSettings(driver_memory="4g", ui=True), is_local=False, cores=3)
    assert settings["spark.driver.memory"] == "4g"
    assert settings["spark.ui.enabled"] == "true"
    assert not {"spark.driver.host", "spark.driver.bindAddress", "spark.sql.shuffle.partitions"} & set(settings)
    # The amount of memory is left to spark-defaults.conf unless the caller sets it.
    assert not any(name.endswith(".memory") for name in spark_settings(SessionSettings(), is_local=False, cores=3))
    assert spark_settings(SessionSettings(), is_local=True, cores=3)["spark.driver.memory"] == "768m"


def test_only_a_brief_local_session_has_a_fast_starting_jvm():
    def options(*, is_brief, is_local):
        settings = spark_settings(SessionSettings(is_brief=is_brief), is_local=is_local, cores=2)
        return settings["spark.driver.extraJavaOptions"].split()

    assert options(is_brief=True, is_local=True)[2:] == list(BRIEF_JVM)
    assert options(is_brief=False, is_local=True)[2:] == options(is_brief=True, is_local=False)[2:] == []


def test_further_options_of_the_jvm_come_last():
    settings = spark_settings(SessionSettings(is_brief=True), is_local=True, cores=2, jvm_options=("-Xa", '"-Xb c"'))
    assert settings["spark.driver.extraJavaOptions"].endswith(f' {BRIEF_JVM[-1]} -Xa "-Xb c"')


def test_further_settings_override_the_others():
    wanted = SessionSettings(shuffle_partitions=7, extra={"spark.sql.shuffle.partitions": "9", "spark.x": "y"})
    settings = spark_settings(wanted, is_local=True, cores=1)
    assert (settings["spark.sql.shuffle.partitions"], settings["spark.x"]) == ("9", "y")


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        (SessionSettings(shuffle_partitions=0), "shuffle_partitions: 0 is not at least 1"),
        (SessionSettings(extra={"driver.memory": "1g"}), "extra: 'driver.memory' is no setting of Spark"),
    ],
)
def test_invalid_settings_are_refused_before_a_jvm_starts(settings, reason):
    with pytest.raises(SettingsError, match=reason):
        open_session("x", settings=settings)
