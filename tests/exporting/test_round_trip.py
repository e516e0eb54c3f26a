"""What came in comes back: of all layouts in all forms, with types, splits and folders."""

import csv
import datetime
import decimal
import json
import uuid

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from upath import UPath

from ncclean.exporting.export import export_shards
from ncclean.exporting.out_layout import out_layout
from ncclean.exporting.parquet import column_of, conformed, tables_of, unified
from ncclean.exporting.rows import ExportedRow
from tests.data.image_layouts import LAYOUTS, PEOPLES, read
from tests.exporting.test_export_layouts import export, picture, select

FORMS = ("auto", "webdataset", "folder", "csv", "parquet")
# Whose samples are read in ways of their own; all others are exported in the form they have.
IN_ALL_FORMS = ("tar", "files", "Hugging Face", "open_clip", "Karpathy", "Lance", "hive")
# Columns of paths or of texts that hold pictures: these lie elsewhere in the output.
OF_IMAGES = {"image", "file_name", "filepath", "image_path"}
TIME = datetime.datetime(2020, 1, 2, 3)
DECIMAL = decimal.Decimal("1.10")
UUID = uuid.UUID(int=7).bytes
TYPES = {
    "string_view": pa.array(["a", None, "text of more than twelve"], pa.string_view()),
    "binary_view": pa.array([b"a", None, b"c"], pa.binary_view()),
    "large_string": pa.array(["a", None, "c"], pa.large_string()),
    "dictionary": pa.array(["a", None, "a"]).dictionary_encode(),
    "decimal128": pa.array([DECIMAL, None, DECIMAL], pa.decimal128(10, 2)),
    "decimal256": pa.array([DECIMAL, None, DECIMAL], pa.decimal256(50, 2)),
    "zone": pa.array([TIME, None, TIME], pa.timestamp("us", "Europe/Berlin")),
    "nanoseconds": pa.array([1, None, 3], pa.timestamp("ns")),
    "duration": pa.array([1, None, 3], pa.duration("s")),
    "fixed": pa.array([b"ab", None, b"cd"], pa.binary(2)),
    "structs": pa.array([[{"a": 1}], None, []]),
    "map": pa.array([[("a", 1)], None, []], pa.map_(pa.string(), pa.int64())),
    "nested": pa.array([[[1], [2, 3]], None, []]),
    "list_view": pa.array([[1], None, []], pa.list_view(pa.int32())),
    "views": pa.array([["a"], None, ["b", None]], pa.list_(pa.string_view())),
    "vector": pa.array([[1.0, 2.0], None, [3.0, 4.0]], pa.list_(pa.float32(), 2)),
    "half": pa.array([1.0, None, 3.0], pa.float16()),
    "null": pa.nulls(3),
    "unsigned": pa.array([2**64 - 1, None, 0], pa.uint64()),
    "uuid": pa.ExtensionArray.from_storage(pa.uuid(), pa.array([UUID] * 3, pa.binary(16))),
    "json": pa.ExtensionArray.from_storage(pa.json_(), pa.array(['{"a": 1}', None, "[]"])),
}


def rows(numbers, **columns):
    return pa.table({
        "image": [{"bytes": picture(n), "path": f"p{n}.jpg"} for n in numbers],
        "text": [f"caption {n}" for n in numbers],
        **columns,
    })  # fmt: skip


def repository(folder, files):
    for name, table in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(table, folder / name)
    return folder


def written(out):
    files = (path for path in out.rglob("*") if path.is_file() and ".ncclean" not in path.parts)
    return sorted(str(path.relative_to(out)) for path in files)


