"""What docs/topics.md says in figures and comments is so."""

import re
from pathlib import Path
from zlib import crc32

from segue.delivery.partitioning import STICKY_RECORDS, partition_of
from segue.delivery.topic_record import KEY_BYTES_MAX
from segue.delivery.topic_rules import PARTITIONS_MAX, TopicRules
from segue.stores.file.topics.origins import ADOPTIONS_MAX
from tests.integration.test_docs import ROOT, blocks, run_program

PAGE = ROOT / "docs" / "topics.md"
ROW = re.compile(r"^\| (?:`(.+)`|\(empty\)) \| (\d+) \| (\d+) \| (\d+) \|$", re.MULTILINE)


def test_the_hash_of_a_key_is_what_the_page_says() -> None:
    """For ever: other languages and older versions rely on it."""
    rows = [((match[1] or "").encode(), match.groups()[1:]) for match in ROW.finditer(_text())]

    assert len(rows) == 5
    for key, said in rows:
        found = crc32(key), partition_of(key, 4), partition_of(key, 12)
        assert tuple(map(int, said)) == found, key


def test_the_sink_counts_everything_once(tmp_path: Path) -> None:
    """The page reads all of it twice, and says what the totals are."""
    [program] = [text for text in blocks(PAGE, "python") if "sqlite3" in text]
    printed = run_program(program, tmp_path)

    said = program.partition("fetchall())  # ")[2].partition("\n")[0]
    assert printed.strip() == said


def test_limits_are_what_the_page_says() -> None:
    """Whatever is said twice drifts, unless it is looked at."""
    text = _text()

    assert f"({STICKY_RECORDS} records)" in text
    assert KEY_BYTES_MAX == 1 << 20
    assert "up to 1 MiB" in text
    assert f"at most {PARTITIONS_MAX}" in text
    assert f"last {ADOPTIONS_MAX:,} keys" in text
    for rule in TopicRules().to_dict():
        assert f"`{rule}`" in text


def _text() -> str:
    return PAGE.read_text()
