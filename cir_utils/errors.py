"""The one exception that means "the user can mend this", and how a script ends."""

import os
import sys
from collections.abc import Callable


class InputError(ValueError):
    """Wrong usage or wrong input.

    The message is a single line that names the thing at fault, what was expected, and how to mend it. The
    command line prints that line on stderr and exits with code 2, without a traceback.
    """

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(str(message).split()))


def exit_code(main: Callable[[], int]) -> int:
    """What a script's ``main`` returns; 1, without a traceback, when nobody reads its output to the end
    (``| head -1``)."""
    try:
        code = main()
        sys.stdout.flush()  # here, not at exit, where nobody could catch it
        return code
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the flush at exit goes nowhere
        return 1
