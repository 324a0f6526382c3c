import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

import segue
from segue.errors import QueueFull
from segue.spark.jobs import migrate as job
from segue.spark.jobs.migrate import migrate
from segue.spark.jobs.state_scan import outline_of
from segue.stores.migration import UnknownState, body_of, read_state
from tests.integration.cli_support import ask

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Document = dict[str, object]

ODD_ITEMS: list[object] = [
    'a "quoted" text, with ] and }',
    "\\",
    "ü \u2028",
    {"id": 1, "deep": [[{"a": ["]"]}]]},
    {"base64": "/w=="},
    None,
    17,
    "17",
    [],
]


def v4(lists: dict[str, list[object]], **metadata: object) -> Document:
    """Return a state whose metadata agrees with its segments."""
    queues: dict[str, dict[str, dict[str, int]]] = {}
    for name, items in lists.items():
        queue, _, number = name.partition("_seg_")
        entry = queues.setdefault(
            queue, {"metadata": {"count": 0, "head_segment": int(number), "tail_segment": 0}}
        )["metadata"]
        entry["count"] += len(items)
        entry["head_segment"] = min(entry["head_segment"], int(number))
        entry["tail_segment"] = max(entry["tail_segment"], int(number))
    return {
        **lists,
        "metadata": {"config": {"segment_size": 100}, "queues": queues, **metadata},
    }


def written(path: Path, document: object) -> Path:
    path.write_text(json.dumps(document, ensure_ascii=False), encoding="utf-8")
    return path


def bodies(store_path: Path, name: str = "mail") -> dict[int, list[bytes]]:
    """Return what waits, by priority, in the order it would come."""
    found: dict[int, list[bytes]] = {}
    with segue.open(store_path, sync="os") as store:
        for message in store.queue(name).peek(10_000):
            found.setdefault(message.priority, []).append(message.body)
    return found


def expected(document: Document) -> dict[int, list[bytes]]:
    """Return what `segue import` makes of a state."""
    items = read_state(document).items
    return {priority: [body_of(item) for item in each] for priority, each in items.items()}


