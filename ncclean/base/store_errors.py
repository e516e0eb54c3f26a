"""Explain errors of files and object stores in one sentence, and tell transient ones apart."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from ncclean.base.url_secrets import without_secrets
from ncclean.errors import one_line

_PERMANENT = (
    FileExistsError,
    FileNotFoundError,
    IsADirectoryError,
    NotADirectoryError,
    PermissionError,
)
_PERMANENT_ERRNO = (
    errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EINVAL, errno.ENOSYS, errno.EMFILE,
    errno.ENAMETOOLONG, errno.ELOOP, errno.ENXIO,
    errno.EBUSY,  # of s3fs: the object was replaced while it was read
    errno.EOPNOTSUPP, errno.EILSEQ,  # macOS: of a socket, of a name that is not UTF-8
)  # fmt: skip
_CLIENTS = (
    "aiobotocore", "aiohttp", "azure", "botocore", "gcsfs", "google", "httpx", "httpx2",
    "huggingface_hub",
)  # fmt: skip
# Errors of botocore, aiohttp, httpx and http.client that stores raise unchanged. By name, so that
# none of these libraries need be installed.
_TRANSIENT_CLASSES = frozenset(
    (
        "ClientConnectionError",
        "ClientPayloadError",
        "EndpointConnectionError",
        "FSTimeoutError",
        "HTTPClientError",
        "IncompleteRead",
        "ResponseParserError",
        "TransportError",
    )
)
_HUB_MISSING = {"EntryNotFoundError", "RepositoryNotFoundError", "RevisionNotFoundError"}
_HUB_OFFLINE = "OfflineModeIsEnabled"  # a ConnectionError


def is_transient(error: BaseException) -> bool:
    """Check whether a retry may help: throttling, a server's error, a broken connection."""
    # fsspec's http calls a file missing whatever the server answers when asked for its size.
    if isinstance(error, FileNotFoundError) and error.__cause__ is not None:
        return is_transient(error.__cause__)
    if any(cls.__name__ in _TRANSIENT_CLASSES for cls in type(error).__mro__):
        return True
    status = _status(error)
    if status is not None:
        return status >= 500 or status in (408, 429)
    if isinstance(error, OSError) and not isinstance(error, _PERMANENT):
        return error.errno not in _PERMANENT_ERRNO and type(error).__name__ != _HUB_OFFLINE
    return isinstance(error, TimeoutError)


def _status(error: BaseException) -> int | None:
    """Return the HTTP status behind an error: gcsfs's `code`, or the hub's."""
    status = getattr(error, "code", None)
    if status is None:
        status = getattr(getattr(error, "response", None), "status_code", None)
    return status if isinstance(status, int) else None


def is_store_error(error: BaseException) -> bool:
    """Check whether an error comes from a file system or the client of an object store."""
    family = type(error).__module__.split(".")[0]
    return isinstance(error, OSError) or family in _CLIENTS or is_transient(error)


def is_full(folder: str | os.PathLike[str]) -> bool:
    """Check whether the disk of a local folder has less than a megabyte left.

    torch, safetensors and DuckDB raise their own errors when the disk is full.
    """
    try:
        disk = os.statvfs(folder)
    except OSError:
        return False
    return disk.f_bavail * disk.f_frsize < 1 << 20


def explain(path: object, error: BaseException, verb: str = "write") -> str:
    """Explain in one sentence why an access to `path` failed and what to do, without secrets."""
    path = without_secrets(str(path))
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"no space left for {path}; nothing is lost: make room and run the same command"
    names = {cls.__name__ for cls in type(error).__mro__}
    if names & {"NoCredentialsError", "PartialCredentialsError", "CredentialRetrievalError"}:
        return (
            f"cannot {verb} {path}: no credentials were found for the store (for s3:// set "
            "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, a profile or a role)"
        )
    if "://" in path:
        if isinstance(error, PermissionError) or (
            "GatedRepoError" in names or (_status(error) in (401, 403) and not names & _HUB_MISSING)
        ):
            return f"cannot {verb} {path}: the store refuses these credentials ({one_line(error)})"
        if is_transient(error):
            return (
                f"cannot {verb} {path}: the store does not answer ({one_line(error)}); nothing "
                "is lost: run the same command when it is back"
            )
        if isinstance(error, FileNotFoundError) or names & _HUB_MISSING:
            return f"cannot {verb} {path}: {_missing(path)}"
    if isinstance(error, NotADirectoryError | FileExistsError):
        files = (parent for parent in Path(path).parents if parent.is_file())
        if (file := next(files, None)) is not None:
            return f"cannot {verb} {path}: {file} is a file"
    reason = error.strerror if isinstance(error, OSError) and error.strerror else one_line(error)
    return f"cannot {verb} {path}: {reason}"


def _missing(url: str) -> str:
    scheme, _, rest = url.partition("://")
    if scheme in ("http", "https"):
        return "there is nothing"
    if scheme == "hf":
        return (
            "the hub has no such repository, revision or file, or it is private: then `hf auth "
            "login` or set HF_TOKEN"
        )
    return f"there is nothing at that path, or no bucket {rest.partition('/')[0]}"
