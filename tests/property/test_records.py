"""Laws of sealing: what was said comes out again, and what is stored of it is what it says it is."""

import hashlib

from attrs import evolve
from hypothesis import given, strategies as st

from optchat.core.messages import HostMessage, Part
from optchat.core.records import SealedPart, decode_part, event_hash, leaf_text, read_structure, seal_message
from optchat.core.render import escape
from optchat.core.tree import page_of, page_starts
from optchat.testing.strategies import host_messages
from tests.property.strategies import hostile_texts

node_sizes = st.sampled_from([64, 128, 512, 4096])


def sealed_parts(message: HostMessage, node_bytes: int = 512) -> tuple[SealedPart, ...]:
    return seal_message(message, turn_id="t", ordinal=1, node_bytes=node_bytes)


def decoded(sealed: SealedPart) -> Part:
    blobs = [blob.data for blob in sealed.blobs]
    return decode_part(sealed.kind, sealed.payload, read_structure(sealed.structure), blobs)


@given(host_messages(), node_sizes)
def test_sealing_then_decoding_is_the_identity(message: HostMessage, node_bytes: int) -> None:
    sealed = sealed_parts(message, node_bytes)

    assert tuple(map(decoded, sealed)) == message.parts
    assert sealed == sealed_parts(message, node_bytes), "and sealing again is the same"
    assert [one.part for one in sealed] == list(range(len(message.parts)))


@given(host_messages(), node_sizes)
def test_a_leaf_fits_and_its_sizes_are_true(message: HostMessage, node_bytes: int) -> None:
    for sealed in sealed_parts(message, node_bytes):
        whole = leaf_text(sealed.kind, sealed.payload, read_structure(sealed.structure))
        if len(whole.encode()) > node_bytes or len(sealed.payload) > node_bytes:
            assert (sealed.leaf, sealed.leaf_bytes, sealed.leaf_escaped) == (None, None, None)
        else:
            assert sealed.leaf == whole
            assert sealed.leaf_bytes == len(whole.encode())
            assert sealed.leaf_escaped == len(escape(whole).encode())
        assert whole.startswith(f"{sealed.kind}: ")


@given(host_messages(), host_messages())
def test_two_records_have_one_hash_only_if_they_say_the_same(one: HostMessage, other: HostMessage) -> None:
    for first in sealed_parts(one):
        for second in sealed_parts(other):
            same = (first.kind, decoded(first)) == (second.kind, decoded(second))
            assert (first.sha256 == second.sha256) == same


@given(host_messages())
def test_when_and_where_it_was_said_is_not_in_the_hash(message: HostMessage) -> None:
    elsewhere = seal_message(evolve(message, at=None, key="k"), turn_id="u", ordinal=9, node_bytes=64, first_part=3)

    assert [one.sha256 for one in elsewhere] == [one.sha256 for one in sealed_parts(message)]


@given(host_messages())
def test_parts_of_a_message_are_events_of_their_own(message: HostMessage) -> None:
    assert len({one.event_hash for one in sealed_parts(message)}) == len(message.parts)
    keyed = sealed_parts(evolve(message, key="k"))
    assert len({one.event_hash for one in keyed}) == len(message.parts)


@given(st.lists(st.text(st.sampled_from("a1:")), max_size=4), st.lists(st.text(st.sampled_from("a1:")), max_size=4))
def test_no_two_event_keys_run_together(one: list[str], other: list[str]) -> None:
    assert (event_hash(*one) == event_hash(*other)) == (one == other)


@given(host_messages())
def test_blobs_are_known_by_their_digest(message: HostMessage) -> None:
    for sealed in sealed_parts(message):
        for blob in sealed.blobs:
            assert hashlib.sha256(blob.data).digest() == blob.sha256
            assert blob.sha256.hex() in (sealed.structure or "")


@given(hostile_texts(), st.integers(4, 40))
def test_pages_of_a_payload_rejoin_exactly_and_cut_no_character(text: str, page_bytes: int) -> None:
    payload = text.encode("utf-8", "surrogatepass")
    starts = page_starts(payload, page_bytes)

    pages = [page_of(payload, page_bytes, number) for number in range(len(starts))]

    assert b"".join(pages) == payload
    assert "".join(page.decode("utf-8", "surrogatepass") for page in pages) == text
    assert all(len(page) <= page_bytes for page in pages)
