"""What a message seals into, and that the same comes out again. The laws are in tests/property/test_records.py."""

import hashlib
import json
from datetime import UTC, datetime

import pytest

from optchat.core.messages import BlobPart, HostMessage, Part, ReportPart, TextPart, ToolCallPart, ToolResultPart
from optchat.core.records import (
    INLINE_BYTES,
    KIND_NUMBER,
    LEAF_FORMAT,
    PIECE_BYTES,
    SUMMARY_KIND,
    SealedPart,
    call_hash,
    decode_part,
    event_hash,
    leaf_text,
    read_structure,
    readable_bytes,
    record_kind,
    record_sha256,
    seal_message,
    spoken_text,
    to_bytes,
    to_text,
    with_memory,
)
from optchat.core.render import encodable, escape

NODE_BYTES = 512
PNG = b"\x89PNG\r\n" * 100
PNG_SHA = hashlib.sha256(PNG).hexdigest()
IMAGE = BlobPart("image/png", data=PNG)
FILE = BlobPart("text/plain", uri="https://example.org/a.txt")
CALL = ToolCallPart("c1", "run", '{"command": "ls"}')

# A part of each kind and shape, who says it, and the text that a leaf says after its kind.
EVERY_PART: list[tuple[str, Part, str]] = [
    ("user", TextPart("add a queue"), "user: add a queue"),
    ("user", TextPart(""), "user: "),
    ("user", TextPart("half \ud83d, two\nlines"), "user: half \ufffd, two\nlines"),
    ("user", IMAGE, f"user: [image/png, 600 B, sha256 {PNG_SHA[:12]}]"),
    ("user", FILE, "user: [text/plain at https://example.org/a.txt]"),
    ("user", BlobPart("image/png", data=b""), f"user: [image/png, 0 B, sha256 {hashlib.sha256().hexdigest()[:12]}]"),
    ("assistant", TextPart("done"), "assistant: done"),
    ("assistant", CALL, 'tool_call: run {"command": "ls"}'),
    ("assistant", ToolCallPart("", "", "not json \udfff"), "tool_call:  not json \ufffd"),
    ("assistant", ReportPart("survey", "all read"), "report: [survey] all read"),
    ("tool", ReportPart("survey", "the first", complete=False), "report: [survey] (incomplete) the first"),
    ("tool", ToolResultPart("c1", (TextPart("a.py"),)), "tool_result: a.py"),
    ("tool", ToolResultPart("c1", (TextPart(""),)), "tool_result: "),
    ("tool", ToolResultPart("c1", ()), "tool_result: "),
    ("tool", ToolResultPart("c1", (TextPart("no"),), is_error=True), "tool_result: error: no"),
    ("tool", ToolResultPart("c1", (TextPart("cut"),), truncated=True), "tool_result: cut"),
    ("tool", ToolResultPart("c1", (TextPart("é"), TextPart(""), TextPart("b"))), "tool_result: é\n\nb"),
    ("tool", ToolResultPart("c1", (FILE,)), "tool_result: [text/plain at https://example.org/a.txt]"),
    (
        "tool",
        ToolResultPart(
            "c1", (TextPart("before"), IMAGE, TextPart("after"), FILE, IMAGE), is_error=True, truncated=True
        ),
        (
            f"tool_result: error: before\n[image/png, 600 B, sha256 {PNG_SHA[:12]}]\nafter\n"
            f"[text/plain at https://example.org/a.txt]\n[image/png, 600 B, sha256 {PNG_SHA[:12]}]"
        ),
    ),
]


def seal(role: str, part: Part, node_bytes: int = NODE_BYTES, **more: object) -> SealedPart:
    message = HostMessage(role, (part,), **more)  # type: ignore[arg-type] # roles of a table
    (sealed,) = seal_message(message, turn_id="t", ordinal=3, node_bytes=node_bytes)
    return sealed