@pytest.mark.parametrize(
    ("name", "form"),
    [
        pytest.param(
            name, form,
            marks=[] if form == "auto" or name in IN_ALL_FORMS else pytest.mark.slow,
        )
        for name in {**LAYOUTS, **PEOPLES}
        for form in FORMS
    ],
)  # fmt: skip
def test_an_export_of_all_read_again_gives_the_same_samples(name, form, tmp_path):
    pairs = [(f"k{n:03d}", picture(n), f"caption, number {n}") for n in range(6)]
    source = {**LAYOUTS, **PEOPLES}[name](pairs, tmp_path / "source")
    before, _ = read(source)
    after, errors = read(export(source, tmp_path, form))
    assert errors == []
    assert sorted((s.caption, s.image) for s in after) == sorted(
        (s.caption, s.image) for s in before
    )
    by_caption = {sample.caption: sample for sample in after}
    for sample in before:
        same = by_caption[sample.caption]
        if name not in ("Arrow", "hive"):  # whose shards have the same keys
            assert same.key == sample.key
        for column, value in sample.metadata.items():
            found = same.metadata.get(column)
            is_text = form == "csv" or (name, form) == ("open_clip", "folder")
            if column not in OF_IMAGES and not (
                is_text and found == ("" if value is None else str(value))
            ):
                assert found == value, column


def test_a_tar_of_which_all_is_selected_has_equal_bytes(tmp_path):
    pairs = [(f"k{n:03d}", picture(n), f"caption {n}") for n in range(7)]
    source = LAYOUTS["tar"](pairs, tmp_path / "source")
    out = export(source, tmp_path)
    assert (out / "00000.tar").read_bytes() == (source / "c.tar").read_bytes()


@pytest.mark.parametrize("mended", [False, True])
def test_every_type_of_a_parquet_file_comes_back(mended, tmp_path):
    """A mended caption, too, keeps the type of its column."""
    columns = {**TYPES, "text": pa.array(["zero", "one", "two"], pa.string_view())}
    source = repository(tmp_path / "source", {"c.parquet": rows(range(3), **columns)})
    texts = {"caption": lambda count: pa.array(["new"] + [None] * (count - 1))} if mended else {}
    out = export(source, tmp_path, drop={1}, columns=texts)
    before = pq.read_table(source / "c.parquet")
    after = pq.read_table(out / "00000.parquet")
    for name in before.schema.names:
        assert after.schema.field(name).type == before.schema.field(name).type
        kept = [value for n, value in enumerate(before[name].to_pylist()) if n != 1]
        if name == "text" and mended:
            kept[0] = "new"
        assert after[name].to_pylist() == kept


@pytest.mark.parametrize("form", ["webdataset", "folder"])
def test_values_of_every_type_are_in_json(form, tmp_path):
    source = repository(tmp_path / "source", {"c.parquet": rows(range(3), **TYPES)})
    samples, errors = read(export(source, tmp_path, form))
    assert errors == []
    assert len(samples) == 3
    out = export(source, tmp_path, form, out="again")
    if form == "folder":
        first = json.loads((out / "metadata.jsonl").read_text().splitlines()[0])
        assert first.keys() >= TYPES.keys()
        assert (first["string_view"], first["vector"], first["map"]) == ("a", [1, 2], [["a", 1]])


def test_a_type_that_parquet_lacks_becomes_one_that_it_has():
    values = column_of([{}, None], pa.struct([]))
    assert values.to_pylist() == ["{}", None]
    interval = pa.array([(1, 2, 3)], pa.month_day_nano_interval())
    assert pa.types.is_string(column_of(interval.to_pylist(), interval.type).type)


def test_one_schema_holds_columns_that_some_files_lack():
    one = pa.schema([pa.field("n", pa.int64(), nullable=False), ("x", pa.string())])
    schema = unified([one, pa.schema([("x", pa.string_view())])])
    assert schema.field("n").nullable
    other = conformed(pa.table({"x": pa.array(["b"], pa.string_view())}), schema)
    assert other.to_pylist() == [{"n": None, "x": "b"}]


