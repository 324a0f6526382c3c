"""What the server answered, believed only as far as it has the right form."""

from segue.errors import StorageError


def words_of(answer: object, least: int = 0) -> list[object]:
    """Return an answer that is a list of `least` words or more. Raises StorageError."""
    if not isinstance(answer, list) or len(answer) < least:
        raise nonsense(answer)
    return answer


def number_of(word: object) -> int:
    """Return a number, whether it came as one or as text. Raises StorageError."""
    if isinstance(word, int):
        return word
    try:
        return int(bytes_of(word))
    except ValueError:
        raise nonsense(word) from None


def numbers_of(answer: object, least: int = 0) -> list[int]:
    """Return an answer that is a list of numbers. Raises StorageError."""
    return [number_of(word) for word in words_of(answer, least)]


def bytes_of(word: object) -> bytes:
    """Return bytes. Raises StorageError."""
    if not isinstance(word, bytes):
        raise nonsense(word)
    return word


def text_of(word: object) -> str:
    """Return text. Raises StorageError."""
    try:
        return bytes_of(word).decode()
    except UnicodeDecodeError:
        raise nonsense(word) from None


def pairs_of(answer: object) -> list[tuple[str, int]]:
    """Return names with a number each. Raises StorageError."""
    words = words_of(answer)
    return [
        (text_of(name), number_of(value))
        for name, value in zip(words[::2], words[1::2], strict=True)
    ]


def nonsense(answer: object) -> StorageError:
    """Return the error that says that an answer makes no sense."""
    return StorageError(f"the server answered what makes no sense: {str(answer)[:200]}")
