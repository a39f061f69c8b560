"""The upper bound against true counts, kind by kind and line by line; and which tokenizer a model gets."""

import base64
import gzip
import hashlib
import json
import logging
import random
import string
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import toktok

from optchat.core.errors import BadArgument
from optchat.core.tokens import UpperBoundTokenizer
from optchat.engine import tokenizers
from optchat.engine.tokenizers import count_things, tokenizer_for

ROOT = Path(__file__).parents[2]
DATA = ROOT.parent / "shared" / "data" / "coding-sessions.jsonl.gz"
BOUND = UpperBoundTokenizer()
SENTENCES = {
    "english": "We decided against Redis for the queue, since the existing broker persists; nobody's asked for more. "
    "Yesterday's meeting weighed blue/green deployment, which failed its health checks and was rolled back.\n",
    "markdown": "## 3. Results\n\n- [x] `pytest -q` passes (**21** tests)\n- see <https://example.org/?c=d>\n> quote\n",
    "go": "func (s *Store) Save(ctx context.Context, id string) error {\n\tif err := s.db.Ping(ctx); err != nil {\n"
    '\t\treturn fmt.Errorf("ping: %w", err)\n\t}\n\treturn nil\n}\n',
    "json": '{"session": "cli-001", "at": "2026-01-05T12:17:31.459Z", "parts": [{"type": "a", "n": 1.5}], "k": null}\n',
    "french": "Nous avons décidé de ne pas utiliser Redis, car le courtier existant conserve déjà les données.\n",
    "german": "Wir verwenden Redis nicht für die Warteschlange; die Datenschutzgrundverordnung lässt grüßen.\n",
    "russian": "Мы решили не использовать Redis для очереди, потому что брокер уже умеет сохранять данные.\n",
    "chinese": "我们决定不使用 Redis 作为队列,因为现有的消息代理已经可以持久化数据。昨天讨论了蓝绿发布失败后回滚。\n",
    "japanese": "キューにはRedisを使わないことに決めました。既存のブローカーがデータを永続化できるからです。\n",
    "korean": "우리는 큐에 레디스를 사용하지 않기로 결정했습니다. 기존 브로커가 데이터를 영속화할 수 있습니다.\n",
    "arabic": "قررنا عدم استخدام ريديس لقائمة الانتظار لأن الوسيط الحالي يمكنه الاحتفاظ بالبيانات.\n",
    "hebrew": "החלטנו לא להשתמש ברדיס לתור כי המתווך הקיים יכול לשמור את הנתונים.\n",
    "thai": "เราตัดสินใจไม่ใช้เรดิสสำหรับคิวเพราะโบรกเกอร์ที่มีอยู่สามารถเก็บข้อมูลได้\n",
    "hindi": "हमने कतार के लिए रेडिस का उपयोग नहीं करने का निर्णय लिया क्योंकि मौजूदा ब्रोकर डेटा रख सकता है।\n",
}


def true_counts(texts: list[str]) -> list[int]:
    """The greater of the two encodings' counts."""
    counts = (toktok.batch_count(texts, name, threads=1) for name in ("cl100k_base", "o200k_base"))
    return [max(pair) for pair in zip(*counts, strict=True)]


def drawn(alphabet: str, length: int = 20_000) -> str:
    return "".join(random.Random(7).choices(alphabet, k=length))


def between(first: int, last: int) -> str:
    return drawn("".join(map(chr, range(first, last + 1))))