def test_splits_of_a_repository_keep_their_names(tmp_path):
    files = {
        "data/train-00000-of-00002.parquet": rows(range(4)),
        "data/train-00001-of-00002.parquet": rows(range(4, 8)),
        "data/test-00000-of-00001.parquet": rows(range(20, 23)),
    }
    source = repository(tmp_path / "source", files)
    chosen, shards = select(source, folder=tmp_path)
    out = tmp_path / "out"
    layout = out_layout("auto", str(out), shards, [str(source)])
    export_shards(chosen, shards, UPath(out), layout=layout, samples_per_shard=3)
    assert written(out) == [
        "data/test-00000-of-00001.parquet",
        *(f"data/train-0000{n}-of-00003.parquet" for n in range(3)),
    ]
    train = [pq.read_table(path) for path in sorted((out / "data").glob("train-*"))]
    assert pa.concat_tables(train)["text"].to_pylist() == [f"caption {n}" for n in range(8)]


@pytest.mark.parametrize(
    ("files", "names"),
    [
        (["en/train-00000-of-00001", "de/train-00000-of-00001"],
         ["de/train-00000-of-00001", "en/train-00000-of-00001"]),
        (["default/train/0000", "default/test/0000"], ["test/00000", "train/00000"]),
        (["lang=en/part-0", "lang=de/part-0", "lang=de/part-1"],
         ["lang=de/00000", "lang=en/00000"]),
        (["train", "validation"], ["train-00000-of-00001", "validation-00000-of-00001"]),
        (["a-train-3", "b-train"], ["a-train-00000-of-00001", "b-train-00000-of-00001"]),
        (["00000", "00001"], ["00000"]),
    ],
)  # fmt: skip
def test_folders_and_splits_come_back(files, names, tmp_path):
    tables = {f"{name}.parquet": rows([2 * n, 2 * n + 1]) for n, name in enumerate(files)}
    source = repository(tmp_path / "source", tables)
    out = export(source, tmp_path)
    assert written(out) == [f"{name}.parquet" for name in names]
    export(source, tmp_path, overwrite=True, drop={0})
    assert written(out) == [f"{name}.parquet" for name in names]
    assert len(read(out)[0]) == 2 * len(files) - 1


def test_files_of_one_config_have_one_schema_and_others_their_own(tmp_path):
    files = {
        "en/train.parquet": rows(range(2)), "en/test.parquet": rows(range(2, 4)),
        "de/train.parquet": rows(range(4, 6), zusatz=["x", "y"]),
    }  # fmt: skip
    source = repository(tmp_path / "source", files)
    mended = {"caption": lambda count: pa.array([None] * (count - 1) + ["new"])}  # of en/train
    out = export(source, tmp_path, columns=mended)
    names = {
        name: set(pq.read_schema(out / f"{name}-00000-of-00001.parquet").names)
        for name in ("en/train", "en/test", "de/train")
    }
    assert names["en/train"] == names["en/test"]
    assert "original_caption" in names["en/train"]
    assert "zusatz" in names["de/train"] - names["en/train"]
    assert "original_caption" not in names["de/train"]


CARD = """---
license: mit
dataset_info:
  splits:
  - name: train
    num_examples: 2
configs:
- config_name: default
  data_files: data/train-*
---
# Pictures
"""


@pytest.mark.parametrize(
    ("form", "names"), [("auto", {"license", "configs"}), ("csv", {"license"})]
)
def test_the_card_goes_along_without_what_is_no_longer_true(form, names, tmp_path):
    source = repository(tmp_path / "source", {"data/train-0.parquet": rows(range(2))})
    (source / "README.md").write_text(CARD)
    chosen, shards = select(source, folder=tmp_path)
    out = tmp_path / "out"
    for options in ({}, {"overwrite": True, "samples_per_shard": 1}):
        layout = out_layout(form, str(out), shards, [str(source)])
        export_shards(chosen, shards, UPath(out), layout=layout, **options)
        _, head, text = (out / "README.md").read_text().split("---\n")
        assert yaml.safe_load(head).keys() == names
        assert text == "# Pictures\n"


