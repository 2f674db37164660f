"""python -m tools.sizes MOST DIR...: files and lines of code of each folder; none may be longer than MOST lines."""

import sys
from pathlib import Path

ENDINGS = {".py", ".sql", ".j2", ".js", ".css"}


def main(most: int, folders: list[str]) -> int:
    """Print what is too long and the figures of each folder; the exit code."""
    lines = {
        path: len(path.read_text("utf-8").splitlines())
        for folder in folders
        for path in sorted(Path(folder).rglob("*"))
        if path.suffix in ENDINGS and path.is_file()
    }
    long = [f"{path}: {count} lines, at most {most}" for path, count in lines.items() if count > most]
    for folder in folders:
        counts = [count for path, count in lines.items() if path.is_relative_to(folder)]
        print(f"{folder}: {len(counts)} files, {sum(counts)} lines, longest {max(counts, default=0)}")
    print("\n".join(long) or f"sizes: no file over {most} lines")
    return 1 if long else 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2:]))
