"""A progress bar with the time left, on standard error, only where a person looks."""

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from walproof.pricing.bench import OnProgress, RunProgress


@contextmanager
def progress_bar(console: Console, *, quiet: bool = False) -> Iterator[OnProgress]:
    """Gives the function to tell how a run stands; draws nothing when quiet or not on a terminal."""
    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=quiet or not console.is_terminal, transient=True) as bar:
        task = bar.add_task("preparing", total=None)

        def tell(standing: RunProgress) -> None:
            done = min(standing.elapsed_s, standing.budget_s)
            bar.update(task, description=standing.doing, completed=done, total=standing.budget_s)

        yield tell
