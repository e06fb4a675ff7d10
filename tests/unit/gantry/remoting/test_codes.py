import pytest

from gantry.remoting.codes import ANNOUNCED_VERSION, LanguageCode, RequestCode, version_name, version_number

KNOWN = {
    "3.0.11": 37,
    "3.4.9": 121,
    "4.0.0": 213,
    "4.2.0": 253,
    "4.5.2": 317,
    "4.7.1": 355,
    "4.8.0": 373,
    "4.9.4": 401,
    "4.9.8": 409,
    "5.0.0": 413,
    "5.1.0": 433,
    "5.3.3": 479,
    "5.9.9": 611,
    "6.0.0": 612,
}


@pytest.mark.parametrize(("release", "number"), KNOWN.items())
def test_a_release_has_its_number(release: str, number: int):
    assert version_number(release) == number


@pytest.mark.parametrize("release", ["", "4", "4.9", "4.9.8.1", "4.9.x", "v4.9.8", "-1.0.0", "3.5.8", "1.0.0"])
def test_a_release_without_number_is_refused(release: str):
    with pytest.raises(ValueError, match="is"):
        version_number(release)


@pytest.mark.parametrize(
    ("number", "name"),
    [
        (37, "V3_0_11"),
        (121, "V3_4_9"),
        (232, "V4_1_0_SNAPSHOT"),
        (233, "V4_1_0"),
        (409, "V4_9_8"),
        (412, "V5_0_0_SNAPSHOT"),
        (479, "V5_3_3"),
        (611, "V5_9_9"),
        (612, "HIGHER_VERSION"),
        (9999, "HIGHER_VERSION"),
        (100, "V100"),
    ],
)
def test_a_number_has_its_name(number: int, name: str):
    assert version_name(number) == name


def test_the_announced_version_is_a_release():
    assert version_name(ANNOUNCED_VERSION) == "V5_3_3"


def test_numbers_are_those_of_the_protocol():
    assert RequestCode.SEND_MESSAGE_V2 == 310
    assert RequestCode.POP_MESSAGE == 200050
    assert [code.value for code in LanguageCode] == list(range(14))