def decoded(sealed: SealedPart) -> Part:
    blobs = [blob.data for blob in sealed.blobs]
    return decode_part(sealed.kind, sealed.payload, read_structure(sealed.structure), blobs)


# ---- sealing and decoding --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("role", "part", "leaf"), EVERY_PART)
def test_what_was_sealed_comes_out_again(role: str, part: Part, leaf: str) -> None:
    sealed = seal(role, part)

    assert decoded(sealed) == part
    assert sealed.leaf == leaf
    assert sealed.leaf_bytes == len(leaf.encode())
    assert sealed.leaf_escaped == len(escape(leaf).encode())
    assert [hashlib.sha256(blob.data).digest() for blob in sealed.blobs] == [blob.sha256 for blob in sealed.blobs]


def test_no_two_of_them_have_the_same_hash() -> None:
    assert len({seal(role, part).sha256 for role, part, _ in EVERY_PART}) == len(EVERY_PART)


def test_the_payload_is_what_was_said_and_nothing_else() -> None:
    assert seal("user", TextPart("né")).payload == "né".encode()
    assert seal("assistant", CALL).payload == b'{"command": "ls"}'
    assert seal("tool", ReportPart("survey", "read")).payload == b"read"
    mixed = seal("tool", ToolResultPart("c1", (TextPart("né"), IMAGE, TextPart("b"))))
    assert mixed.payload == "néb".encode()
    assert json.loads(mixed.structure or "")["content"][::2] == [3, 1]
    assert seal("user", IMAGE).payload == b""


def test_bytes_are_kept_once_by_digest_and_a_uri_as_it_is() -> None:
    sealed = seal("tool", ToolResultPart("c1", (IMAGE, FILE)))

    assert [(blob.sha256.hex(), blob.data) for blob in sealed.blobs] == [(PNG_SHA, PNG)]
    assert json.loads(sealed.structure or "")["content"] == [
        {"type": "blob", "media_type": "image/png", "sha256": PNG_SHA, "bytes": 600},
        {"type": "blob", "media_type": "text/plain", "uri": "https://example.org/a.txt"},
    ]


def test_the_hash_is_of_kind_structure_and_payload() -> None:
    plain, call = seal("user", TextPart("hi")), seal("assistant", ToolCallPart("c", "run", "{}"))
    structure = b'{"call_id":"c","name":"run"}'

    assert plain.sha256 == record_sha256("user", None, b"hi") == hashlib.sha256(b"user\n0\nhi").digest()
    assert call.sha256 == hashlib.sha256(b"tool_call\n%d\n%b{}" % (len(structure), structure)).digest()
    assert record_sha256("user", "{}", b"x") != record_sha256("user", None, b"{}x"), "the two do not run together"


def test_numbers_and_sizes_that_files_were_written_with() -> None:
    assert KIND_NUMBER == {"user": 0, "assistant": 1, "tool_call": 2, "tool_result": 3, "report": 4, "note": 5}
    assert SUMMARY_KIND == 6
    assert (LEAF_FORMAT, INLINE_BYTES, PIECE_BYTES) == (1, 4096, 65_536)


def test_text_survives_as_bytes_lone_surrogates_too() -> None:
    for text in ("", "né👩", "\ud800", "\udc00\ud83d", "\ud83d\ude00"):
        assert to_text(to_bytes(text)) == text


# ---- messages into records -------------------------------------------------------------------------------------------


def test_a_record_a_part_numbered_within_its_message() -> None:
    at = datetime(2026, 1, 5, tzinfo=UTC)
    other = ToolCallPart("c2", "run", "{}")
    message = HostMessage.assistant("looking", [CALL, other], at=at)

    sealed = seal_message(message, turn_id="t", ordinal=4, node_bytes=NODE_BYTES)

    assert [(one.kind, one.message, one.part, one.call_id) for one in sealed] == [
        ("assistant", 4, 0, None),
        ("tool_call", 4, 1, "c1"),
        ("tool_call", 4, 2, "c2"),
    ]
    assert {one.at for one in sealed} == {at}
    later = seal_message(message, turn_id="t", ordinal=4, node_bytes=NODE_BYTES, first_part=5)
    assert [one.part for one in later] == [5, 6, 7]


