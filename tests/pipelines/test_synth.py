"""The command `synth`: what it writes, goes on with and replaces."""

import pytest
from ncclean_pipelines.command import build
from ncclean_pipelines.synth import Synth

from ncclean.data.reader import read_samples
from ncclean.data.shards import resolve_shards


def command(out, **options):
    few = {"pairs": 20, "shard_size": 20, "held_out": 0, "workers": 1}
    return build(Synth, {"out": str(out), **few, **options})


def shards(out):
    """Name -> bytes and time of writing."""
    return {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in out.glob("*.tar")}


def test_overwrite_replaces_what_synth_wrote_and_nothing_else(tmp_path, refused):
    out = tmp_path / "c"
    assert command(out, pairs=60, held_out=5).run().summary.shards == 3
    assert (out / "heldout" / "retrieval").is_dir()
    (out / "notes.txt").write_text("mine")
    (out / "heldout" / "notes.txt").write_text("mine")
    before = shards(out)
    refused(command, out)
    assert shards(out) == before
    command(out, overwrite=True).run()
    files = (path.relative_to(out).as_posix() for path in out.rglob("*") if path.is_file())
    kept = sorted(file for file in files if not file.startswith(".ncclean/"))
    assert kept == ["00000.tar", "heldout/notes.txt", "notes.txt"]
    assert (out / "notes.txt").read_text() == "mine"


def test_the_same_again_renders_nothing(tmp_path):
    first = command(tmp_path / "c").run().summary
    written = shards(tmp_path / "c")
    assert command(tmp_path / "c", workers=2).run().summary == first
    assert shards(tmp_path / "c") == written


def test_what_was_interrupted_is_rendered_anew(tmp_path, monkeypatch):
    from ncclean.execution import render_corpus as module

    command(tmp_path / "whole", held_out=5).run()

    def interrupted(*_):
        raise KeyboardInterrupt

    out = tmp_path / "c"
    with monkeypatch.context() as patched:
        patched.setattr(module, "write_heldout", interrupted)
        with pytest.raises(KeyboardInterrupt):
            command(out, held_out=5).run()
    command(out, held_out=5).run()
    files = sorted(path.relative_to(out) for path in out.rglob("*") if path.suffix == ".tar")
    assert len(files) > 1
    assert all(
        (out / file).read_bytes() == (tmp_path / "whole" / file).read_bytes() for file in files
    )


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_users_shard_in_the_way_is_refused(tmp_path, overwrite, refused):
    (tmp_path / "00000.tar").write_bytes(b"mine")
    refused(command, tmp_path, overwrite=overwrite)
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"mine"]


@pytest.mark.parametrize("wrong", [{"kind": "salt"}, {"out": "s3://b/x"}, {"pairs": 0}])
def test_what_makes_no_sense_is_refused(wrong, refused):
    refused(build, Synth, {"out": "c", **wrong})


def test_sentences_and_which_of_them_is_foreign(tmp_path, refused):
    options = {"sentences": 4, "noise": 0.5, "kind": "foreign_sentence", "seed": 3}
    assert command(tmp_path / "c", **options).run().summary.shards == 1
    records = [one.metadata for one in read_samples(resolve_shards([str(tmp_path / "c")])[0])]
    noisy = [record for record in records if record["is_noisy"]]
    assert len(noisy) == 10
    assert {record["noise_kind"] for record in noisy} == {"foreign_sentence"}
    assert {record["noisy_part"] for record in noisy} <= {0, 1, 2, 3}
    assert all(record["noisy_part"] is None for record in records if not record["is_noisy"])
    refused(command, tmp_path / "c", **{**options, "sentences": 1})


def test_a_shard_that_is_gone_is_rendered_again(tmp_path):
    command(tmp_path / "c", pairs=40).run()
    (tmp_path / "c" / "00001.tar").unlink()
    command(tmp_path / "c", pairs=40).run()
    assert shards(tmp_path / "c").keys() == {"00000.tar", "00001.tar"}