def test_files_that_a_card_names_are_found_under_their_new_names(tmp_path):
    names = ["train.parquet", "data/test-0.parquet", "more/some.parquet"]
    source = repository(tmp_path / "source", {name: rows(range(2)) for name in names})
    files = [{"split": name[0], "path": name} for name in names]
    head = yaml.safe_dump({"configs": [{"config_name": "a", "data_files": files}]})
    (source / "README.md").write_text(f"---\n{head}---\n")
    chosen, shards = select(source, folder=tmp_path)
    out = tmp_path / "out"
    layout = out_layout("auto", str(out), shards, [str(source)])
    export_shards(chosen, shards, UPath(out), layout=layout, samples_per_shard=1)
    [config] = yaml.safe_load((out / "README.md").read_text().split("---\n")[1])["configs"]
    for file in config["data_files"]:
        assert len(list(out.glob(file["path"]))) == 2, file


def test_a_card_whose_aliases_stand_for_millions_stays_as_it_is(tmp_path):
    lines = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
        f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 9)
    )
    text = f"---\nconfigs: {{b: 1}}\n{lines}---\n"
    source = repository(tmp_path / "source", {"data/train-0.parquet": rows(range(2))})
    (source / "README.md").write_text(text)
    chosen, shards = select(source, folder=tmp_path)
    out = tmp_path / "out"
    layout = out_layout("auto", str(out), shards, [str(source)])
    export_shards(chosen, shards, UPath(out), layout=layout)
    assert (out / "README.md").read_text() == text


def test_a_card_that_lies_at_the_output_stays(tmp_path):
    source = LAYOUTS["tar"]([("k", picture(1), "a caption")], tmp_path / "source")
    (source / "README.md").write_text(CARD)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "README.md").write_text("mine")
    chosen, shards = select(source, folder=tmp_path)
    for overwrite in (False, True):
        layout = out_layout("webdataset", str(tmp_path / "out"), shards, [str(source)])
        export_shards(chosen, shards, UPath(tmp_path / "out"), layout=layout, overwrite=overwrite,
                      samples_per_shard=1 + overwrite)  # fmt: skip
        assert (tmp_path / "out" / "README.md").read_text() == "mine"


def test_tables_of_text_come_back_one_by_one(tmp_path):
    """Each in its own dialect."""
    (tmp_path / "source").mkdir()
    for number, (name, separator) in enumerate((("train", "\t"), ("test", ";"))):
        (tmp_path / "source" / f"{number}.jpg").write_bytes(picture(number))
        lines = [["filepath", "title", name], [f"{number}.jpg", f"caption {number}", "x"]]
        text = "".join(separator.join(line) + "\n" for line in lines)
        (tmp_path / "source" / f"{name}.csv").write_text(text)
    out = export(tmp_path / "source", tmp_path)
    assert (out / "train.csv").read_text().splitlines()[0].split("\t")[:3] == [
        "filepath", "title", "train"
    ]  # fmt: skip
    assert (out / "test.csv").read_text().splitlines()[1].split(";")[1] == "caption 1"
    samples, _ = read(out)
    assert {one.caption: one.image for one in samples} == {
        f"caption {n}": picture(n) for n in range(2)
    }


@pytest.mark.parametrize("name", ["pairs.tsv", "pairs.csv"])
def test_an_imagefolder_of_a_table_with_tabs_has_commas(name, tmp_path):
    """Loaders of an imagefolder expect them."""
    source = tmp_path / "source" / name
    source.parent.mkdir()
    (source.parent / "0.jpg").write_bytes(picture(0))
    source.write_text("filepath\ttitle\n0.jpg\ta dog, a cat\n")
    out = export(source, tmp_path, layout="folder")
    with open(out / "metadata.csv", newline="") as file:
        (row,) = csv.DictReader(file)
    assert (row["file_name"], row["title"]) == ("0.jpg", "a dog, a cat")
    out = export(source, tmp_path, layout="csv", out="csv")
    assert (out / name).read_text().startswith("filepath\ttitle\t")


def test_values_of_no_common_type_are_json_as_everywhere():
    values = [[b"ab", float("nan")], {"x": b"ab"}, "text", None]
    rows = [ExportedRow({"odd": value}) for value in values]
    (table,) = tables_of(rows, {})
    a_list, a_dict, *others = table["odd"].to_pylist()
    assert json.loads(a_list) == ["YWI=", None]
    assert json.loads(a_dict) == {"x": "YWI="}
    assert others == ["text", None]
