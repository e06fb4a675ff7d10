"""Opens a Spark session in the same way for every job, test and notebook.

The session has a suitable Java (java.py), and Python workers that run the same interpreter. If Spark runs on this
machine only, it listens on loopback. Times are in UTC, and data between Spark and Python is in Arrow's format. There is
no web page and little log output unless requested. The data source `gantry` is registered, and our own code is on the
workers of a cluster.

Times: `collect()` returns timestamps as naive datetimes in the time zone of the *machine*, whatever the session's time
zone is. `toArrow()` keeps UTC, so code that takes data out of Spark should use it.
"""

import atexit
import sys
import tempfile
import warnings
from collections.abc import Mapping, MutableMapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pyspark
from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession

from gantry.runtime.environment import cpu_count, process_environment
from gantry.runtime.errors import SettingsError
from gantry.runtime.osfilesystem import OsFileSystem
from spark.classarchive import AUTO, archive_folder, archive_key, find_archive, reading_options, writing_options
from spark.java import Java, find_java
from spark.master import UNDER_SUBMIT, is_local_master
from spark.shipping import as_py_file, pack_code

LOOPBACK: Final = "127.0.0.1"
PANDAS_WARNING: Final = "PySpark does not yet fully support pandas"
BRIEF_JVM: Final = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
DRIVER_MEMORY: Final = "768m"
"""The JVM's heap in local mode. With it, a profile of 2 million messages with two Python workers takes well below 2 GiB
in total, and is as fast as with a heap of twice this size."""
OURS_ALWAYS: Final = frozenset({"spark.sql.session.timeZone"})
"""Settings that override those of spark-submit. The buckets of hours and days are in UTC."""
OF_THE_START: Final = frozenset({"spark.driver.memory", "spark.driver.extraJavaOptions"})
"""Settings that only have an effect when a JVM starts. Under spark-submit, the JVM has started already."""
SPARK_HOME: Final = Path(pyspark.__file__).parent
LOG_SETTINGS: Final = Path(__file__).with_name("log4j2.properties")


@dataclass(frozen=True, slots=True)
class SessionSettings:
    """The settings of a session. The defaults suit a report on the machine of `gantry up`."""

    driver_memory: str | None = None
    """The JVM's heap. The process needs about 300 MiB more. If it is None, the value is DRIVER_MEMORY in local mode; on
    a cluster it is the value of spark-defaults.conf, or Spark's default."""
    executor_memory: str | None = None
    """The heap of each executor of a cluster. None for Spark's value. Local mode has no executors besides the
    driver."""
    shuffle_partitions: int | None = None
    """The number of partitions after a shuffle. None: two for each core in local mode (Spark's default of 200 takes
    longer to start than to run), Spark's default on a cluster."""
    is_brief: bool = False
    """Whether the session lives for about a minute, as a job's session does. Then the JVM compiles in one quick step
    and collects garbage in one thread. On two cores, this saves a sixth of a job's time. It has an effect in local mode
    only."""
    has_source: bool = True
    """Whether to register the data source `gantry` at once. This takes a second, because Spark first looks for other
    data sources in a Python process. A job that may not need it registers it before it reads (register_data_source)."""
    class_archive: str = AUTO
    """The folder with the archive of Spark's classes (classarchive.py), "auto" or "off". It is used in local mode
    only."""
    written_archive: str | None = None
    """A file into which the JVM writes its loaded classes when it ends. If it is given, the JVM reads no archive."""
    ui: bool = False
    """Whether Spark's web page is served. It listens on a port and has no authentication."""
    py_files: tuple[str, ...] = ()
    """Wheels, zips or .py files for the workers of a cluster. If empty, the packages of this process are packed."""
    extra: Mapping[str, str] = field(default_factory=dict)
    """Further `spark.…` settings, which override all others here."""

    def check(self) -> None:
        """Raise ValueError with "field: reason" if a value is invalid."""
        if self.shuffle_partitions is not None and self.shuffle_partitions < 1:
            raise ValueError(f"shuffle_partitions: {self.shuffle_partitions} is not at least 1")
        for key in self.extra:
            if not key.startswith("spark."):
                raise ValueError(f"extra: {key!r} is no setting of Spark: its settings start with 'spark.'")


