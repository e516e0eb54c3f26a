"""Hide passwords, signatures and tokens in URLs that are printed or written.

A source like `https://user:password@host/00000.tar` or a signed URL opens a corpus to whoever reads
it. ncclean prints and writes `***` instead, always in the same way, so a run resumes when its URLs
are signed anew.
"""

from __future__ import annotations

import re
from typing import Any

HIDDEN = "***"

_URL = re.compile(r"://[^\s\"'<>\\]*")
_QUERY = re.compile(r"[?#]")
# For these schemes, the text before the host is a token; for sftp it is a name, for abfs a
# container.
_TOKEN_SCHEMES = ("http", "https", "webdav", "hf")
_PARAMETER = re.compile(r"([?#&;])([^=&;#?]*)(=?)([^&;#]*)")
_SECRET_NAME = re.compile(
    r"^x-(amz|goog|ms|oss|cos)-|sig|token|secret|passw|pwd|credential|auth|session|policy|"
    r"api-?_?key|access-?_?(key|id)|key-?_?(pair|id)|^key$|^code$|^hmac|^jwt|^expires$|"
    r"^(se|st|sp|sv|sr|spr|sip|sks?|sk[a-z]{1,3}|ss|srt)$",  # of Azure's
    re.IGNORECASE,
)
_KEPT_NAMES = frozenset(("versionid", "generation", "rev", "revision", "file", "path", "name"))
_LIKE_A_TOKEN = re.compile(r"[\w+/=%~.-]{24,}")


def without_secrets(text: str) -> str:
    """Replace the secrets of every URL in a text with `***`."""
    if "://" not in text:
        return text
    return _URL.sub(_without_secrets, text)


def is_broken(url: str) -> bool:
    """Whether a URL's password has an unescaped character that cuts it short."""
    _, _, rest = url.partition("://")
    return "@" in rest and _has_half_a_password(re.split("[/?#]", rest, maxsplit=1)[0])


def name_without_secrets(url: str) -> str:
    """A URL without its secrets, for the names of files."""
    url = without_secrets(url).replace(f"{HIDDEN}@", "")
    begin, mark, query = url.partition("?")
    left = [one for one in query.split("&") if not one.endswith(HIDDEN)]
    return begin + (mark + "&".join(left) if any(left) else "")


def values_without_secrets(value: Any) -> Any:
    """Replace the secrets of URLs in all strings of a JSON value, keys included."""
    if isinstance(value, str):
        return without_secrets(value)
    if isinstance(value, dict):
        return {values_without_secrets(k): values_without_secrets(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [values_without_secrets(one) for one in value]
    return value


def _without_secrets(url: re.Match[str]) -> str:
    """Hide the secrets of a match of `_URL`, which begins after the scheme and may hold others."""
    query = _QUERY.search(url[0])
    begin = query.start() if query else len(url[0])
    head, tail = url[0][:begin], url[0][begin:]
    scheme = url.string[max(url.start() - 8, 0) : url.start()]
    pieces = head.split("://")[1:]
    if "@" in tail and _has_half_a_password(pieces[-1].partition("/")[0]):
        return f"://{HIDDEN}@{tail.rpartition('@')[2]}"
    hidden = []
    for piece in pieces:
        hidden.append(_without_user(piece, scheme.endswith(_TOKEN_SCHEMES)))
        scheme = piece
    return "".join(f"://{piece}" for piece in hidden) + _PARAMETER.sub(_hidden, tail)


def _without_user(piece: str, is_token: bool) -> str:
    """Hide the user of `user:password@host/path`."""
    host, slash, path = piece.partition("/")
    user, at, host_only = host.rpartition("@")
    if at:
        return f"{HIDDEN}@{host_only}{slash}{path}" if is_token or ":" in user else piece
    if "@" in path and _has_half_a_password(host):
        return f"{HIDDEN}@{path.rpartition('@')[2]}"
    return piece


def _has_half_a_password(host: str) -> bool:
    """Check whether `user:pass` is in the place of a host and port: the rest follows a `/`."""
    _, colon, port = host.rpartition(":")
    return bool(colon) and "@" not in host and not port.isdecimal() and not port.endswith("]")


def _hidden(parameter: re.Match[str]) -> str:
    mark, name, equals, value = parameter.groups()
    if not equals:
        is_secret = bool(_LIKE_A_TOKEN.fullmatch(name))
        return mark + (HIDDEN if is_secret else name)
    is_token = _LIKE_A_TOKEN.fullmatch(value) and name.lower() not in _KEPT_NAMES
    is_url = "://" in value and "@" in value
    is_secret = bool(_SECRET_NAME.search(name) or is_token or is_url)
    return f"{mark}{name}={HIDDEN if is_secret and value else value}"
