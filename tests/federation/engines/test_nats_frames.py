"""Frames and subjects of the hub: what was cut is put together again, and nothing else is taken for a frame."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernfed.errors import MessageError
from kernfed.federation.engines.nats_frames import (
    LARGEST,
    PART,
    Address,
    Frame,
    Kind,
    Parts,
    ask_subject,
    count_parts,
    cut,
    name_of,
    part_size,
    read_ask_subject,
    read_reply_subject,
    reply_subject,
    token,
)


@pytest.mark.parametrize("size", [0, 1, PART - 1, PART, PART + 1, 3 * PART, 3 * PART + 7])
@pytest.mark.parametrize("window", [1, 2, 16])
def test_a_message_is_put_together_from_what_was_wanted(size: int, window: int) -> None:
    """With parts lost and sent twice: whatever is wanted is sent, and the message is the same."""
    message = bytes(range(256)) * (size // 256) + bytes(size % 256)
    parts = Parts(Frame.decode(cut(Kind.ANSWER, message, 0).encode()))
    lost = 1
    for _ in range(50):
        wanted = parts.want(window)
        if wanted is None:
            if parts.complete:
                break
            wanted = parts.want(window, again=True)  # nothing came for a while
        assert wanted is not None
        for part in range(wanted.part, wanted.part + wanted.parts):
            frame = Frame.decode(cut(Kind.ANSWER, message, part).encode())
            if part == 2 and lost:
                lost -= 1
                continue
            parts.add(frame)
            parts.add(frame)
    assert parts.complete
    assert parts.message() == message
    assert sum(part_size(part, size) for part in range(count_parts(size))) == size


def test_parts_of_another_message_and_out_of_order_are_passed_over() -> None:
    message, other = bytes(3 * PART), bytes(3 * PART + 1)
    parts = Parts(cut(Kind.ANSWER, message, 0))
    assert not parts.add(cut(Kind.ANSWER, message, 2))
    assert not parts.add(cut(Kind.ANSWER, other, 1))
    assert parts.add(cut(Kind.ANSWER, message, 1))
    assert parts.add(cut(Kind.ANSWER, message, 2))
    assert parts.complete


def test_a_window_is_never_exceeded() -> None:
    parts = Parts(cut(Kind.ANSWER, bytes(100 * PART), 0))
    wanted, on_their_way = parts.want(8), 0
    while wanted is not None or on_their_way:
        on_their_way += wanted.parts if wanted is not None else 0
        assert on_their_way <= 8
        parts.add(cut(Kind.ANSWER, bytes(100 * PART), len(parts._held)))
        on_their_way -= 1
        wanted = parts.want(8)
    assert parts.complete


@given(st.binary(max_size=100), st.integers(min_value=0, max_value=35))
def test_noise_is_no_frame(noise: bytes, kept: int) -> None:
    """Whatever is put behind the beginning of a frame, it is one, or refused with a sentence."""
    data = Frame(Kind.QUESTION, process="abc").encode()[:kept] + noise
    try:
        frame = Frame.decode(data)
    except MessageError:
        return
    if frame.kind in (Kind.QUESTION, Kind.ANSWER):
        assert len(frame.content) == part_size(frame.part, frame.size)
        assert frame.size <= LARGEST


def test_a_message_that_is_too_large_is_refused_by_its_first_frame() -> None:
    first = replace(cut(Kind.QUESTION, bytes(PART), 0), size=LARGEST + 1, parts=count_parts(LARGEST + 1))
    with pytest.raises(MessageError, match="at most"):
        Frame.decode(first.encode())


@given(st.text(min_size=1, max_size=30))
def test_names_are_one_token_each(name: str) -> None:
    """Also those that mean something in a subject: no name reaches into the place of another."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return
    word = token(name)
    assert not set(word) & set(".*> \t\r\n")
    assert word.isascii()
    assert name_of(word) == name


def test_subjects_say_who_speaks() -> None:
    subject = ask_subject("kernfed", "St. Mary", "alice.*.bob", "UKEY", "any", "a1", "q1")
    assert subject.count(".") == 7
    address = read_ask_subject(subject)
    assert address == Address("alice.*.bob", "UKEY", "any", "a1", "q1")
    assert read_reply_subject(reply_subject("kernfed", "St. Mary", address)) == ("St. Mary", "q1")
    for wrong in ("", "kernfed", "a.b.c.d.e", "k.ask.s.c.key.any.as-ker.q"):
        with pytest.raises(MessageError):
            read_ask_subject(wrong)
    with pytest.raises(MessageError):
        read_reply_subject("a.b.c")
