"""The one family of exceptions that ncclean raises on purpose.

The command line turns them into one sentence and exit code 2; everything else is a bug. No message
repeats the secrets of a URL.
"""

from ncclean.base.url_secrets import without_secrets


class NccleanError(Exception):
    """Base class: the message names the file or option and says what to do."""

    def __init__(self, message: object = "") -> None:
        super().__init__(without_secrets(str(message)))


class InputError(NccleanError):
    """Wrong usage or input: a missing path, an option out of range, an unreadable table."""


class ModelError(NccleanError):
    """The estimator cannot be built or its weights cannot be obtained."""


class ResumeError(NccleanError):
    """The output holds results of another input, model or set of options.

    `difference` says which; the message says what to do about it.
    """

    def __init__(self, difference: str, advice: str = "") -> None:
        super().__init__(f"{difference}{advice}")
        self.difference = without_secrets(difference)


class ShardError(NccleanError):
    """A shard cannot be read to its end; `samples` complete samples came before."""

    def __init__(self, message: str, samples: int = 0) -> None:
        super().__init__(message)
        self.samples = samples


class DeviceError(NccleanError):
    """The device failed, or its memory holds no batch of one: other devices can do the work."""


class TrainingError(NccleanError):
    """Training cannot go on: a loss or a gradient is not finite."""


class InfeasibleError(NccleanError, ValueError):
    """No transport plan meets the marginals and the mask: the message names the row or column."""


def one_line(error: BaseException) -> str:
    """An exception's message on one line, without secrets in URLs; its class if it has none."""
    return " ".join(without_secrets(str(error)).split())[:200] or type(error).__name__