class TestMigrate:
    @pytest.mark.long
    def test_priorities_and_order_are_kept_over_many_tasks(
        self,
        spark: "SparkSession",
        store_path: Path,
        scratch: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """As an import has it: by the number of segments, wherever they stand in the file."""
        monkeypatch.setattr(job, "TASK_BYTES", 300)
        lists: dict[str, list[object]] = {
            f"queue_{priority}_seg_{number}": [
                {"priority": priority, "number": number, "item": item} for item in range(10)
            ]
            for number in (10, 2, 11, 9)
            for priority in (3, 0)
        }
        document = v4({**lists, "queue_1_seg_0": ODD_ITEMS})
        report = migrate(spark, written(scratch / "v4.json", document), store_path, "mail")

        assert bodies(store_path) == expected(document)
        assert (report.format, report.pushed, report.returned) == ("v4", 89, 0)
        assert report.items == {0: 40, 1: len(ODD_ITEMS), 3: 40}

    def test_the_same_content_is_pushed_once(
        self, spark: "SparkSession", store_path: Path, scratch: Path
    ) -> None:
        """Whatever the file is called, unless somebody says that it is another write."""
        document = {"queue_0": ["a", "b"], "metadata": {"queues": {}}}
        first = migrate(spark, written(scratch / "one.json", document), store_path, "mail")
        again = migrate(spark, written(scratch / "two.json", document), store_path, "mail")
        other = migrate(spark, scratch / "two.json", store_path, "mail", write_id="once more")

        assert (first.format, first.pushed, first.is_repeated) == ("v3", 2, False)
        assert (again.pushed, again.is_repeated) == (0, True)
        assert (other.pushed, other.is_repeated) == (2, False)
        assert bodies(store_path) == {0: [b"a", b"b", b"a", b"b"]}

    @pytest.mark.long
    def test_what_was_out_on_a_lock_comes_first_and_what_disagrees_is_told(
        self, spark: "SparkSession", store_path: Path, scratch: Path
    ) -> None:
        """The same as an import says of the same state."""
        lock = {"items_with_priority": [{"item": "locked", "priority": 2}]}
        document = v4({"queue_2_seg_0": ["waits"]}, _active_lock=lock)
        document["queue_5_seg_1"] = ["unknown to the metadata"]
        document["notes"] = {"a": 1}
        report = migrate(spark, written(scratch / "state.json", document), store_path, "mail")

        assert bodies(store_path) == {2: [b"locked", b"waits"], 5: [b"unknown to the metadata"]}
        assert report.returned == 1
        assert report.mismatches == read_state(document).mismatches
        assert len(report.mismatches) == 3

    @pytest.mark.long
    def test_a_state_may_be_one_object_on_each_line(
        self, spark: "SparkSession", store_path: Path, scratch: Path
    ) -> None:
        """Together they are one state."""
        path = scratch / "lines.json"
        path.write_text('{"queue_0_seg_0": ["a"]}\n{"queue_0_seg_1": ["b"]}\n{"metadata": {}}\n')
        migrate(spark, path, store_path, "mail")

        assert bodies(store_path) == {0: [b"a", b"b"]}

    @pytest.mark.long
    @pytest.mark.parametrize(
        ("text", "problem"),
        [
            ("", "empty"),
            ("[1, 2]", "no JSON object"),
            ('{"jobs": []}', "neither queue_<priority>"),
            ('{"queue_0": {"a": 1}}', "queue_0 is no list"),
            ('{"queue_0": [1], "queue_0": [2]}', "queue_0 is there twice"),
            ('{"queue_0": [1, 2', "ends too early"),
            ('{"queue_0": [1, {"a": ]}', "too early|no JSON"),
            ('{"queue_0": [1], }', "no JSON"),
            ('{"queue_0": [1, 2,]}', "no JSON"),
            ('{"queue_0": ["a", NaN]}', "NaN is no JSON"),
            ('{"queue_0": [1], "x": nul}', "no JSON"),
            ('{"queue_0": ["a", b]}', "no JSON"),
            ('{"queue_99999999999": [1]}', "priorities go up to"),
        ],
    )
    def test_what_is_no_state_is_refused_before_anything_is_made(
        self, spark: "SparkSession", store_path: Path, scratch: Path, text: str, problem: str
    ) -> None:
        """Not even the store is there afterwards."""
        path = scratch / "bad.json"
        path.write_text(text)

        with pytest.raises(UnknownState, match=problem):
            migrate(spark, path, store_path, "mail")
        assert not store_path.exists()

    @pytest.mark.long
    def test_a_queue_that_has_no_room_for_all_gets_nothing(
        self, spark: "SparkSession", store_path: Path, scratch: Path
    ) -> None:
        """All or nothing."""
        with segue.open(store_path, sync="os") as store:
            store.queue("mail", segue.QueueRules(capacity=3)).push(b"there")
        path = written(scratch / "state.json", {"queue_0": ["a", "b", "c"]})

        with pytest.raises(QueueFull):
            migrate(spark, path, store_path, "mail")
        assert bodies(store_path) == {0: [b"there"]}


@pytest.mark.long
class TestCommand:
    def test_it_says_what_there_was(
        self, spark: "SparkSession", store_path: Path, scratch: Path
    ) -> None:
        """A dry run makes nothing, a mismatch is exit code 10, and a bad file 2."""
        path = written(scratch / "state.json", v4({"queue_1_seg_0": ["a", "b"]}))
        tried = ask("spark", "migrate", store_path, "mail", path, "--dry-run")
        assert not store_path.exists()
        done = ask("spark", "migrate", store_path, "mail", path, "--json")
        bare = written(scratch / "bare.json", {"queue_1": ["c"]})
        mismatch = ask("spark", "migrate", store_path, "mail", bare)
        (scratch / "bad.json").write_text("{}")
        bad = ask("spark", "migrate", store_path, "mail", scratch / "bad.json")

        assert tried.code == 0
        assert tried.fields == [
            ["format", "v4"],
            ["items", "2"],
            ["returned", "0"],
            ["pushed", "0"],
            ["repeated", "no"],
            ["priority", "1", "2"],
        ]
        assert done.json["pushed"] == 2
        assert (mismatch.code, mismatch.fields[-1][:3]) == (10, ["mismatch", "queue_1", "count"])
        assert (bad.code, bodies(store_path)) == (2, {1: [b"a", b"b", b"c"]})


JSON = st.recursive(
    st.none() | st.integers() | st.text(alphabet='ab"\\[]{},:\n'),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


class TestScan:
    @given(
        document=st.dictionaries(st.text(), st.lists(JSON, max_size=6) | JSON, max_size=4),
        block_bytes=st.integers(min_value=1, max_value=40),
        piece_bytes=st.integers(min_value=1, max_value=40),
        indent=st.none() | st.just(1),
    )
    def test_every_item_is_found_however_the_file_is_cut(
        self,
        tmp_path_factory: pytest.TempPathFactory,
        document: Document,
        block_bytes: int,
        piece_bytes: int,
        indent: int | None,
    ) -> None:
        """Blocks end in the midst of texts and escapes, and it makes no difference."""
        path = tmp_path_factory.getbasetemp() / "scanned.json"
        text = json.dumps(document, indent=indent).encode()
        path.write_bytes(text)
        outline = outline_of(path, block_bytes=block_bytes, piece_bytes=piece_bytes)
        found: Document = {}
        for member in outline.members:
            found[member.name] = json.loads(text[member.start : member.stop])
            if member.is_list:
                parts = [
                    json.loads(b"[" + text[piece.start : piece.stop] + b"]")
                    for piece in member.pieces
                ]
                assert [len(part) for part in parts] == [piece.count for piece in member.pieces]
                assert [item for part in parts for item in part] == found[member.name]

        assert found == document
        assert [member.name for member in outline.members] == list(document)
