"""Learning on whole graphs with multi-neighbourhood attention.

``__init__.pyi`` lists the public names. They are imported at first use, so that ``import mnagt`` costs nothing.
"""

from mnagt.lazy import lazy_names

__all__, __getattr__ = lazy_names(__name__, __file__, {"Trained": "TrainedModel", "molecules": "read_smiles"})


def __dir__() -> list[str]:
    return __all__
