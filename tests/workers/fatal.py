"""A reader that dies of some images, by their width, of a sample, by its key, and of a shard."""

import logging
import os
import signal
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection

from ncclean.data import decode
from ncclean.data.tar import TarSamples
from ncclean.execution import shard_reader

ABORTS, LOOPS, FILLS_MEMORY, KILLED, EXITS, RAISES, SLEEPS = range(77, 84)
_open_image, _samples = decode.open_image, TarSamples.__iter__


def open_image(data, max_pixels):
    header = _open_image(data, max_pixels)
    width = header.size[0]
    if width == ABORTS:
        os.abort()
    while width == LOOPS:
        pass
    if width == FILLS_MEMORY:
        bytearray(5 << 30)
    if width == KILLED:
        os.kill(os.getpid(), signal.SIGKILL)
    if width == EXITS:
        os._exit(3)
    if width == SLEEPS and is_first():
        time.sleep(600)
    if width == RAISES:
        raise LookupError("nobody has thought of this")
    return header


def is_first():
    """Whether no process has asked before."""
    try:
        open(os.environ["ASKED_BEFORE"], "x").close()
    except FileExistsError:
        return False
    return True


def samples(self):
    if self.shard.name == os.environ.get("UNREADABLE_SHARD"):
        os.abort()
    if self.shard.name == os.environ.get("SLOW_SHARD") and is_first():
        time.sleep(600)
    for sample in _samples(self):
        if sample.key == "fatal":
            os.abort()
        if sample.key == "said":
            logging.getLogger("ncclean.base.stores").warning("trying %s again", "a.tar")
        yield sample


def main(connection: Connection, descriptors: Sequence[int]) -> None:
    decode.open_image, TarSamples.__iter__ = open_image, samples
    shard_reader.main(connection, descriptors)
