"""What an app may pass: checked before anything is sent. Called by the session, and by what makes requests to a table."""

from __future__ import annotations

import operator

LSN_MAX = (1 << 64) - 1


def to_bytes(given: object, what: str) -> bytes:
    """The bytes of an argument. Raises `TypeError`."""
    if type(given) is bytes:
        return given
    try:
        view = memoryview(given)  # type: ignore[arg-type]
    except TypeError:
        advice = "; encode it: text.encode()" if isinstance(given, str) else ""
        raise TypeError("%s must be bytes, not %s%s" % (what, type(given).__name__, advice)) from None
    return view.tobytes()


def to_number(what: str, number: object) -> int:
    """An LSN, or another number of 64 bits. Raises `TypeError` or `ValueError`."""
    try:
        value = operator.index(number)  # type: ignore[arg-type]
    except TypeError:
        raise TypeError("%s must be an int, not %s" % (what, type(number).__name__)) from None
    if not 0 <= value <= LSN_MAX:
        raise ValueError("%s %d: must be from 0 to 2**64 - 1" % (what, value))
    return value
