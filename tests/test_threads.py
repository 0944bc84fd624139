"""Threads of a command sleep soon where they wait, unless the environment says otherwise."""

import subprocess
import sys

import pytest

from mnagt.cli.threads import SPINS, limit_spinning


@pytest.mark.parametrize("environ", [{"OMP_WAIT_POLICY": "active"}, {"GOMP_SPINCOUNT": "7"}])
def test_what_the_environment_says_is_kept(environ):
    before = dict(environ)
    limit_spinning(environ)
    assert environ == before


def test_a_command_sets_it_before_pytorch_is_imported():
    code = (
        "import os, sys\n"
        "sys.argv = ['mnagt', 'models']\n"
        "from mnagt.cli import main\n"
        "assert 'torch' not in sys.modules\n"
        "main()\n"
        "print(os.environ['GOMP_SPINCOUNT'])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == SPINS
