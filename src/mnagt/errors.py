"""What goes wrong through the user's input, told in one line."""


class InputError(ValueError):
    """Bad input: the message names the file, line or field at fault, and the remedy."""
