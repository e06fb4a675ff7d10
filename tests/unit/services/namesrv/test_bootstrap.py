"""The start of a name server: a damaged file of changed settings stops it."""

import pytest

from gantry.runtime.errors import StartupError
from services.namesrv.bootstrap import _load_changes
from tests.support.memfilesystem import MemFileSystem
from tests.support.virtualtime import FakeClock


@pytest.mark.parametrize("content", [b'{"a":', b'{"a":"\xff"}', b'{"noSuchSetting":"1"}'])
def test_a_file_of_changed_settings_that_can_not_be_used_stops_the_start(content: bytes) -> None:
    files = MemFileSystem(FakeClock())
    files.make_dirs("/d")
    files.write("/d/changes.json", content)
    with pytest.raises(StartupError, match=r"/d/changes\.json: "):
        _load_changes(files, "/d/changes.json")