def test_kinds_go_by_the_part_and_only_then_by_the_role() -> None:
    user, assistant, tool = (HostMessage(role, ()) for role in ("user", "assistant", "tool"))

    assert record_kind(user, TextPart("x")) == record_kind(user, IMAGE) == "user"
    assert record_kind(assistant, TextPart("x")) == record_kind(assistant, IMAGE) == "assistant"
    assert record_kind(assistant, CALL) == "tool_call"
    assert record_kind(tool, ToolResultPart("c1", ())) == "tool_result"
    # A subagent's report is never logged as the user, whoever carries it.
    assert {record_kind(message, ReportPart("s", "x")) for message in (user, assistant, tool)} == {"report"}


def test_a_note_is_no_ones_role() -> None:
    (sealed,) = seal_message(HostMessage.user("x"), turn_id="t", ordinal=0, node_bytes=NODE_BYTES, kind="note")
    assert (sealed.kind, sealed.leaf) == ("note", "note: x")


# ---- event keys ------------------------------------------------------------------------------------------------------


def event(message: HostMessage, turn_id: str = "t", ordinal: int = 3, first_part: int = 0) -> bytes:
    return seal_message(message, turn_id=turn_id, ordinal=ordinal, node_bytes=64, first_part=first_part)[0].event_hash


def test_a_hosts_key_goes_before_turn_and_place() -> None:
    message = HostMessage.user("x", key="k")

    assert event(message) == event(message, turn_id="other", ordinal=9)
    assert event(message) == event(HostMessage.user("said otherwise", key="k"))
    assert event(message) != event(HostMessage.user("x", key="l"))
    assert event(message) != event(message, first_part=1)


def test_a_call_and_its_result_go_by_their_id_within_the_turn() -> None:
    call, result = HostMessage.assistant(calls=[CALL]), HostMessage.result("c1", "a.py")

    assert event(call) == event(call, ordinal=9, first_part=2)
    assert event(result) == event(HostMessage.result("c1", "again"), ordinal=9)
    assert len({event(call), event(call, turn_id="u"), event(result), event(HostMessage.result("c2", "a.py"))}) == 4


def test_anything_else_goes_by_its_place_in_the_turn() -> None:
    message = HostMessage.user("x")

    assert event(message) == event(HostMessage.assistant("y"))
    places = {event(message), event(message, turn_id="u"), event(message, ordinal=4), event(message, first_part=1)}
    assert len(places) == 4


def test_no_two_event_keys_run_together() -> None:
    keys = [("a", "bc"), ("ab", "c"), ("abc",), ("a", "b", "c"), ("", "abc"), ("1:a", "bc"), ("a1:b", "c"), ()]

    assert len({event_hash(*key) for key in keys}) == len(keys)
    assert event_hash("call", "t", "c1") == hashlib.sha256(b"4:call1:t2:c1").digest()


def test_what_pairs_a_call_and_its_results_is_of_fixed_size() -> None:
    assert len(call_hash("c" * 10_000)) == 16
    assert call_hash("c1") == call_hash("c1") != call_hash("c2")
    assert call_hash("\ud800")


# ---- leaves ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("emoji", "fits"),
    [(129, False), (128, False), (127, False), (126, True)],  # of four bytes each, and "user: " is six
)
def test_a_leaf_fits_with_its_label(emoji: int, fits: bool) -> None:
    sealed = seal("user", TextPart("👩" * emoji))

    assert (sealed.leaf is not None) == (4 * emoji + len("user: ") <= 512) == fits
    assert (sealed.leaf_bytes, sealed.leaf_escaped) == ((4 * emoji + 6,) * 2 if fits else (None, None))


