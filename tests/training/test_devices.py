import os

import torch

from mnagt.training.devices import spare_workspaces

ASKED = "CUBLAS_WORKSPACE_CONFIG"


def test_workspaces_are_spared_on_a_gpu_unless_told(monkeypatch):
    monkeypatch.setenv(ASKED, ":4096:8")
    spare_workspaces(torch.device("cuda"))
    assert os.environ[ASKED] == ":4096:8"
    monkeypatch.delenv(ASKED)
    spare_workspaces(torch.device("cpu"))
    assert ASKED not in os.environ
    spare_workspaces(torch.device("cuda"))
    assert os.environ[ASKED] == ":4096:2:16:8"