KINDS = {name: text * 40 for name, text in SENTENCES.items()} | {
    "base64": base64.b64encode(random.Random(7).randbytes(20_000)).decode(),
    "hex": random.Random(7).randbytes(10_000).hex(),
    "HEX": random.Random(7).randbytes(10_000).hex().upper(),
    "lowercase": drawn(string.ascii_lowercase),
    "uppercase": drawn(string.ascii_uppercase),
    "letters": drawn(string.ascii_letters),
    "letter words": drawn(string.ascii_lowercase + "   "),
    "passwords": drawn(string.ascii_letters + string.digits + "    "),
    "ascii": drawn("".join(map(chr, range(128)))),
    "punctuation": drawn(string.punctuation),
    "digits": drawn(string.digits),
    "han": between(0x4E00, 0x9FA5),
    "hiragana": between(0x3041, 0x3096),
    "katakana": between(0x30A1, 0x30FA),
    "hangul": between(0xAC00, 0xD7A3),
    "arabic letters": between(0x621, 0x64A),
    "hebrew letters": between(0x5D0, 0x5EA),
    "thai letters": between(0xE01, 0xE3A),
    "cyrillic letters": between(0x430, 0x44F),
    "latin letters": between(0xA1, 0x24F),
    "symbols": between(0x2190, 0x2BFF),
    "emoji": between(0x1F300, 0x1F64F),
    "emoji apart": " ".join(between(0x1F300, 0x1F64F)),
    "families": "👨‍👩‍👧‍👦👍🏽🏳️‍🌈 " * 100,
    "control": drawn("".join(map(chr, [*range(32), *range(127, 160)]))),
    "white space": drawn(" \t\n\r\v\f"),
    "spaces": "\n".join(" " * n for n in range(400)),
    "tabs": "x".join("\t" * n for n in range(200)),
    "line feeds": "x".join("\n" * n for n in range(200)),
    "windows lines": "x".join("\r\n" * n for n in range(200)),
    "one character": " a ".join(c * n for c in string.punctuation for n in (1, 2, 3, 5, 8, 13, 34, 99)),
    "bmp": drawn("".join(map(chr, range(0x80, 0xD800)))),
    "other planes": drawn("".join(map(chr, range(0x10000, 0x20000)))),
}
KINDS["mixed"] = "".join(text[at : at + 50] for at in range(0, 500, 50) for text in KINDS.values())


@pytest.mark.parametrize("kind", KINDS)
def test_never_below_the_true_count(kind: str) -> None:
    text = KINDS[kind]
    pieces = [text, *text.splitlines(keepends=True)]
    for width in (1, 2, 3, 5, 8, 13, 40):
        pieces += [text[at : at + width] for at in range(0, min(len(text), 40 * width), width)]

    below = [
        (piece, BOUND.count(piece), true)
        for piece, true in zip(pieces, true_counts(pieces), strict=True)
        if BOUND.count(piece) < true
    ]

    assert below == []


@pytest.mark.parametrize(
    ("kind", "ratio"), [("english", 1.6), ("go", 1.6), ("json", 1.6), ("markdown", 1.6), ("chinese", 1.3)]
)
def test_close_to_the_true_count(kind: str, ratio: float) -> None:
    assert BOUND.count(KINDS[kind]) <= ratio * true_counts([KINDS[kind]])[0]


@pytest.fixture(scope="module")
def said() -> list[str]:
    """Everything that was said in the real sessions."""
    if not DATA.exists():
        pytest.skip("the real sessions of ../shared/data are not here")
    with gzip.open(DATA, "rt", encoding="utf-8") as lines:
        parts = [part for line in lines for part in json.loads(line)["parts"]]
    return [
        text for part in parts for key in ("text", "arguments", "content") if isinstance(text := part.get(key), str)
    ]


def test_never_below_for_any_real_message_or_line(said: list[str]) -> None:
    texts = list(dict.fromkeys([*said, *(line for text in said for line in text.splitlines(keepends=True))]))

    below = [t for t, true in zip(texts, true_counts(texts), strict=True) if BOUND.count(t) < true]

    assert below == []


def test_close_for_the_real_messages(said: list[str]) -> None:
    assert sum(map(BOUND.count, said)) <= 1.5 * sum(true_counts(said))


def test_nothing_costs_nothing_and_anything_something() -> None:
    assert BOUND.count("") == 0
    assert BOUND.count("\x00") > 0
    assert BOUND.count("\ud800") > 0


def test_a_text_of_many_chunks_is_counted_whole() -> None:
    line = SENTENCES["english"]
    text = line * 4_000  # longer than a chunk, as is the next, which no line feed divides

    assert BOUND.count(text) >= true_counts([text])[0]
    assert BOUND.count("a" * 600_000) >= true_counts(["a" * 600_000])[0]


# -- which tokenizer -----------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    tokenizers._exact.cache_clear()
    tokenizers._say.cache_clear()
    yield
    tokenizers._exact.cache_clear()
    tokenizers._say.cache_clear()


@pytest.fixture
def _without_toktok(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "toktok", None)  # importing it fails