def test_a_leaf_is_limited_by_its_bytes_not_by_how_they_are_escaped() -> None:
    sealed = seal("user", TextPart("&" * 58), node_bytes=64)

    assert (sealed.leaf_bytes, sealed.leaf_escaped) == (64, 6 + 58 * 5)
    assert seal("user", TextPart("&" * 59), node_bytes=64).leaf is None


def test_replacing_a_lone_surrogate_does_not_change_what_is_kept() -> None:
    sealed = seal("user", TextPart("\ud800"))

    assert sealed.leaf == "user: \ufffd"
    assert sealed.payload == b"\xed\xa0\x80"


def test_a_long_uri_is_cut_in_a_leaf_and_kept_whole() -> None:
    part = BlobPart("image/png", uri="https://example.org/" + "a" * 1000)
    sealed = seal("user", part)

    assert sealed.leaf == f"user: [image/png at {part.uri[:200]}]" if part.uri else None
    assert decoded(sealed) == part


def test_a_leaf_format_of_a_newer_version_is_not_guessed_at() -> None:
    with pytest.raises(ValueError, match="leaf format 2"):
        leaf_text("user", b"x", None, 2)


def test_spoken_text_is_the_leaf_without_its_kind() -> None:
    for role, part, leaf in EVERY_PART:
        sealed = seal(role, part)
        told = spoken_text(sealed.kind, sealed.payload, read_structure(sealed.structure))
        assert f"{sealed.kind}: {encodable(told)}" == leaf


@pytest.mark.parametrize(
    ("count", "shown"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 kB"),
        (999_949, "999.9 kB"),
        (999_950, "1.0 MB"),
        (14_200_000, "14.2 MB"),
        (999_950_000, "1.0 GB"),
        (10**13, "10000.0 GB"),
    ],
)
def test_sizes_for_people(count: int, shown: str) -> None:
    assert readable_bytes(count) == shown


# ---- memory tools ----------------------------------------------------------------------------------------------------


def test_a_memory_tools_call_keeps_its_arguments_and_does_not_show_them() -> None:
    part = ToolCallPart("c1", "memory_search", '{"query": "broker"}')
    sealed = seal("assistant", part)

    marked = with_memory(part, sealed, NODE_BYTES, memory="memory_search")

    assert marked.leaf == "tool_call: memory_search"
    assert decoded(marked) == part
    assert (marked.event_hash, marked.call_id, marked.kind) == (sealed.event_hash, "c1", "tool_call")
    assert marked.sha256 == record_sha256("tool_call", marked.structure, marked.payload) != sealed.sha256


def test_a_memory_tools_answer_is_provenance_and_never_evidence_again() -> None:
    part = ToolResultPart("c1", (TextPart("decided against Redis"), IMAGE), is_error=True)
    sealed = seal("tool", part)

    marked = with_memory(part, sealed, NODE_BYTES, memory="searched 'broker', 3 hits", retrieved="ab" * 32, size=21)

    assert marked.leaf == "tool_result: searched 'broker', 3 hits"
    assert (marked.payload, marked.blobs) == (b"", ())
    assert "Redis" not in (marked.structure or "")
    assert read_structure(marked.structure) == {
        "call_id": "c1",
        "is_error": True,
        "memory": "searched 'broker', 3 hits",
        "retrieved": "ab" * 32,
        "bytes": 21,
    }
    assert decoded(marked) == ToolResultPart("c1", (TextPart(""),), is_error=True)


def test_a_large_memory_call_has_its_leaf_all_the_same() -> None:
    part = ToolCallPart("c1", "memory_search", json.dumps({"query": "broker " * 1000}))

    marked = with_memory(part, seal("assistant", part), NODE_BYTES, memory="memory_search")

    assert marked.leaf == "tool_call: memory_search"