def open_session(app: str, *, master: str | None = "local[*]", settings: SessionSettings | None = None) -> SparkSession:
    """Open a Spark session, or return the session of this process.

    Args:
        app: The name of the application in Spark's logs and pages.
        master: "local[…]", "spark://host:port", "yarn", …. Under spark-submit it has no effect, because spark-submit has
            the master already.
        settings: The settings; None for the defaults. The settings of spark-submit (`--conf`, `--properties-file`, its
            other options, spark-defaults.conf) win over them, except over OURS_ALWAYS.

    Raises:
        JavaNotFoundError: This machine has no Java that can start Spark. The message says what to install.
        SettingsError: A setting is invalid.

    Concurrency: a process has one session. One thread opens and stops it. This function changes the process's
    environment.
    """
    settings = SessionSettings() if settings is None else settings
    try:
        settings.check()
    except ValueError as error:
        raise SettingsError(str(error)) from None
    environment = process_environment()
    submitted = _submitted_settings() if UNDER_SUBMIT in environment else {}
    is_local = is_local_master(submitted.get("spark.master") or master or "")
    jvm_options: Sequence[str] = ()
    if submitted:
        # Otherwise PySpark takes "python3" from the path of each executor, which may have no packages. If spark-submit
        # was told of a Python, it has set this variable.
        environment.setdefault("PYSPARK_PYTHON", sys.executable)
    else:
        java = find_java(environment)
        prepare_environment(environment, is_local=is_local, java_home=java.home)
        jvm_options = _archive_options(settings, java, environment) if is_local else ()
    # Readers of reports can't act on this warning, and our tests run with the pandas version that it names.
    warnings.filterwarnings("ignore", message=PANDAS_WARNING, category=FutureWarning)
    builder = SparkSession.builder.appName(submitted.get("spark.app.name", app))
    if master is not None and "spark.master" not in submitted:
        builder = builder.master(master)
    for key, value in spark_settings(settings, is_local=is_local, cores=cpu_count(), jvm_options=jvm_options).items():
        if not submitted or key in OURS_ALWAYS or key not in {*submitted, *OF_THE_START}:
            builder = builder.config(key, value)
    session = builder.getOrCreate()
    if not is_local:
        folder = tempfile.TemporaryDirectory(prefix="gantry-spark-", ignore_cleanup_errors=True)
        # Not before the end of the process: workers fetch these files as long as the session is open.
        atexit.register(folder.cleanup)
        for path in settings.py_files or (pack_code(folder.name),):
            session.sparkContext.addPyFile(as_py_file(path, folder.name))
    if settings.has_source:
        register_data_source(session)
    return session


def archive_key_of(java: Java) -> str:
    """Return the key in the name of the archive for this Java and this Spark. Raises OSError."""
    return archive_key(java, str(SPARK_HOME / "jars"), OsFileSystem())


def _submitted_settings() -> dict[str, str]:
    """Return the settings of the JVM that spark-submit has started."""
    # SparkConf is empty until there is a connection to the JVM. No public call connects without opening a session.
    SparkContext._ensure_initialized()  # noqa: SLF001
    return dict(SparkConf().getAll())


def prepare_environment(environment: MutableMapping[str, str], *, is_local: bool, java_home: str) -> None:
    """Set the environment variables that PySpark reads when it starts the JVM and its Python workers."""
    environment["JAVA_HOME"] = java_home
    # The home of another Spark would start the jars of that Spark with this PySpark.
    environment["SPARK_HOME"] = str(SPARK_HOME)
    if is_local:
        # The user's own PYSPARK_PYTHON may be another version, or may not have our packages.
        environment["PYSPARK_PYTHON"] = sys.executable
        environment["PYSPARK_DRIVER_PYTHON"] = sys.executable
        # Otherwise Spark listens on the address that belongs to the host's name.
        environment["SPARK_LOCAL_IP"] = LOOPBACK
    else:
        # Workers on other machines may have Python at another path, which only the user knows.
        environment.setdefault("PYSPARK_PYTHON", sys.executable)


def spark_settings(
    settings: SessionSettings, *, is_local: bool, cores: int, jvm_options: Sequence[str] = ()
) -> dict[str, str]:
    """Return the `spark.…` settings of a session.

    Args:
        settings: The requested settings.
        is_local: Whether Spark runs on this machine only.
        cores: The number of cores of this machine.
        jvm_options: Further options for the driver's JVM.
    """
    known = {
        "spark.ui.enabled": str(settings.ui).lower(),
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.extraJavaOptions": " ".join(
            [
                f"-Dlog4j2.configurationFile={LOG_SETTINGS.as_uri()}",
                "-Duser.timezone=UTC",
                *(BRIEF_JVM if settings.is_brief and is_local else ()),
                *jvm_options,
            ]
        ),
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        # The JVM holds whole partitions of a result until Python has read them.
        "spark.sql.execution.arrow.compression.codec": "zstd",
        "spark.sql.python.filterPushdown.enabled": "true",
        # Otherwise each call of PySpark's API first tells the JVM the line of Python that makes it, for error messages.
        # That takes half of the calls that build a report. Tracebacks name the line anyway.
        "spark.python.sql.dataFrameDebugging.enabled": "false",
        # Otherwise Spark makes a folder in the current directory.
        "spark.sql.warehouse.dir": str(Path(tempfile.gettempdir()) / "gantry-spark-warehouse"),
    }
    if is_local:
        known["spark.driver.host"] = LOOPBACK
        known["spark.driver.bindAddress"] = LOOPBACK
    memory = {
        "spark.driver.memory": settings.driver_memory or (DRIVER_MEMORY if is_local else None),
        "spark.executor.memory": settings.executor_memory,
    }
    known |= {key: value for key, value in memory.items() if value is not None}
    partitions = settings.shuffle_partitions or (2 * cores if is_local else None)
    if partitions is not None:
        known["spark.sql.shuffle.partitions"] = str(partitions)
    return known | dict(settings.extra)


def _archive_options(settings: SessionSettings, java: Java, environment: Mapping[str, str]) -> Sequence[str]:
    if settings.written_archive is not None:
        return writing_options(settings.written_archive)
    folder = archive_folder(settings.class_archive, environment)
    if folder is not None:
        with suppress(OSError):
            return reading_options(find_archive(folder, archive_key_of(java), OsFileSystem()))
    return ()


def register_data_source(session: SparkSession) -> None:
    """Register the data source `gantry` in a session: `session.read.format("gantry")`."""
    # Imported late, because the data source loads the whole client engine.
    from spark.datasource.source import GantryDataSource  # noqa: PLC0415

    session.dataSource.register(GantryDataSource)
