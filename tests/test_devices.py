import pytest
import torch

from mnagt.devices import device_name, pick_device
from mnagt.errors import InputError


def test_a_device_is_known_by_its_name():
    assert pick_device("cpu") == torch.device("cpu")
    assert "CPU" in device_name(torch.device("cpu"))
    assert pick_device("auto").type == ("cuda" if torch.cuda.is_available() else "cpu")


@pytest.mark.parametrize("name", ["tpu", "mps", "cuda:99"])
def test_what_is_no_device_here_is_refused(name):
    with pytest.raises(InputError, match=r"device must be|no device"):
        pick_device(name)
