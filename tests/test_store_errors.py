"""Errors of files and stores: which are tried again, and the sentence that is left."""

import errno
from types import SimpleNamespace

import pytest
from huggingface_hub.errors import OfflineModeIsEnabled

from ncclean.base.store_errors import explain, is_transient


class ClientConnectionError(Exception):
    """Named like aiohttp's."""


class EndpointConnectionError(Exception):
    """Named like botocore's, of a refused connection or a name that nobody knows."""


class GcsError(Exception):
    def __init__(self, code):
        self.code = code


class HubError(OSError):
    """With an answer, like huggingface_hub's."""

    def __init__(self, status):
        self.response = SimpleNamespace(status_code=status)


@pytest.mark.parametrize(
    ("error", "may_pass"),
    [
        (ClientConnectionError(), True),
        (EndpointConnectionError(), True),
        (TimeoutError(), True),
        (ConnectionResetError(), True),
        (OSError(errno.EIO, "Input/output error"), True),
        (GcsError(503), True),
        (GcsError(429), True),
        (GcsError(404), False),
        (HubError(503), True),
        (HubError(404), False),
        (OfflineModeIsEnabled(), False),
        (FileNotFoundError(), False),
        (PermissionError(), False),
        (OSError(errno.ENOSPC, "full"), False),
        (OSError(errno.EROFS, "read-only"), False),
        (OSError(errno.EBUSY, "s3fs: replaced while it was read"), False),
        (OSError(errno.EOPNOTSUPP, "a socket, on macOS"), False),
        (OSError(errno.EILSEQ, "a name that is not UTF-8, on macOS"), False),
        (OSError(errno.EMFILE, "too many open files"), False),
        (ValueError(), False),
    ],
)
def test_what_may_help(error, may_pass):
    assert is_transient(error) is may_pass


@pytest.mark.parametrize(
    ("path", "error", "sentence"),
    [
        ("/x", OSError(errno.ENOSPC, ""), "no space left for /x; nothing is lost"),
        ("/x", PermissionError(13, "Permission denied"), "cannot write /x: Permission denied"),
        ("s3://b/x", FileNotFoundError(), "there is nothing at that path, or no bucket b"),
        ("s3://b/x", PermissionError("denied"), "the store refuses these credentials (denied)"),
        ("s3://b/x", TimeoutError("slow\n  down"), "does not answer (slow down)"),
        ("hf://datasets/o/d/x", FileNotFoundError(), "no such repository, revision or file"),
        ("hf://datasets/o/d/x", HubError(403), "the store refuses these credentials"),
        ("hf://datasets/o/d/x", HubError(502), "the store does not answer"),
        ("s3://b/x", type("NoCredentialsError", (Exception,), {})(), "no credentials were found"),
    ],
)
def test_one_sentence_says_what_to_do(path, error, sentence):
    assert sentence in explain(path, error)
