"""How sure a model may be: see ``calibration`` and ``ensemble``."""
