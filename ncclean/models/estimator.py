"""The frozen estimator, from images and captions to L2-normalised embeddings."""

from __future__ import annotations

import contextlib
import json
import logging
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import torch
import torch.nn.functional as F
from torch import nn

from ncclean.base.config import DEFAULT_BATCH_SIZE, DEFAULT_MODEL
from ncclean.data.decode import Preprocessing
from ncclean.errors import ModelError
from ncclean.models import text_tower
from ncclean.models.building import build, weights_fingerprint
from ncclean.models.checkpoint import resolve
from ncclean.models.devices import (
    LOW_PRECISION,
    Cores,
    Uploads,
    fastest_batch,
    float32_products,
    for_inference,
    resolve_device,
    resolve_precision,
    sharing_tensors,
)
from ncclean.models.heads import HeadedClip, headed
from ncclean.models.open_clip_internals import model_attribute, pooling
from ncclean.models.preprocessing import as_config
from ncclean.models.text_tower import COMPILED_LENGTHS, CompiledTowers, Tower
from ncclean.models.tokens import BatchTokens, TokenCache, Tokenize, Tokens
from ncclean.models.weights import why

logger = logging.getLogger(__name__)

T = TypeVar("T")

# On CPUs a matrix product of fewer rows uses another kernel and rounds differently: an embedding
# would depend on how many others were in its batch (measured: up to 10 rows do, 12 do not).
_STEADY_ROWS = 16
# Rows that one core encodes at a time: activations that fit its cache make it up to twice as fast
# as all cores on one large batch (see docs/benchmarks.md), and no core waits for another.
_ROWS_PER_CORE = 64
# The share of a GPU's memory that a batch leaves for decoded images, scores, fragmentation.
_FREE_SHARE = 1 / 8
_REPEATS = 5  # of a measured batch: other work on the machine slows some of them


@dataclass(frozen=True)
class ModelIdentity:
    """The model that scored, as a score table records it; `preprocessing` is JSON.

    `dim` is the width of its embeddings, which is not recorded.
    """

    model: str
    pretrained: str
    fingerprint: str
    precision: str
    scale: float  # exp(logit_scale), the unit of the losses
    preprocessing: str = ""
    dim: int = 0