@pytest.mark.parametrize(
    ("model", "encoding"),
    [
        ("gpt-5", "o200k_base"),
        ("gpt-4o-2024-05-13", "o200k_base"),
        ("gpt-4", "cl100k_base"),
        ("gpt-oss-20b", "o200k_harmony"),
    ],
)
def test_exact_for_a_known_model(model: str, encoding: str) -> None:
    tokenizer = tokenizer_for(model)

    assert tokenizer.name == encoding
    assert tokenizer.count("hello world") == 2
    assert tokenizer.count("<|endoftext|>") > 1, "what looks like a special token in text is text"
    assert tokenizer.count("a\ud800b") == tokenizer.count("a\ufffdb")


@pytest.mark.parametrize("model", [None, "claude-opus-4", "", "davinci"])
def test_the_upper_bound_otherwise_and_said_once(
    model: str | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path))
    caplog.set_level(logging.INFO, "optchat")

    assert tokenizer_for(model).name == "upper-bound-1"
    assert tokenizer_for(model).name == "upper-bound-1"
    assert len(caplog.records) == 1
    assert "upper bound" in caplog.text


@pytest.mark.usefixtures("_without_toktok")
@pytest.mark.parametrize("contents", [None, b"a damaged file"])
def test_tiktoken_is_not_asked_for_a_file_that_is_not_here(
    contents: bytes | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / tokenizers._FILES["o200k_base"][0]
    if contents is not None:
        file.write_bytes(contents)
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr("tiktoken.get_encoding", lambda _name: pytest.fail("tiktoken would download"))

    assert tokenizer_for("gpt-5").name == "upper-bound-1"
    assert file.exists() == (contents is not None), "a damaged file is somebody else's to replace"


@pytest.mark.usefixtures("_without_toktok")
def test_tiktoken_without_a_folder_would_always_download(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", "")
    monkeypatch.setattr("tiktoken.get_encoding", lambda _name: pytest.fail("tiktoken would download"))

    assert tokenizer_for("gpt-5").name == "upper-bound-1"


@pytest.mark.usefixtures("_without_toktok")
@pytest.mark.parametrize("variable", ["TIKTOKEN_CACHE_DIR", "DATA_GYM_CACHE_DIR", None])
def test_tiktoken_counts_where_its_file_is(
    variable: str | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """With a tiny vocabulary of single bytes in the place of the real one."""
    ranks = b"".join(base64.b64encode(bytes([n])) + b" %d\n" % n for n in range(256))
    folder = tmp_path if variable else tmp_path / "data-gym-cache"
    folder.mkdir(exist_ok=True)
    name, _ = tokenizers._FILES["cl100k_base"]
    (folder / name).write_bytes(ranks)
    monkeypatch.setitem(tokenizers._FILES, "cl100k_base", (name, hashlib.sha256(ranks).hexdigest()))
    for each in ("TIKTOKEN_CACHE_DIR", "DATA_GYM_CACHE_DIR"):
        monkeypatch.delenv(each, raising=False)
    if variable:
        monkeypatch.setenv(variable, str(folder))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    import tiktoken

    tiny = tiktoken.Encoding(
        "tiny", pat_str=".", mergeable_ranks={bytes([n]): n for n in range(256)}, special_tokens={}
    )
    monkeypatch.setattr("tiktoken.get_encoding", lambda _name: tiny)

    tokenizer = tokenizer_for("gpt-4")

    assert (tokenizer.name, tokenizer.count("abc")) == ("cl100k_base", 3)


def test_the_files_are_named_as_tiktoken_names_them() -> None:
    import tiktoken_ext.openai_public as public

    source = Path(public.__file__).read_text(encoding="utf-8")
    for encoding, (name, sha256) in tokenizers._FILES.items():
        address = next(line.split('"')[1] for line in source.splitlines() if f"/{encoding}.tiktoken" in line)
        assert hashlib.sha1(address.encode()).hexdigest() == name
        assert sha256 in source


def test_things_are_counted_as_text_or_json() -> None:
    class Letters:
        name = "letters"

        def count(self, text: str, /) -> int:
            return len(text)

    assert count_things(tokenizer=Letters()) == 0
    assert count_things("abc", {"a": "é"}, [1], tokenizer=Letters()) == 3 + len('{"a": "é"}') + 3
    cycle: list[object] = []
    cycle.append(cycle)
    for thing in (object(), b"bytes", cycle):
        with pytest.raises(BadArgument, match="model_dump"):
            count_things(thing, tokenizer=Letters())
