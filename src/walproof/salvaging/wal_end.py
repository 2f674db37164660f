"""Whether WAL goes on after the place where reading it ended: page headers of the segments tell. Reads only."""

import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from walproof.machine.untrusted import regular
from walproof.salvaging.timelines import PAGE, Span, page_header, record_end, segment_start

_number = partial(int.from_bytes, byteorder=sys.byteorder)


def goes_on(files: Mapping[str, Path], span: Span, end: int, size: int) -> bool:
    """True when `end` is not the end of what the span's timeline wrote: a record is damaged, or a segment is missing.

    A page that was written for its place holds its own position, a recycled one another (xlp_pageaddr).
    The last record of a server that crashed may be there in part: pages up to its end are its own.
    """
    last = end - 1  # the page of the last byte of the record that begins at `end`
    for name in sorted(name for name in files if int(name[:8], 16) == span.timeline):
        start = segment_start(name, size)
        with regular(files[name], files[name] / name) as file:
            for address in range(max(start, end // PAGE * PAGE), start + size, PAGE):
                file.seek(address - start)
                page = file.read(PAGE if address <= end else 16)
                if _number(page[8:16]) != address:
                    continue
                if address > end:
                    if address >= last:
                        return True
                    continue
                at = end % PAGE or page_header(address, size)
                length = _number(page[at : at + 4])
                last = (record_end(address + at, length, size) - 1) // PAGE * PAGE if length < 1 << 30 else address
                if length and (length < 24 or last <= address):
                    return True
    return span.end is not None and span.end <= last
