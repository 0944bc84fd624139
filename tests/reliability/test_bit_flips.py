"""One bit flipped in a file that mnagt wrote is noticed, or changes nothing; ``bit_flips.py`` flips more."""

from collections.abc import Iterator
from random import Random

import jaxtyping
import pytest
from reliability.bit_flips import KINDS, Attempts

from mnagt.errors import InputError

DIGITS = {
    "run": (("calibration.json", b'"temperature": '), ("metrics.jsonl", b'"epoch": '), ("result.json", b'"valid": ')),
    "interrupted run": (("run.json", b'"lr": '), ("split.json", b'"train": [\n    ')),
    "ensemble": (("runs.json", b'"batch_size": '),),
    "ledger": (("trials.jsonl", b'"seconds": '),),
    "cache": (("it.safetensors", b'[\\"'),),
    "mapped data": (("it/packed.json", b'"vocabularies": {\n    "node_labels/0": [\n      "'),),
}
"""What stands before a digit or letter that nothing else depends on, in files of each kind."""


@pytest.fixture(scope="module", params=KINDS)
def kind(request, tmp_path_factory) -> Iterator[tuple[str, Attempts]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # what is traced is not checked
        yield request.param, Attempts(KINDS[request.param], tmp_path_factory.mktemp("flips") / "it")


def test_a_flipped_bit_is_noticed_or_harmless(kind):
    drawn = Random(7)
    outcomes = [kind[1].flip(drawn) for _ in range(12)]
    assert not [where for outcome, where in outcomes if outcome == "silent"]
    assert "noticed" in {outcome for outcome, _ in outcomes}


def test_another_digit_is_refused(kind):
    name, attempts = kind
    for file, before in DIGITS.get(name, ()):
        path = attempts.whole / file
        content = bytearray(whole := path.read_bytes())
        content[content.index(before) + len(before)] ^= 1
        path.write_bytes(content)
        try:
            with pytest.raises(InputError, match=r"changed since it was written|damaged"):
                attempts.read()
        finally:
            path.write_bytes(whole)
