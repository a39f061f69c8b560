"""Pages of a record as they are read: whole characters, and together exactly the record."""

import pytest

from optchat.engine.reading import whole_characters

TEXTS = ["", "short", "x" * 170, "né👩漢" * 30, "👩" * 129, "\ud800" * 20]


@pytest.mark.parametrize("text", TEXTS, ids=len)
@pytest.mark.parametrize("most", [4, 5, 17, 512])
def test_pages_rejoin_exactly(text: str, most: int) -> None:
    data = text.encode("utf-8", "surrogatepass")

    pages: list[bytes] = []
    while at := len(data) - sum(map(len, pages)):
        rest = data[len(data) - at :]
        pages.append(whole_characters(rest[: most + 4], most))  # as a page is loaded: with the next character

    assert b"".join(pages) == data
    assert "".join(page.decode("utf-8", "surrogatepass") for page in pages) == text
    assert all(most - 3 <= len(page) <= most for page in pages[:-1])


@pytest.mark.parametrize(
    ("text", "most", "page"),
    [
        ("é" * 10, 11, "é" * 5),
        ("é" * 10, 10, "é" * 5),
        ("é" * 10, 20, "é" * 10),
        ("é" * 10, 1, "é"),  # one character at least, or a reader would get no further
        ("👩" * 3, 3, "👩"),
        ("👩", 1, "👩"),
        ("a👩", 4, "a"),
        ("", 4, ""),
    ],
)
def test_a_page_ends_between_characters(text: str, most: int, page: str) -> None:
    assert whole_characters(text.encode(), most).decode() == page
