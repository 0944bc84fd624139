"""Shapes in annotations are checked while the tests run."""

from beartype import BeartypeConf, beartype

checked = beartype(conf=BeartypeConf(is_pep484_tower=True))
"""A typechecker to whom an int is a float."""
