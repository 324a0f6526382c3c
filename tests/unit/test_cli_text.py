"""Values as the command line shows them to people."""

from segue.cli.text import human_size


def test_sizes_have_units_of_1024_bytes() -> None:
    sizes = [1023, 1024, 1536, 1 << 20, 1 << 30]

    assert [human_size(size) for size in sizes] == [
        *("1023 B", "1.0 KiB", "1.5 KiB", "1.0 MiB", "1.0 GiB")
    ]
