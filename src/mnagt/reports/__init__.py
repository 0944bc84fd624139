"""HTML reports: pages from one Jinja2 template, charts by matplotlib, molecules by RDKit.

A page is described by the blocks of `page.py`; charts and drawings are `picture.Picture` objects. Nothing here knows
experiments or models: callers pass plain data.
"""
