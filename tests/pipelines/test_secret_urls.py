"""Sources behind a password or a signature: no file and no line that ncclean writes repeats it."""

from __future__ import annotations

import base64
import functools
import http.server
import json
import threading
from pathlib import Path

import pyarrow.parquet as pq
import pytest

import ncclean
from ncclean.errors import InputError
from tests.command_line import run

PASSWORD, SIGNATURE = "OpenSesame77", "9f86d081884c7d659a2f"
_SECRETS = (PASSWORD, SIGNATURE, base64.b64encode(f"user:{PASSWORD}".encode()).decode())


class _Guarded(http.server.SimpleHTTPRequestHandler):
    """Files for whoever has the password, or a signature in the URL."""

    def do_GET(self) -> None:
        if self._may_read():
            super().do_GET()

    def do_HEAD(self) -> None:
        if self._may_read():
            super().do_HEAD()

    def _may_read(self) -> bool:
        path, _, query = self.path.partition("?")
        allowed = f"Basic {_SECRETS[2]}" == self.headers.get("Authorization") or SIGNATURE in query
        self.path = path
        if not allowed:
            self.send_error(403)
        return allowed

    def log_message(self, *words: object) -> None: ...


@pytest.fixture(scope="module")
def host(corpus: Path):
    handler = functools.partial(_Guarded, directory=str(corpus))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    yield f"127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    thread.join()


@pytest.fixture
def source(host: str) -> str:
    return f"http://user:{PASSWORD}@{host}/00000.tar"


def signed(host: str, seconds: int) -> str:
    return f"http://{host}/00000.tar?X-Amz-Expires={seconds}&X-Amz-Signature={SIGNATURE}{seconds}"


def ends(*words: object) -> tuple[int, str]:
    """The exit code and all that was printed, which must hold no secret."""
    finished = run(*words)
    printed = finished.stdout + finished.stderr
    assert not leaks_in(printed.encode()), printed
    return finished.returncode, printed


def leaks_in(data: bytes) -> list[str]:
    return [secret for secret in _SECRETS if secret.encode() in data]


def check_files(folder: Path) -> None:
    for path in folder.rglob("*"):
        assert not leaks_in(str(path.relative_to(folder)).encode())
        assert not path.is_file() or not leaks_in(path.read_bytes()), path


@pytest.mark.slow
def test_no_face_repeats_a_secret(host, source, tmp_path, monkeypatch, rough_shifts):
    monkeypatch.chdir(tmp_path)
    table, kept = "scores.parquet", "kept.parquet"
    recipe = tmp_path.parent / f"{tmp_path.name}.yaml"
    recipe.write_text(
        f"vars: {{source: '{signed(host, 5)}'}}\nstages:\n  score: {{shards: '${{source}}', "
        "model: demo, shift: 0.2}\n"
        "  select: {scores: '${score}', where: 'noise_probability < 0.5'}\n"
    )
    for words in (
        ("score", source, "--model", "demo", "--shift", "0.2", "--out", table, "--json"),
        ("query", "SELECT * FROM scores LIMIT 3", table, "--json"),
        ("select", table, "--where", "noise_probability < 0.5", "--out", kept),
        ("report", table, "--shards", signed(host, 1), "--out", "report.html"),
        ("audit", table, "--shards", signed(host, 1), "--out", "audit.html"),
        ("export", kept, "--shards", source, "--out", "clean", "--json"),
        ("inject-noise", source, "--noise", "ncr=0.2", "--out", "noisy"),
        ("evaluate", "noise", signed(host, 1), "--inject", "0.2", "--model", "demo", "--out",
         "noise.json"),
        ("clean", signed(host, 1), "--model", "demo", "--out", "cleaned"),
        ("finetune", "--shards", source, "--selection", kept, "--model", "demo", "--steps", "1",
         "--batch-size", "8", "--out", "tuned"),
        ("score", source, "--model", "demo", "--dry-run", "--out", "other"),
        ("run", recipe, "--out", "ran"),
    ):  # fmt: skip
        code, printed = ends(*words)
        assert code == 0, (words[0], printed)
    check_files(tmp_path)
    assert "***" in Path("tuned/params.yaml").read_text()


@pytest.mark.parametrize("place", ["nothing.tar", "nothing", "folder/x.parquet"])
def test_an_error_repeats_no_secret(host, tmp_path, place):
    for url in (
        f"http://user:{PASSWORD}@{host}/{place}",
        f"http://{host}/{place}?sig={SIGNATURE}",
        f"http://user:{PASSWORD}/x@{host}/{place}",
        f"mine://user:{PASSWORD}@{host}/{place}",
    ):
        code, printed = ends("--debug", "score", url, "--model", "demo", "--out", tmp_path / "out")
        assert code == 2
        assert "***" in printed
    assert not (tmp_path / "out").exists()


def test_no_exception_of_the_package_repeats_a_secret(source, tmp_path):
    with pytest.raises(InputError) as raised:
        ncclean.score(shards=[f"{source}.missing"], out=str(tmp_path / "out"), model="demo")
    assert not leaks_in(str(raised.value).encode())
    assert "***" in str(raised.value)


def test_a_run_resumes_with_urls_that_are_signed_anew(host, tmp_path):
    out = tmp_path / "out"
    words = ("--model", "demo", "--shift", "0.2", "--out", out)
    assert ends("score", signed(host, 1), *words)[0] == 0
    code, printed = ends("score", signed(host, 2), *words)
    assert code == 0
    assert "nothing left to score" in printed
    listed = pq.read_table(out / ".ncclean" / "shards.parquet")
    shard = json.loads(listed["ref"][0].as_py())
    assert shard["name"] == "00000"
    assert shard["url"] == f"http://{host}/00000.tar?X-Amz-Expires=***&X-Amz-Signature=***"
