"""Explanations of predictions. ``__init__.pyi`` lists the names, which are imported at first use."""

from mnagt.lazy import lazy_names

__all__, __getattr__ = lazy_names(__name__, __file__)
