"""Learning on whole graphs with multi-neighbourhood attention.

``__init__.pyi`` lists the public names. They are imported at first use, so that ``import mnagt`` costs nothing.
"""

import sys
import warnings

from mnagt.lazy import lazy_names

__all__, __getattr__ = lazy_names(__name__, __file__, {"Trained": "TrainedModel", "molecules": "read_smiles"})

if sys.platform != "linux":
    warnings.warn(f"mnagt was tested on Linux only; on {sys.platform} parts of it may fail", stacklevel=2)


def __dir__() -> list[str]:
    return __all__