class Estimator:
    """A frozen open_clip model with its tokenizer and preprocessing.

    Embeddings are float32 whatever the precision of the towers. `model` keeps its float32 weights;
    lower precision is autocast around a copy whose matrices are cast once. On a GPU, cuDNN's
    attention is switched off for the whole process. `architecture` is open_clip's `model_cfg`, to
    save the model with. Raises `ModelError` for a model whose tokenizer or scale does not fit its
    towers.
    """

    def __init__(
        self,
        model: nn.Module,
        tokenizer: Callable[[list[str]], torch.Tensor],
        preprocessing: Preprocessing,
        *,
        label: str = "model",
        tag: str = "",
        precision: str = "fp32",
        device: str | torch.device = "cpu",
        compiled: bool = False,
        architecture: Mapping[str, Any] | None = None,
    ) -> None:
        self.device = torch.device(device)
        if self.device.type == "cuda":
            # cuDNN's attention is planned for each new number and length of texts, which took three
            # quarters of a run's time.
            torch.backends.cuda.enable_cudnn_sdp(False)
        self.precision = resolve_precision(precision, self.device)
        # Autocast caches low-precision weights within a forward pass only for parameters that
        # require gradients; without them, ViT-B/32 ran four times slower on a CPU. Nothing records
        # gradients: the methods run under no_grad (inference mode would undo this).
        self.model = model.to(self.device).eval().requires_grad_(True)
        self.tokenizer = tokenizer
        self.tokenize = Tokenize(tokenizer)
        self.preprocessing = preprocessing
        self.architecture = architecture
        logit_scale = _parameter(model, "logit_scale")
        self.scale = float(logit_scale.exp())
        if not 0 < self.scale < math.inf:
            raise ModelError(
                f"logit_scale of {label} ({tag}) is {float(logit_scale):g}, and its exponential "
                f"{self.scale:g} scales no cosines: take another checkpoint"
            )
        # (pixel / 255 - mean) / std as one multiplication and one addition.
        mean = torch.tensor(preprocessing.mean, dtype=torch.float64).view(1, 3, 1, 1)
        std = torch.tensor(preprocessing.std, dtype=torch.float64).view(1, 3, 1, 1)
        self._gain = (1 / (255 * std)).float().to(self.device)
        self._offset = (-mean / std).float().to(self.device)
        # One core each: torch's own threads wait actively for one another, and beside other work on
        # the machine these few batches took ten times as long.
        self._check_tokens(label)
        with ThreadPoolExecutor(initializer=torch.set_num_threads, initargs=(1,)) as pool:
            fingerprint = pool.submit(weights_fingerprint, model)
            trims_text = pool.submit(
                text_tower.trimming_is_exact,
                sharing_tensors(self.model),
                self.tokenize,
                self.device,
            )
            towers = pool.submit(self._prepared_towers)
        self.identity = ModelIdentity(
            label,
            tag,
            fingerprint.result(),
            self.precision,
            self.scale,
            json.dumps(as_config(preprocessing)),
        )
        try:
            self.trims_text = trims_text.result()
        except (RuntimeError, IndexError, AssertionError, TypeError) as error:
            raise ModelError(
                f"the text tower of {label} cannot embed captions: {why(error)}"
            ) from error
        self._towers = towers.result()
        self._encode_image = cast(Tower, self._towers.encode_image)
        self._cores = Cores(self._towers) if self.device.type == "cpu" else None
        self._uploads = Uploads(self.device) if self.device.type == "cuda" else None
        # Each call gets at least this many rows; the surplus results are discarded.
        self._fewest_rows = _STEADY_ROWS if self._cores is not None else 0
        self._compiled: CompiledTowers | None = None
        if compiled:
            lengths = (
                {*COMPILED_LENGTHS, self.context_length}
                if self.trims_text
                else {self.context_length}
            )
            self._compiled = CompiledTowers(self._towers, lengths)
            self._encode_image = self._compiled.encode_image
            self._fewest_rows = DEFAULT_BATCH_SIZE if self._cores is None else _ROWS_PER_CORE

    def _prepared_towers(self) -> nn.Module:
        """Return the model as it computes: matrices cast once, in the GPU's layout."""
        dtype = LOW_PRECISION.get(self.precision, torch.float32)
        if self.device.type == "cuda" or (self.device.type == "cpu" and dtype != torch.float32):
            tokens = self.tokenize(["a cat"]).to(self.device)
            return for_inference(self.model, dtype, self.autocast(), tokens, self.image_size)
        return self.model

    @classmethod
    def load(
        cls,
        model: str = DEFAULT_MODEL,
        pretrained: str | None = None,
        *,
        preprocess: str | None = None,
        precision: str = "auto",
        device: str = "auto",
        compiled: bool = False,
        space: str | None = None,
        random_seed: int | None = None,
    ) -> Estimator:
        """Load any open_clip model: a name with a tag or file, `hf-hub:`, `local-dir:`, `demo`.

        `preprocess` names released weights whose preprocessing the images get, as in
        `ncclean.models.building.build`; by default the model's own. If a folder holds DisNCL's
        heads beside the model, `space` selects embeddings in one of their spaces: `invariant`,
        `exclusive` or `joint`; `auto` is `invariant` if there are any. `compiled` passes the towers
        through `torch.compile`, which takes minutes once. With `random_seed` the model gets random
        weights, and `model` may be any architecture, see `ncclean.models.checkpoint.resolve`.

        Raises `ModelError` if the model is unknown, or its weights or the device are unavailable;
        `InputError` for a precision that is unknown or unsupported by the device.
        """
        chosen = resolve_device(device)
        resolve_precision(precision, chosen)  # before minutes of loading
        source = resolve(model, pretrained, is_random=random_seed is not None)
        built = build(source, random_seed or 0, preprocess)
        network = headed(built.network, source.folder, space)
        in_space = f", {network.space} space" if isinstance(network, HeadedClip) else ""
        return cls(
            network,
            built.tokenizer,
            built.preprocessing,
            architecture=built.architecture,
            label=source.label,
            tag=source.tag + in_space,
            precision=precision,
            device=chosen,
            compiled=compiled,
        )

    @property
    def image_size(self) -> tuple[int, int]:
        """The height and width of the images that the model takes, in pixels."""
        return self.preprocessing.size

    def _check_tokens(self, label: str) -> None:
        """Raise `ModelError` if the tokenizer has more, or longer, output than the tower takes."""
        length = self.tokenize([""]).shape[1]
        inner = getattr(self.tokenizer, "tokenizer", None)
        words = len(inner) if inner is not None else getattr(self.tokenizer, "vocab_size", 0)
        for setting, needed, available in (
            ("context_length", length, model_attribute(self.model, "context_length", default=0)),
            ("vocab_size", words, model_attribute(self.model, "vocab_size", default=0)),
        ):
            if 0 < available < needed:
                raise ModelError(
                    f"the text tower of {label} has a {setting} of {available:,}, but its "
                    f"tokenizer one of {needed:,}: they do not belong together"
                )
        self.context_length = length

    @property
    def vocab_size(self) -> int:
        return model_attribute(self.model, "vocab_size", default=49408)

    def encode_image(self, pixels: torch.Tensor) -> torch.Tensor:
        """Encode (N, 3, H, W) uint8 to (N, d) L2-normalised float32 on the device."""
        return self.start_image(pixels)()

    def start_image(
        self, pixels: torch.Tensor | Sequence[torch.Tensor]
    ) -> Callable[[], torch.Tensor]:
        """Start to encode images; return a function that waits for the (N, d) embeddings.

        Takes a batch, or blocks of one. On a GPU the images travel from pinned memory while earlier
        batches are computed. A batch that is itself in such memory (`ncclean.models.devices.pin`)
        is read until the embeddings are ready.
        """
        blocks = [pixels] if isinstance(pixels, torch.Tensor) else list(pixels)
        if self._uploads is not None and any(len(block) for block in blocks):
            return self._uploads.encode(blocks, self._encode_batch)
        return self._start(self._encode_pixels, blocks)

    def encode_tokens(self, tokens: torch.Tensor) -> torch.Tensor:
        """Encode (N, L) int64 token ids, padded or not, to (N, d) L2-normalised float32.

        Omits tokens that cannot reach the embedding, if the tower allows it: half of those of
        random ids.
        """
        if not len(tokens) or self._cores is None or not self._ends_at_highest:
            return self._start(self._encode_tokens, [tokens])()
        lengths = tokens.argmax(dim=1) + 1
        order = lengths.argsort(stable=True)
        pieces = order.split(_STEADY_ROWS)
        encoded = torch.cat(
            list(
                self._map(
                    lambda rows: self._encode_tokens(tokens[rows, : int(lengths[rows].max())]),
                    pieces,
                )
            )
        )
        return encoded[order.argsort()]

    @property
    def _ends_at_highest(self) -> bool:
        """Check whether a text's embedding is that of the tokens up to its highest id."""
        tower = getattr(self.model, "text", self.model)
        return self.trims_text and pooling(tower)[0] == "argmax"

    def encode_text(self, captions: Sequence[str], batch_size: int = 256) -> torch.Tensor:
        """Embed captions as (N, d) L2-normalised float32 on the device.

        Encodes every distinct caption once and, if the tower allows it, at its own length instead
        of the full context. The result depends on neither.
        """
        return self.encode_captions(captions, batch_size)[0]

    def encode_captions(
        self, captions: Sequence[str], batch_size: int = 256
    ) -> tuple[torch.Tensor, list[int | None]]:
        """Embed captions as `encode_text` does, and count their tokens before cutting.

        Returns (N, d) embeddings and N counts, see `tokens_before_cutting`.
        """
        tokens = TokenCache(self.tokenize).of(captions)
        counts = [tokens.counts[number] for number in tokens.places]
        return self.encode_tokenized(tokens, batch_size), counts

    def encode_tokenized(self, tokens: Tokens, batch_size: int = 256) -> torch.Tensor:
        """Embed m tokenized captions as (m, d) L2-normalised float32, like `encode_text`."""
        if not len(tokens.ids):
            return torch.empty(0, self.embed_dim, device=self.device)
        ids = torch.from_numpy(tokens.ids)
        lengths = self._lengths(ids)
        order = lengths.argsort(stable=True)
        uploaded = self._on_device(ids[order]).long()
        batches = []
        for length, count in zip(*lengths.unique(return_counts=True), strict=True):
            alike, uploaded = uploaded[:count, :length], uploaded[count:]
            batches += alike.split(self._rows_at_a_time(batch_size))
        encoded = torch.cat(list(self._map(self._encode_tokens, batches)))
        return encoded[self._on_device(order.argsort()[tokens.places])]

    def _lengths(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the (N,) lengths at which (N, L) token ids are encoded."""
        if not self.trims_text:
            return torch.full((len(tokens),), tokens.shape[1])
        if self._compiled is not None:
            return text_tower.padded_lengths(tokens, COMPILED_LENGTHS)
        return text_tower.padded_lengths(tokens)

    def _on_device(self, rows: torch.Tensor) -> torch.Tensor:
        """Queue the upload of a tensor behind what this thread has queued."""
        if self.device.type == "cuda":
            return rows.pin_memory().to(self.device, non_blocking=True)
        return rows.to(self.device)

    @property
    def batch_tokens(self) -> BatchTokens:
        """The tokenizer of batches of captions, with as little padding as the tower allows."""
        return BatchTokens(self.tokenize, self.trims_text)

    @property
    def portable_batch_tokens(self) -> BatchTokens | None:
        """Return `batch_tokens`, if another process can have the tokenizer."""
        return self.batch_tokens if self.tokenize.is_portable else None

    def count_tokens(self, captions: Sequence[str]) -> list[int | None]:
        """Count the tokens of captions before cutting, see `tokens_before_cutting`."""
        return self.tokenize.counted(captions)[1]

    def cut(self, counts: Sequence[int | None]) -> dict[str, Any]:
        """Return `captions_cut` and `context_length` from the token counts of captions, by name.

        Returns nothing if the tokenizer cannot count; otherwise an unknown count is that of a
        caption too long to be read whole.
        """
        if self.count_tokens([""]) == [None]:
            return {}
        context = self.context_length
        cut = sum(count is None or count > context for count in counts)
        return {"captions_cut": cut, "context_length": context}

    @property
    def embed_dim(self) -> int:
        """The width of the embeddings, found by encoding a blank image once."""
        if not hasattr(self, "_embed_dim"):
            blank = torch.zeros(1, 3, *self.image_size, dtype=torch.uint8)
            self._embed_dim = self.encode_image(blank).shape[1]
        return self._embed_dim

    def fit_batch(self, batch_size: int | None) -> int:
        """Choose how many images a run encodes at a time, before its first batch.

        None means 256, or on a GPU the power of two measured to be fastest there. Compiled towers
        use this size from then on.
        """
        if batch_size is None and self.device.type == "cuda":
            batch_size = fastest_batch(self._seconds_per_images)
            torch.cuda.empty_cache()
            logger.info("batches of %d images are fastest here", batch_size)
        batch_size = batch_size or DEFAULT_BATCH_SIZE
        if self._compiled is not None and self._cores is None:
            self._fewest_rows = batch_size
        return batch_size

    def seconds_per_batch(self, batch_size: int) -> float:
        """Measure the seconds for a batch of images and one of captions, after a warm-up."""
        pixels = torch.zeros(batch_size, 3, *self.image_size, dtype=torch.uint8)
        captions = [f"a photo of {number} things on a table" for number in range(batch_size)]
        for _ in range(2):
            start = time.perf_counter()
            self.encode_image(pixels)
            self.encode_text(captions, batch_size)
            if self.device.type == "cuda":
                torch.cuda.synchronize(self.device)
            elapsed = time.perf_counter() - start
        return elapsed

    @torch.no_grad()
    def _seconds_per_images(self, count: int) -> float:
        """Measure the least seconds of the image tower, not compiled, after a warm-up.

        Raises `torch.OutOfMemoryError` unless an eighth of the GPU's memory stays free.
        """
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        pixels = torch.zeros(count, 3, *self.image_size, dtype=torch.uint8, device=self.device)
        seconds = []
        for _ in range(1 + _REPEATS):
            start = time.perf_counter()
            self._image_features(pixels, cast(Tower, self._towers.encode_image))
            if self.device.type == "cuda":
                torch.cuda.synchronize(self.device)
            seconds.append(time.perf_counter() - start)
        if self.device.type == "cuda":
            free, whole = torch.cuda.mem_get_info(self.device)
            if free < _FREE_SHARE * whole:
                raise torch.OutOfMemoryError(f"a batch of {count} leaves {free >> 20} MiB")
        return min(seconds[1:])

    def _image_features(self, pixels: torch.Tensor, tower: Tower) -> torch.Tensor:
        if self.device.type == "cuda":
            pixels = pixels.contiguous(memory_format=torch.channels_last)
        values = self.normalized(pixels)
        with self.autocast():
            return tower(values)

    def _encode_batch(self, pixels: torch.Tensor) -> torch.Tensor:
        pieces = pixels.split(self._rows_at_a_time(len(pixels)))
        return torch.cat([self._encode_pixels(piece) for piece in pieces])

    @torch.no_grad()
    def _encode_pixels(self, pixels: torch.Tensor) -> torch.Tensor:
        with self._shrinking():
            features = self._image_features(self._filled(pixels), self._encode_image)
        return F.normalize(features[: len(pixels)].float(), dim=-1)

    @torch.no_grad()
    def _encode_tokens(self, tokens: torch.Tensor) -> torch.Tensor:
        rows = self._filled(tokens).to(self.device)
        with self._shrinking(), self.autocast():
            if self._compiled is not None and rows.shape[1] in self._compiled.encode_text:
                features = self._compiled.encode_text[rows.shape[1]](rows, normalize=True)
            else:
                model = self._cores.model if self._cores is not None else self._towers
                features = text_tower.encode_text(model, rows)
        return F.normalize(features[: len(tokens)].float(), dim=-1)

    def _start(
        self, encode: Callable[[torch.Tensor], torch.Tensor], blocks: Sequence[torch.Tensor]
    ) -> Callable[[], torch.Tensor]:
        count = sum(map(len, blocks))
        if not count:  # not every tower supports it
            return lambda: torch.empty(0, self.embed_dim, device=self.device)
        size = self._rows_at_a_time(count)
        if self._cores is not None:  # a small batch keeps all cores busy too
            size = min(size, max(self._fewest_rows, -(-count // self._cores.count)))
        encoded = self._map(encode, [piece for block in blocks for piece in block.split(size)])
        return lambda: torch.cat(list(encoded))

    def _rows_at_a_time(self, batch_size: int) -> int:
        if self._cores is not None:
            return _ROWS_PER_CORE
        return self._fewest_rows or max(1, batch_size)

    def _map(
        self, encode: Callable[[T], torch.Tensor], pieces: Iterable[T]
    ) -> Iterable[torch.Tensor]:
        """Return `encode` of every piece, in order; begun on a CPU, queued on other devices."""
        if self._cores is None:
            return [encode(piece) for piece in pieces]
        return self._cores.map(encode, pieces)

    def _filled(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the rows, with copies of the first one up to `_fewest_rows`."""
        lacking = self._fewest_rows - len(rows)
        if lacking <= 0 or len(rows) == 0:
            return rows
        return torch.cat([rows, rows[:1].expand(lacking, *rows.shape[1:])])

    @contextlib.contextmanager
    def _shrinking(self) -> Iterator[None]:
        """Halve the batch of compiled towers on a GPU if memory runs out, as the run does."""
        rows = self._fewest_rows
        try:
            yield
        except torch.OutOfMemoryError:
            if self._cores is None:
                self._fewest_rows = -(-rows // 2)
            raise

    def normalized(self, pixels: torch.Tensor) -> torch.Tensor:
        """Convert (N, 3, H, W) uint8 images to the image tower's float32 input, on the device."""
        values = pixels.to(self.device, non_blocking=True).float()
        return values.mul_(self._gain).add_(self._offset)

    def autocast(self) -> contextlib.AbstractContextManager[object]:
        """Return the context in which the towers compute in the estimator's precision."""
        if self.precision in LOW_PRECISION:
            return torch.autocast(self.device.type, dtype=LOW_PRECISION[self.precision])
        if self.device.type == "cuda":
            return float32_products(tf32=self.precision == "tf32")
        return contextlib.nullcontext()


def _parameter(model: nn.Module, name: str) -> torch.Tensor:
    value = getattr(model, name, None)
    return value.detach() if isinstance(value, torch.Tensor) else torch.tensor(math.log(100.0))
