"""The one exception that means "the user can mend this", and how a script ends."""

import os
import sys
from collections.abc import Callable

#: Longest message, in characters: names and values in it come from files.
LONGEST = 4_000


class InputError(ValueError):
    """Wrong usage or wrong input.

    The message is a single line that names the thing at fault, what was expected, and how to mend it. The
    command line prints that line on stderr and exits with code 2, without a traceback. Characters that cannot
    be shown stand in it as escapes, so that no name out of a file can steer a terminal; of a message above
    ``LONGEST`` characters the middle is left out.
    """

    def __init__(self, message: str) -> None:
        said = " ".join(str(message).split())
        if len(said) > LONGEST:
            said = f"{said[: LONGEST // 2]} ... {said[-LONGEST // 4 :]}"
        super().__init__("".join(sign if sign.isprintable() else repr(sign)[1:-1] for sign in said))


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
