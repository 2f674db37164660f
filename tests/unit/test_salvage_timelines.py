"""`walproof salvage`: where two timelines part."""

import pytest

from walproof.salvaging.timelines import Span, lost_spans, read_history


@pytest.mark.parametrize(
    ("old", "new", "lost"),
    [
        ((1, ""), (2, "1 0/30 x"), (Span(1, 0x30),)),
        ((1, ""), (3, "1\t0/30\n2\t0/40"), (Span(1, 0x30),)),
        ((2, "1 0/30"), (3, "1 0/30\n2 0/40"), (Span(2, 0x40),)),
        ((3, "1 0/30\n2 0/50"), (4, "1 0/30\n2 0/40"), (Span(2, 0x40, 0x50), Span(3, 0x50))),
        ((2, "1 0/40"), (3, "1 0/30"), (Span(1, 0x30, 0x40), Span(2, 0x40))),
        ((2, "1 0/30"), (3, "1 0/40"), (Span(2, 0x30),)),
        ((2, "1 0/30"), (2, "1 0/30"), ()),
        ((1, ""), (1, ""), ()),
    ],
)
def test_what_the_old_history_has_and_the_new_one_has_not(
    old: tuple[int, str], new: tuple[int, str], lost: tuple[Span, ...]
) -> None:
    assert lost_spans(read_history(*old), read_history(*new)) == lost


@pytest.mark.parametrize("text", ["1", "x 0/30", "1 zz", "2 0/30", "1 0/40\n1 0/50", "0 0/30", "1 0/123456789"])
def test_a_history_that_postgresql_would_not_read_is_none(text: str) -> None:
    with pytest.raises(ValueError, match=r"not in order|no WAL position"):
        read_history(2, text)


def test_histories_without_a_timeline_in_common_have_no_fork() -> None:
    with pytest.raises(ValueError, match="no timeline"):
        lost_spans((Span(2, 0),), (Span(1, 0),))
