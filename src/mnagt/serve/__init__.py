"""A trained model as a service: see ``app``."""
