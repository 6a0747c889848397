"""The one exception that means "the user can mend this"."""


class InputError(ValueError):
    """Wrong usage or wrong input.

    The message is a single line that names the thing at fault, what was expected, and how to mend it. The
    command line prints that line on stderr and exits with code 2, without a traceback.
    """

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(str(message).split()))
